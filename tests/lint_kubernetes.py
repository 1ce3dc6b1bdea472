"""The Kubernetes manifests: the schemas of Kubernetes, offline, and what no schema can see.

Every document is validated as it stands. Where `kubectl` is there, each overlay is also built, and what comes
out is looked at in the same way; where it is not, that is said.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from app.settings import PREFIX, Settings

VERSION = "1.34"
# Made by whoever installs; nothing secret is kept beside the manifests.
SECRETS = {
    "lethe-connections": {"database-url", "redis-url"},
    "lethe-deployment-key": {"deployment.key"},
    "lethe-signing-key": {"signing.pem"},
    "lethe-metrics": {"token"},
    "lethe-storage": set[str](),
}
Document = dict[str, Any]


def lint(root: Path) -> list[str]:
    folder = root / "deploy" / "kubernetes"
    files = sorted(folder.rglob("kustomization.yaml"))
    if not files:
        return ["deploy/kubernetes: no kustomization.yaml"]
    faults = [fault for file in files for fault in reference_faults(file)]
    base = documents(folder / "base")
    faults += document_faults(base, settings_of(folder / "base"))
    for overlay in sorted((folder / "overlays").iterdir()):
        extra = documents(overlay)
        faults += [fault for document in extra for fault in schema_faults(document)]
        faults += overlay_faults(overlay, base)
        built = build(overlay)
        if built is not None:
            faults += [f"{overlay.name}: {fault}" for fault in document_faults(built, settings_of(overlay))]
    return faults


def read(file: Path) -> list[Any]:
    return [
        document for document in yaml.load_all(file.read_text(), yaml.CSafeLoader) if document is not None
    ]


def documents(folder: Path) -> list[Document]:
    """The resources that the folder's kustomization lists by file."""
    listed = read(folder / "kustomization.yaml")[0].get("resources", [])
    files = [folder / name for name in listed if (folder / name).is_file()]
    return [document for file in files for document in read(file)]


def settings_of(*folders: Path) -> dict[str, str]:
    """What the generated config map holds, overlays over the base they name."""
    found: dict[str, str] = {}
    for folder in folders:
        kustomization = read(folder / "kustomization.yaml")[0]
        for name in kustomization.get("resources", []):
            if (folder / name).is_dir():
                found |= settings_of(folder / name)
        for generator in kustomization.get("configMapGenerator", []):
            found |= dict(literal.split("=", 1) for literal in generator["literals"])
    return found


def build(overlay: Path) -> list[Document] | None:
    tool = shutil.which("kubectl")
    if tool is None:
        print(f"kubectl is not installed: overlay {overlay.name} was checked file by file, not built")
        return None
    done = subprocess.run([tool, "kustomize", str(overlay)], capture_output=True, text=True, check=False)
    if done.returncode:
        return [{"kind": "Broken", "metadata": {"name": done.stderr.strip()}}]
    return [document for document in yaml.load_all(done.stdout, yaml.CSafeLoader) if document]


def reference_faults(file: Path) -> Iterator[str]:
    """Every file that is named exists, and every file that exists is named."""
    where = f"{file.parent.name}/{file.name}"
    kustomization = read(file)[0]
    named = [*kustomization.get("resources", []), *(p["path"] for p in kustomization.get("patches", []))]
    for name in named:
        if not (file.parent / name).exists():
            yield f"{where}: {name} does not exist"
    for other in file.parent.glob("*.yaml"):
        if other != file and other.name not in named:
            yield f"{where}: {other.name} is not named"
    if kustomization.get("secretGenerator") and any(
        "literals" in s for s in kustomization["secretGenerator"]
    ):
        yield f"{where}: a secret is written out"


def overlay_faults(overlay: Path, base: list[Document]) -> Iterator[str]:
    """What an overlay changes is there to be changed."""
    kustomization = read(overlay / "kustomization.yaml")[0]
    workloads = {d["metadata"]["name"]: d for d in base if "template" in d.get("spec", {})}
    images = {c["image"].partition(":")[0] for d in workloads.values() for c in pod(d)["containers"]}
    for item in kustomization.get("replicas", []):
        if item["name"] not in workloads:
            yield f"{overlay.name}: no workload {item['name']} to scale"
    for item in kustomization.get("images", []):
        if item["name"] not in images:
            yield f"{overlay.name}: no image {item['name']} to replace"
        if not item.get("newTag") or item["newTag"] == "latest":
            yield f"{overlay.name}: image {item['name']} is not pinned to an exact version"
    for item in kustomization.get("patches", []):
        file = overlay / item["path"]
        for patch in read(file) if file.exists() else []:
            if isinstance(patch, dict) and patch["metadata"]["name"] not in workloads:
                yield f"{overlay.name}: no workload {patch['metadata']['name']} to patch"


def document_faults(found: list[Document], settings: dict[str, str]) -> Iterator[str]:
    for document in found:
        yield from schema_faults(document)
        if document.get("kind") == "Secret":
            yield f"{name_of(document)}: a secret is written out"
        if "template" in document.get("spec", {}):
            yield from workload_faults(document, settings)
    yield from selector_faults(found)
    default = [d for d in found if d["kind"] == "NetworkPolicy" and d["spec"]["podSelector"] == {}]
    if not default or set(default[0]["spec"]["policyTypes"]) != {"Ingress", "Egress"}:
        yield "no network policy denies what is not allowed"


def schema_faults(document: Document) -> Iterator[str]:
    problem = _schema_problem(json.dumps(document))
    if problem:
        yield f"{name_of(document)}: {problem} (Kubernetes {VERSION})"


@cache
def _schema_problem(document: str) -> str:
    """Remembered: the schemas are read anew each time, and overlays repeat the base."""
    try:
        kubernetes_validate.validate(json.loads(document), VERSION, strict=True)
    except kubernetes_validate.ValidationError as problem:
        return str(problem.message)
    except (kubernetes_validate.SchemaNotFoundError, kubernetes_validate.InvalidSchemaError) as problem:
        return str(problem)
    return ""


def workload_faults(document: Document, settings: dict[str, str]) -> Iterator[str]:
    where, spec = name_of(document), pod(document)
    if spec.get("automountServiceAccountToken") is not False:
        yield f"{where}: is given a token of the cluster"
    if spec.get("securityContext", {}).get("runAsNonRoot") is not True:
        yield f"{where}: may run as root"
    for container in spec["containers"]:
        yield from container_faults(where, container, running=document["kind"] != "Job")
        yield from variable_faults(where, container, settings)
        yield from mount_faults(where, container, spec)
    drain, grace = float(settings["LETHE_DRAIN_SECONDS"]), spec.get("terminationGracePeriodSeconds", 30)
    needed = drain if "worker" in where else float(settings["LETHE_LINGER_SECONDS"]) + 10
    if grace <= needed:
        yield f"{where}: is killed after {grace} s, and needs more than {needed:g} s to stop"


def container_faults(where: str, container: Document, *, running: bool) -> Iterator[str]:
    _, separator, tag = container["image"].rpartition(":")
    if not separator or not tag[:1].isdigit():
        yield f"{where}: {container['image']} is not pinned to an exact version"
    context = container.get("securityContext", {})
    if not context.get("readOnlyRootFilesystem") or context.get("allowPrivilegeEscalation") is not False:
        yield f"{where}: its root filesystem can be written, or its rights raised"
    if context.get("capabilities", {}).get("drop") != ["ALL"]:
        yield f"{where}: keeps capabilities"
    resources = container.get("resources", {})
    if not {"cpu", "memory"} <= resources.get("requests", {}).keys() or "memory" not in resources["limits"]:
        yield f"{where}: says not what it needs"
    if running and "readinessProbe" not in container:
        yield f"{where}: has no readiness probe"
    if container.get("ports") and not {"livenessProbe", "startupProbe"} <= container.keys():
        yield f"{where}: serves without liveness and startup probes"


def variable_faults(where: str, container: Document, settings: dict[str, str]) -> Iterator[str]:
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    for name in {item["name"] for item in container.get("env", [])} | settings.keys():
        if name.startswith(PREFIX) and name not in known:
            yield f"{where}: {name} is not a setting"
    for item in container.get("env", []):
        secret = item.get("valueFrom", {}).get("secretKeyRef")
        if secret and secret["key"] not in SECRETS.get(secret["name"], ()):
            yield f"{where}: secret {secret['name']} has no {secret['key']}"


def mount_faults(where: str, container: Document, spec: Document) -> Iterator[str]:
    volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
    mounts = {mount["mountPath"]: mount["name"] for mount in container.get("volumeMounts", [])}
    for name in mounts.values():
        if name not in volumes:
            yield f"{where}: there is no volume {name}"
    for name, volume in volumes.items():
        secret = volume.get("secret", {}).get("secretName")
        if secret and secret not in SECRETS:
            yield f"{where}: volume {name} is of the unknown secret {secret}"
        if secret == "lethe-signing-key" and "worker" not in where:
            yield f"{where}: only the worker signs"
    for item in container.get("env", []):
        folder, _, file = item.get("value", "").rpartition("/")
        if not item["name"].endswith("_FILE"):
            continue
        secret = volumes.get(mounts.get(folder, ""), {}).get("secret", {}).get("secretName")
        if file not in SECRETS.get(secret, ()):
            yield f"{where}: {item['name']} names a file that no volume holds"


def selector_faults(found: list[Document]) -> Iterator[str]:
    """Whoever selects pods finds some."""
    pods = [d["spec"]["template"]["metadata"]["labels"] for d in found if "template" in d.get("spec", {})]
    names = {d["metadata"]["name"] for d in found if d["kind"] == "Deployment"}
    for document in found:
        spec = document.get("spec", {})
        selector = spec.get("selector", {})
        wanted = selector.get("matchLabels", selector) if document["kind"] != "PersistentVolumeClaim" else {}
        own = [d for d in pods if wanted.items() <= d.items()]
        if document["kind"] in ("Deployment", "Service", "PodDisruptionBudget") and (not wanted or not own):
            yield f"{name_of(document)}: selects no pod"
        if document["kind"] == "HorizontalPodAutoscaler" and spec["scaleTargetRef"]["name"] not in names:
            yield f"{name_of(document)}: scales nothing"


def pod(document: Document) -> Document:
    spec: Document = document["spec"]["template"]["spec"]
    return spec


def name_of(document: Document) -> str:
    return f"{document.get('kind')} {document.get('metadata', {}).get('name')}"

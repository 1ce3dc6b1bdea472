"""Check the Kubernetes manifests.

kubernetes-validate checks every document against the schemas of Kubernetes, offline. `kubectl`, where it is
installed, builds the overlays, and the results are checked like the base. The rules below cover what neither
knows: the secrets and settings of Lethe, and what we promise about its pods.
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

from app.core.settings import PREFIX, Settings

VERSION = "1.34"
FOLDER = Path("deploy/kubernetes")
# Operators create these. The manifests contain no secret values.
SECRETS = {
    "lethe-connections": {"database-url", "redis-url"},
    "lethe-deployment-key": {"deployment.key"},
    "lethe-signing-key": {"signing.pem"},
    "lethe-metrics": {"token"},
    "lethe-storage": set[str](),
}
Document = dict[str, Any]


def lint(root: Path) -> list[str]:
    """Return the faults of the base and of every overlay."""
    folder = root / FOLDER
    if not (folder / "base").exists():
        return [f"{FOLDER}: there is no base"]
    base = read_resources(folder / "base")
    faults = [
        fault for file in sorted(folder.rglob("kustomization.yaml")) for fault in check_file_names(file)
    ]
    faults += check_documents(base, read_settings(folder / "base"))
    for overlay in sorted((folder / "overlays").iterdir()):
        faults += [fault for document in read_resources(overlay) for fault in check_schema(document)]
        faults += check_overlay(overlay, base)
        built = build_overlay(overlay)
        if built is not None:
            faults += [f"{overlay.name}: {fault}" for fault in check_documents(built, read_settings(overlay))]
    return faults


def read_documents(text: str) -> list[Any]:
    """Return the documents of a YAML file, without empty ones."""
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document is not None]


def read_kustomization(folder: Path) -> Document:
    """Return the kustomization of a folder."""
    kustomization: Document = read_documents((folder / "kustomization.yaml").read_text())[0]
    return kustomization


def read_resources(folder: Path) -> list[Document]:
    """Return the resources that the folder's kustomization lists by file name."""
    files = [folder / name for name in read_kustomization(folder).get("resources", [])]
    return [document for file in files if file.is_file() for document in read_documents(file.read_text())]


def read_settings(folder: Path) -> dict[str, str]:
    """Return the content of the generated config map, including the bases of an overlay."""
    settings: dict[str, str] = {}
    kustomization = read_kustomization(folder)
    for name in kustomization.get("resources", []):
        if (folder / name).is_dir():
            settings |= read_settings(folder / name)
    for generator in kustomization.get("configMapGenerator", []):
        settings |= dict(literal.split("=", 1) for literal in generator["literals"])
    return settings


def build_overlay(overlay: Path) -> list[Document] | None:
    """Return what kustomize makes of an overlay, or None without kubectl."""
    tool = shutil.which("kubectl")
    if tool is None:
        print(f"kubectl is not installed: the files of overlay {overlay.name} were checked, but not built")
        return None
    done = subprocess.run([tool, "kustomize", str(overlay)], capture_output=True, text=True, check=False)
    if done.returncode:
        return [{"kind": "Broken", "metadata": {"name": done.stderr.strip()}}]
    return read_documents(done.stdout)


def check_file_names(file: Path) -> Iterator[str]:
    """Yield files that a kustomization names but do not exist, and files that it does not name."""
    where, kustomization = f"{file.parent.name}/{file.name}", read_kustomization(file.parent)
    named = [*kustomization.get("resources", []), *(p["path"] for p in kustomization.get("patches", []))]
    for name in named:
        if not (file.parent / name).exists():
            yield f"{where}: {name} does not exist"
    for other in file.parent.glob("*.yaml"):
        if other != file and other.name not in named:
            yield f"{where}: {other.name} is not listed"
    if any("literals" in generator for generator in kustomization.get("secretGenerator", [])):
        yield f"{where}: contains the value of a secret"


def check_overlay(overlay: Path, base: list[Document]) -> Iterator[str]:
    """Yield changes of an overlay that match nothing in the base, and images that are not pinned."""
    kustomization = read_kustomization(overlay)
    workloads = {document["metadata"]["name"]: document for document in base if is_workload(document)}
    images = {c["image"].partition(":")[0] for d in workloads.values() for c in pod_of(d)["containers"]}
    patches = [overlay / patch["path"] for patch in kustomization.get("patches", [])]
    patched = [d for file in patches if file.exists() for d in read_documents(file.read_text())]
    names = [d["metadata"]["name"] for d in patched if isinstance(d, dict)]
    for name in [*names, *(item["name"] for item in kustomization.get("replicas", []))]:
        if name not in workloads:
            yield f"{overlay.name}: the base has no workload {name}"
    for change in patched:
        name = change["metadata"]["name"] if isinstance(change, dict) else ""
        if name in workloads and change["kind"] != workloads[name]["kind"]:
            yield f"{overlay.name}: {name} is a {workloads[name]['kind']}, not a {change['kind']}"
    for item in kustomization.get("images", []):
        if item["name"] not in images:
            yield f"{overlay.name}: the base has no image {item['name']}"
        if item.get("newTag", "latest") == "latest" and "digest" not in item:
            yield f"{overlay.name}: image {item['name']} is not pinned to an exact version"


def check_documents(documents: list[Document], settings: dict[str, str]) -> Iterator[str]:
    """Yield the faults of resources that are applied together."""
    for document in documents:
        yield from check_schema(document)
        if document.get("kind") == "Secret":
            yield f"{name_of(document)}: contains the value of a secret"
        if is_workload(document):
            yield from check_workload(document, settings)
    yield from check_selectors(documents)
    default = [d for d in documents if d["kind"] == "NetworkPolicy" and d["spec"]["podSelector"] == {}]
    if not default or set(default[0]["spec"]["policyTypes"]) != {"Ingress", "Egress"}:
        yield "no network policy denies all traffic by default"


def check_schema(document: Document) -> Iterator[str]:
    """Yield what kubernetes-validate says about a document."""
    problem = _validate(json.dumps(document))
    if problem:
        yield f"{name_of(document)}: {problem} (Kubernetes {VERSION})"


@cache
def _validate(document: str) -> str:
    """Return the problem with a document. Cached, because overlays repeat the base and validation is slow."""
    try:
        kubernetes_validate.validate(json.loads(document), VERSION, strict=True)
    except kubernetes_validate.ValidationError as problem:
        return str(problem.message)
    except (kubernetes_validate.SchemaNotFoundError, kubernetes_validate.InvalidSchemaError) as problem:
        return str(problem)
    return ""


def check_workload(document: Document, settings: dict[str, str]) -> Iterator[str]:
    """Yield what a workload lacks of our promises: no cluster token, no root, and time to stop."""
    where, pod = name_of(document), pod_of(document)
    if pod.get("automountServiceAccountToken") is not False:
        yield f"{where}: mounts a token of the cluster"
    if pod.get("securityContext", {}).get("runAsNonRoot") is not True:
        yield f"{where}: may run as root"
    for container in pod["containers"]:
        yield from check_container(where, container, is_server=document["kind"] != "Job")
        yield from check_variables(where, container, settings)
        yield from check_mounts(where, container, pod, claims_of(document))
    drain, grace = float(settings["LETHE_DRAIN_SECONDS"]), pod.get("terminationGracePeriodSeconds", 30)
    needed = drain if "worker" in where else float(settings["LETHE_LINGER_SECONDS"]) + 10
    if grace <= needed:
        yield f"{where}: is killed after {grace} s, but needs more than {needed:g} s to stop"


def check_container(where: str, container: Document, *, is_server: bool) -> Iterator[str]:
    """Yield what a container lacks: a pinned image, restricted rights, resources and probes."""
    context, resources = container.get("securityContext", {}), container.get("resources", {})
    name, separator, tag = container["image"].rpartition(":")
    if not separator or not (tag[:1].isdigit() or name.endswith("@sha256")):
        yield f"{where}: {container['image']} is not pinned to an exact version"
    if context.get("readOnlyRootFilesystem") is not True:
        yield f"{where}: its root filesystem can be written"
    if context.get("allowPrivilegeEscalation") is not False:
        yield f"{where}: can gain privileges"
    if context.get("capabilities", {}).get("drop") != ["ALL"]:
        yield f"{where}: keeps capabilities"
    if not {"cpu", "memory"} <= resources.get("requests", {}).keys() or "memory" not in resources["limits"]:
        yield f"{where}: does not state the resources it needs"
    if is_server and "readinessProbe" not in container:
        yield f"{where}: has no readiness probe"
    if container.get("ports") and not {"livenessProbe", "startupProbe"} <= container.keys():
        yield f"{where}: has a port but no liveness or startup probe"


def check_variables(where: str, container: Document, settings: dict[str, str]) -> Iterator[str]:
    """Yield variables that are not settings of Lethe, and keys that no secret has."""
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    variables = container.get("env", [])
    for name in {item["name"] for item in variables} | settings.keys():
        if name.startswith(PREFIX) and name not in known:
            yield f"{where}: {name} is not a setting"
    for item in variables:
        secret = item.get("valueFrom", {}).get("secretKeyRef")
        if secret and secret["key"] not in SECRETS.get(secret["name"], ()):
            yield f"{where}: secret {secret['name']} has no key {secret['key']}"


def check_mounts(where: str, container: Document, pod: Document, claims: set[str]) -> Iterator[str]:
    """Yield secrets mounted where they do not belong, and settings that name a file no secret provides."""
    volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
    mounts = {mount["mountPath"]: mount["name"] for mount in container.get("volumeMounts", [])}
    for name in mounts.values():
        if name not in volumes.keys() | claims:
            yield f"{where}: there is no volume {name}"
    for name, volume in volumes.items():
        secret = volume.get("secret", {}).get("secretName")
        if secret and secret not in SECRETS:
            yield f"{where}: volume {name} mounts the unknown secret {secret}"
        if secret == "lethe-signing-key" and "worker" not in where:
            yield f"{where}: only the worker may have the signing key"
    keeps_log_head = False
    for item in container.get("env", []):
        folder, _, file = item.get("value", "").rpartition("/")
        secret = volumes.get(mounts.get(folder, ""), {}).get("secret", {}).get("secretName")
        if item["name"] == "LETHE_LOG_SEEN_FILE":
            keeps_log_head = mounts.get(folder) in claims
        elif item["name"].endswith("_FILE") and file not in SECRETS.get(secret, ()):
            yield f"{where}: {item['name']} names a file that no volume provides"
    if "worker" in where and not keeps_log_head:
        yield f"{where}: keeps no tree head on a volume that outlives its pod"


def check_selectors(documents: list[Document]) -> Iterator[str]:
    """Yield resources that select no pod or scale no deployment."""
    pods = [d["spec"]["template"]["metadata"]["labels"] for d in documents if is_workload(d)]
    deployments = {d["metadata"]["name"] for d in documents if d["kind"] == "Deployment"}
    for document in documents:
        kind, spec = document["kind"], document.get("spec", {})
        if kind in ("Deployment", "StatefulSet", "Service", "PodDisruptionBudget"):
            labels = spec.get("selector", {}).get("matchLabels", spec.get("selector", {}))
            if not labels or not any(labels.items() <= pod.items() for pod in pods):
                yield f"{name_of(document)}: selects no pod"
        if kind == "HorizontalPodAutoscaler" and spec["scaleTargetRef"]["name"] not in deployments:
            yield f"{name_of(document)}: scales no deployment"


def is_workload(document: Document) -> bool:
    """Return whether a document runs pods."""
    return "template" in document.get("spec", {})


def pod_of(document: Document) -> Document:
    """Return the pod specification of a workload."""
    spec: Document = document["spec"]["template"]["spec"]
    return spec


def claims_of(document: Document) -> set[str]:
    """Return the names of the volumes that each pod of a stateful set keeps."""
    return {claim["metadata"]["name"] for claim in document["spec"].get("volumeClaimTemplates", [])}


def name_of(document: Document) -> str:
    """Return the kind and name of a document."""
    return f"{document.get('kind')} {document.get('metadata', {}).get('name')}"

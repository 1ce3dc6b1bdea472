"""Lint Dockerfile, docker-compose.yml and the Kubernetes manifests: `python -m tests.lint_containers`.

hadolint reads the Dockerfile, the Compose specification's own JSON schema reads the compose file, and the
rules below hold what neither can see: that the two files fit each other and that nothing floats. No container
engine is needed. The manifests have a file of their own, `tests.lint_kubernetes`.
"""

import re
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests import lint_kubernetes

ROOT = Path(__file__).resolve().parent.parent
EXACT_TAG = re.compile(r"^[a-z0-9./-]+:\d+\.\d+[\w.-]*$")
VARIABLE = re.compile(r"(?<!\$)\$(?:\{([^}]*)\}|(\w+))")


@dataclass(frozen=True)
class Instruction:
    stage: str
    word: str
    rest: str


def instructions(dockerfile: str) -> list[Instruction]:
    """The instructions with the stage each belongs to; comments dropped, continued lines joined."""
    lines = [line for line in dockerfile.splitlines() if not line.lstrip().startswith("#")]
    found, stage = [], ""
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        word, _, rest = line.strip().partition(" ")
        if word.upper() == "FROM":
            stage = rest.split()[-1]
        if word:
            found.append(Instruction(stage, word.upper(), rest.strip()))
    return found


def lineage(parts: list[Instruction], stage: str) -> list[Instruction]:
    """The instructions of a stage, after those of the stages it is built from."""
    own = [part for part in parts if part.stage == stage]
    base = own[0].rest.split()[0] if own else ""
    return (lineage(parts, base) if base in {part.stage for part in parts} else []) + own


def dockerfile_faults(parts: list[Instruction], targets: set[str]) -> Iterator[str]:
    stages = {part.stage for part in parts}
    for part in parts:
        image = part.rest.split()[0] if part.word == "FROM" else ""
        if image and image not in stages and not EXACT_TAG.match(image):
            yield f"Dockerfile: {image} is not pinned to an exact version"
    for target in sorted(targets):
        if target not in stages:
            yield f"Dockerfile: no stage named {target}"
            continue
        last = {part.word: part.rest for part in lineage(parts, target)}
        if last.get("USER", "root").partition(":")[0] in ("root", "0"):
            yield f"Dockerfile: {target} runs as root"
        if last.get("HEALTHCHECK", "NONE") == "NONE":
            yield f"Dockerfile: {target} has no health check"
        for word in ("ENTRYPOINT", "CMD"):
            if not last.get(word, "").startswith("["):
                yield f"Dockerfile: {target} needs {word} in exec form"


def compose_faults(compose: dict[str, Any], parts: list[Instruction]) -> Iterator[str]:
    services = compose["services"]
    for name, service in services.items():
        where = f"docker-compose.yml: {name}"
        target = service.get("build", {}).get("target")
        if target and target not in {part.stage for part in parts}:
            yield f"{where}: the Dockerfile has no stage {target}"
        if not target and not EXACT_TAG.match(service.get("image", "")):
            yield f"{where}: image is not pinned to an exact version"
        for other, condition in service.get("depends_on", {}).items():
            yield from _dependency_faults(
                f"{where}: depends on {other}", services.get(other), condition, parts
            )
        yield from _reference_faults(where, service, compose)


def _dependency_faults(
    where: str, other: dict[str, Any] | None, condition: dict[str, Any], parts: list[Instruction]
) -> Iterator[str]:
    if other is None:
        yield f"{where}, which is not a service"
        return
    own = other.get("healthcheck", {})
    target = other.get("build", {}).get("target", "")
    inherited = any(part.word == "HEALTHCHECK" for part in lineage(parts, target)) if target else False
    healthy = "test" in own or (inherited and not own.get("disable"))
    if condition.get("condition") == "service_healthy" and not healthy:
        yield f"{where} to be healthy, but it has no health check"
    if condition.get("condition") == "service_completed_successfully" and other.get("restart") != "no":
        yield f"{where} to complete, but it is restarted"


def _reference_faults(where: str, service: dict[str, Any], compose: dict[str, Any]) -> Iterator[str]:
    for kind in ("volumes", "secrets", "configs", "networks"):
        for item in service.get(kind, []):
            name = item.get("source", "") if isinstance(item, dict) else item.partition(":")[0]
            if not name.startswith((".", "/")) and name not in compose.get(kind, {}):
                yield f"{where}: {kind} names {name}, which is not declared"


def variable_faults(compose_text: str) -> Iterator[str]:
    """A variable left unset must stop the start with its name, not become an empty password."""
    text = "\n".join(line for line in compose_text.splitlines() if not line.lstrip().startswith("#"))
    for match in VARIABLE.finditer(text):
        if ":?" not in (match[1] or ""):
            yield f"docker-compose.yml: {match[0]} has no :? that stops the start when it is not set"


def own_rules(dockerfile: str, compose_text: str) -> list[str]:
    parts, compose = instructions(dockerfile), yaml.safe_load(compose_text)
    targets = {service["build"]["target"] for service in compose["services"].values() if "build" in service}
    return [
        *dockerfile_faults(parts, targets),
        *compose_faults(compose, parts),
        *variable_faults(compose_text),
    ]


def run(*command: str) -> bool:
    """Run a tool of this environment; one that is missing is a failure, not a pass."""
    tool = Path(sysconfig.get_path("scripts"), command[0])
    if not tool.exists():
        print(f"{command[0]} is not installed; run make setup")
        return False
    done = subprocess.run([str(tool), *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")
    return done.returncode == 0


def main() -> int:
    sound = run("hadolint", "--failure-threshold", "style", "Dockerfile")
    sound &= run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.yml")
    faults = own_rules((ROOT / "Dockerfile").read_text(), (ROOT / "docker-compose.yml").read_text())
    faults += lint_kubernetes.lint(ROOT)
    for fault in faults:
        print(fault)
    if sound and not faults:
        print("Dockerfile, docker-compose.yml, deploy/kubernetes: no faults.")
    return 0 if sound and not faults else 1


if __name__ == "__main__":
    sys.exit(main())

"""Lint the Dockerfile, docker-compose.yml and the Kubernetes manifests: `python -m tests.lint_containers`.

hadolint checks the Dockerfile, and check-jsonschema checks docker-compose.yml against the Compose
specification. The rules below cover what neither knows: that the files fit each other and this source tree,
and what we promise about the images. No container engine is needed. `tests.lint_kubernetes` checks the
manifests.
"""

import importlib
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
EXACT_TAG = re.compile(r"^[a-z0-9./-]+:\d+\.\d+[\w.-]*(@sha256:[0-9a-f]{64})?$")
DEFAULT = re.compile(r"^\$\{\w+:-([^}]*)\}$")
VARIABLE = re.compile(r"(?<!\$)\$(?:\{([^}]*)\}|(\w+))")
IMPORT = re.compile(r"\bfrom ((?:app|worker|lethe)\b[\w.]*) import (\w+)")


@dataclass(frozen=True)
class Instruction:
    """An instruction of a Dockerfile and the stage it belongs to."""

    stage: str
    word: str
    rest: str


def parse_dockerfile(text: str) -> list[Instruction]:
    """Return the instructions, without comments and with continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    instructions, stage = [], ""
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        word, _, rest = line.strip().partition(" ")
        if word.upper() == "FROM":
            stage = rest.split()[-1]
        if word:
            instructions.append(Instruction(stage, word.upper(), rest.strip()))
    return instructions


def inherited_instructions(instructions: list[Instruction], stage: str) -> list[Instruction]:
    """Return the instructions of a stage, preceded by those of the stages it is built from."""
    own = [part for part in instructions if part.stage == stage]
    base = own[0].rest.split()[0] if own else ""
    stages = {part.stage for part in instructions}
    return (inherited_instructions(instructions, base) if base in stages else []) + own


def check_dockerfile(instructions: list[Instruction], targets: set[str]) -> Iterator[str]:
    """Yield the faults: images must be pinned, and every target needs a user and a health check."""
    stages = {part.stage for part in instructions}
    arguments = dict(
        part.rest.split("=", 1) for part in instructions if part.word == "ARG" and not part.stage
    )
    for part in instructions:
        image = part.rest.split()[0] if part.word == "FROM" else ""
        image = arguments.get(image.removeprefix("${").removesuffix("}"), image)
        if image and image not in stages and not EXACT_TAG.match(image):
            yield f"Dockerfile: {image} is not pinned to an exact version"
    for target in sorted(targets & stages):
        last = {part.word: part.rest for part in inherited_instructions(instructions, target)}
        if last.get("USER", "root").partition(":")[0] in ("root", "0"):
            yield f"Dockerfile: {target} runs as root"
        if last.get("HEALTHCHECK", "NONE") == "NONE":
            yield f"Dockerfile: {target} has no health check"


def check_compose(compose: dict[str, Any], instructions: list[Instruction]) -> Iterator[str]:
    """Yield the faults: services must name images, stages, services and volumes that exist."""
    services = compose["services"]
    for name, service in services.items():
        where = f"docker-compose.yml: {name}"
        target = service.get("build", {}).get("target")
        if target and target not in {part.stage for part in instructions}:
            yield f"{where}: the Dockerfile has no stage {target}"
        if not target and not EXACT_TAG.match(default_of(service.get("image", ""))):
            yield f"{where}: the image is not pinned to an exact version"
        for other, dependency in service.get("depends_on", {}).items():
            if other not in services:
                yield f"{where}: depends on {other}, which is not a service"
            else:
                yield from _check_dependency(
                    f"{where}: depends on {other}", services[other], dependency["condition"], instructions
                )
        for kind in ("volumes", "secrets", "configs", "networks"):
            for item in service.get(kind, []):
                source = item.get("source", "") if isinstance(item, dict) else item.partition(":")[0]
                if not source.startswith((".", "/")) and source not in compose.get(kind, {}):
                    yield f"{where}: {source} is not declared under {kind}"


def default_of(text: str) -> str:
    """Return the default of a text that is one variable with a default, or else the text itself."""
    match = DEFAULT.match(text)
    return text if match is None else match[1]


def _check_dependency(
    where: str, service: dict[str, Any], condition: str, instructions: list[Instruction]
) -> Iterator[str]:
    check = service.get("healthcheck", {})
    image = inherited_instructions(instructions, service.get("build", {}).get("target", ""))
    from_image = any(part.word == "HEALTHCHECK" for part in image) and not check.get("disable")
    if condition == "service_healthy" and "test" not in check and not from_image:
        yield f"{where} to be healthy, but it has no health check"
    if condition == "service_completed_successfully" and service.get("restart") != "no":
        yield f"{where} to complete, but it is restarted"


def check_variables(compose_text: str) -> Iterator[str]:
    """Yield variables that may be unset. The start must fail then, not continue with an empty password.

    Only an image may have a default.
    """
    text = "\n".join(line for line in compose_text.splitlines() if not line.lstrip().startswith("#"))
    for match in VARIABLE.finditer(text):
        if ":?" not in (match[1] or "") and not EXACT_TAG.match(default_of(match[0])):
            yield f"docker-compose.yml: {match[0]} needs :? so that the start stops when it is not set"


def check_imports(name: str, text: str) -> Iterator[str]:
    """Yield imports in health checks and probes that this source tree does not satisfy."""
    for module, attribute in sorted(set(IMPORT.findall(text))):
        try:
            exists = hasattr(importlib.import_module(module), attribute)
        except ImportError:
            exists = False
        if not exists:
            yield f"{name}: a probe imports {attribute} from {module}, which does not exist"


def check_own_rules(dockerfile: str, compose_text: str) -> list[str]:
    """Return the faults of both files that hadolint and check-jsonschema cannot see."""
    instructions, compose = parse_dockerfile(dockerfile), yaml.safe_load(compose_text)
    targets = {service["build"]["target"] for service in compose["services"].values() if "build" in service}
    return [
        *check_dockerfile(instructions, targets),
        *check_compose(compose, instructions),
        *check_variables(compose_text),
        *check_imports("Dockerfile", dockerfile),
        *check_imports("docker-compose.yml", compose_text),
    ]


def check_manifests(root: Path) -> list[str]:
    """Return the faults of the Kubernetes manifests."""
    faults = lint_kubernetes.lint(root)
    for file in sorted((root / "deploy/kubernetes").rglob("*.yaml")):
        faults += check_imports(str(file.relative_to(root)), file.read_text())
    return faults


def run(*command: str) -> bool:
    """Run a tool of this environment and return whether it found no fault. A missing tool is a failure."""
    tool = Path(sysconfig.get_path("scripts"), command[0])
    if not tool.exists():
        print(f"{command[0]} is not installed. Run `make setup`.")
        return False
    done = subprocess.run([str(tool), *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")
    return done.returncode == 0


def main() -> int:
    """Run every check, print the faults, and return the exit code."""
    passed = run("hadolint", "--failure-threshold", "style", "Dockerfile")
    passed &= run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.yml")
    faults = check_own_rules((ROOT / "Dockerfile").read_text(), (ROOT / "docker-compose.yml").read_text())
    faults += check_manifests(ROOT)
    for fault in faults:
        print(fault)
    if passed and not faults:
        print("Dockerfile, docker-compose.yml, deploy/kubernetes: no faults.")
    return 0 if passed and not faults else 1


if __name__ == "__main__":
    sys.exit(main())

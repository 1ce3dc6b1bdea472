"""A name with a leading underscore stays in its module: nobody else imports it or reaches for it."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from tests.unit.source_trees import Source, imported_module, sources

PACKAGES = ("lethe", "app", "worker", "bench", "examples")


def is_private(name: str) -> bool:
    """Say whether a name is private; names like `__init__` are not.

    >>> is_private("_helper"), is_private("__all__"), is_private("helper")
    (True, False, False)
    """
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


@dataclass(frozen=True)
class Imported:
    """One imported name: what it is, what the module calls it, and on which line."""

    line: int
    target: str
    local: str


def imported(source: Source) -> Iterator[Imported]:
    """Yield every name that a module imports, with its full dotted target."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Imported(node.lineno, alias.name, alias.asname or alias.name)
        elif isinstance(node, ast.ImportFrom):
            module = imported_module(source, node)
            for alias in node.names:
                yield Imported(node.lineno, f"{module}.{alias.name}", alias.asname or alias.name)


def intrusions(source: Source, ours: frozenset[str]) -> list[str]:
    """List the places where a module uses a private name of another module of the project."""
    tops = {name.partition(".")[0] for name in ours}
    names = [name for name in imported(source) if name.target.partition(".")[0] in tops]
    modules = {name.local: name.target for name in names if name.target in ours}
    places = {(name.line, name.target) for name in names if any(map(is_private, name.target.split(".")))}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            module = modules.get(ast.unparse(node.value), source.module)
            if module != source.module:
                places.add((node.lineno, f"{module}.{node.attr}"))
    return [f"{source.place}:{line}: {name}" for line, name in sorted(places)]


def test_no_module_uses_a_private_name_of_another() -> None:
    everything = sources(*PACKAGES)
    ours = frozenset(source.module for source in everything)
    assert [place for source in everything for place in intrusions(source, ours)] == []


def test_the_check_finds_every_way_to_reach_a_private_name() -> None:
    text = (
        "import app.core.queue\n"
        "from app.core import clock as time\n"
        "from app.core.clock import _now\n"
        "from torch import _C\n"
        "time._now(), app.core.queue._connect(), self._own, time.__name__\n"
    )
    sample = Source("worker.sample", sources("worker")[0].path, ast.parse(text))
    ours = frozenset({"app", "app.core", "app.core.clock", "app.core.queue", "worker.sample"})
    assert [place.split(": ")[1] for place in intrusions(sample, ours)] == [
        "app.core.clock._now",
        "app.core.clock._now",
        "app.core.queue._connect",
    ]

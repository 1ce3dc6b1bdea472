"""The Python sources of the project, parsed, for tests that check rules about them."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMPORT_ROOTS = {
    "lethe": ROOT / "sdk",
    **dict.fromkeys(("app", "worker", "migrations", "bench", "examples"), ROOT),
}
"""The packages of the project, and the folder that each one is imported from."""


@dataclass(frozen=True)
class Source:
    """One module: its dotted name, its file and its syntax tree."""

    module: str
    path: Path
    tree: ast.Module

    @property
    def place(self) -> str:
        """The file's path, as people write it."""
        return str(self.path.relative_to(ROOT))

    @property
    def package(self) -> str:
        """The package that relative imports start from."""
        return self.module if self.path.name == "__init__.py" else self.module.rpartition(".")[0]


@cache
def sources(*packages: str) -> tuple[Source, ...]:
    """Return every module of the named packages."""
    return tuple(source for package in packages for source in _read(package))


def _read(package: str) -> Iterator[Source]:
    root = IMPORT_ROOTS[package]
    for path in sorted((root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        yield Source(module, path, ast.parse(path.read_text()))


def imported_module(source: Source, node: ast.ImportFrom) -> str:
    """Return the full name of the module that a `from … import` statement reads."""
    if not node.level:
        return node.module or ""
    base = source.package.split(".")
    base = base[: len(base) - (node.level - 1)]
    return ".".join([*base, *([node.module] if node.module else [])])

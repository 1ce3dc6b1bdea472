"""Every public module, class, function and method has a docstring."""

import ast
from collections.abc import Iterator

import pytest

from tests.unit.source_trees import Source, sources

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def undocumented(source: Source) -> list[str]:
    """List the public definitions of a module that have no docstring."""
    missing = [] if _is_empty(source.tree) or _described(source.tree) else [f"{source.place}:1: the module"]
    if any(part.startswith("_") and part != "__main__" for part in source.module.split(".")):
        return missing
    return missing + [
        f"{source.place}:{node.lineno}: {name}"
        for name, node in _public(source.tree.body)
        if not _described(node)
    ]


def _public(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Definition]]:
    for node in body:
        if not isinstance(node, Definition) or node.name.startswith("_") or _is_overload(node):
            continue
        yield f"{prefix}{node.name}", node
        if isinstance(node, ast.ClassDef):
            yield from _public(node.body, f"{prefix}{node.name}.")


def _described(node: ast.Module | Definition) -> bool:
    return bool((ast.get_docstring(node) or "").strip())


def _is_empty(tree: ast.Module) -> bool:
    return not tree.body


def _is_overload(node: Definition) -> bool:
    """An overload, an override or the setter of a property is described elsewhere."""
    elsewhere = ("overload", "override", "setter")
    return any(ast.unparse(decorator).endswith(elsewhere) for decorator in node.decorator_list)


@pytest.mark.parametrize("package", ["lethe", "app", "worker"])
def test_every_public_definition_has_a_docstring(package: str) -> None:
    missing = [place for source in sources(package) for place in undocumented(source)]
    assert not missing, f"{len(missing)} without a docstring:\n" + "\n".join(missing)


def test_the_check_finds_what_is_missing() -> None:
    text = "def f(): ...\nclass C:\n    '''A class.'''\n    def m(self): ...\n    def _p(self): ...\n"
    sample = Source("app.sample", sources("app")[0].path, ast.parse(text))
    assert [place.split(": ")[1] for place in undocumented(sample)] == ["the module", "f", "C.m"]

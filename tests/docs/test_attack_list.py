"""Every test that the list of attacks names exists (docs/security.md)."""

import ast
import re
from functools import lru_cache

import pytest

from tests.docs.pages import ROOT, read

HEADING = "## What an attacker may try, and what answers"
PAGE = (ROOT / "docs" / "security.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.partition(HEADING)[2].partition("\n## ")[0].splitlines()
    if line.startswith("| ") and not line.startswith("| attempt |")
]
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


@lru_cache
def names_in(path: str) -> frozenset[str]:
    """Return the names of the tests in a file."""
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_every_attempt_has_an_answer_and_tests_that_exist(row: list[str]) -> None:
    attempt, answer, tests = row
    assert attempt
    assert answer
    named = TEST.findall(tests)
    assert named, "name a test"
    assert tests == ", ".join(f"`{path}::{name}`" for path, name in named)
    missing = [name for path, name in named if name not in names_in(path)]
    assert missing == []


def test_the_list_is_found() -> None:
    assert HEADING in "\n".join(line for _, line in read("docs/security.md").prose)
    assert len(ROWS) >= 30

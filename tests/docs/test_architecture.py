"""docs/architecture.md names only files and folders that exist, and none of the top-level ones is missing."""

import re
import tomllib
from collections.abc import Iterator

from tests.docs.pages import ROOT, Page, read

PAGE = read("docs/architecture.md")
TREE = next(block for block in PAGE.blocks if block.text.startswith("sdk/"))
LAYERS = next(block for block in PAGE.blocks if block.text.startswith("app.cli"))
NOT_CODE = {"docs"}
LOOKUPS = 12


def tree_paths() -> Iterator[str]:
    """Yield the paths in the tree. Indentation says which folder a line belongs to."""
    folders: list[tuple[int, str]] = []
    for line in TREE.text.splitlines():
        indent = len(line) - len(line.lstrip())
        names = re.match(r" *((?:[\w./]+(?:/|\.py) ?)+)(?: |$)", line)
        if names is None:
            continue  # a description that continues on a line of its own
        while folders and folders[-1][0] >= indent:
            folders.pop()
        parent = folders[-1][1] if folders else ""
        entries = [parent + name for name in names[1].split()]
        yield from entries
        if len(entries) == 1 and entries[0].endswith("/"):
            folders.append((indent, entries[0]))


def spoken_paths(page: Page) -> Iterator[str]:
    """Yield the paths in code spans of the prose, such as `app/db/states.py`."""
    tops = "|".join(sorted(path.name for path in ROOT.iterdir() if path.is_dir()))
    for _, line in page.prose:
        yield from re.findall(rf"`((?:{tops})/[\w./-]*)`", line)


def test_the_tree_is_read_with_its_folders() -> None:
    paths = set(tree_paths())
    assert {
        "sdk/lethe/certificate/",
        "app/db/transitions/",
        "app/gateway/models/",
        "worker/queue.py",
    } <= paths


def test_every_path_in_the_tree_exists() -> None:
    assert [path for path in tree_paths() if not (ROOT / path).exists()] == []


def test_every_path_in_the_prose_exists() -> None:
    paths = list(spoken_paths(PAGE))
    assert len(paths) > LOOKUPS
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_tree_has_every_package() -> None:
    """At the top, and one level below `app`, `worker` and `sdk/lethe`."""
    listed = {path.rstrip("/") for path in tree_paths()}
    packages = [
        str(folder.relative_to(ROOT))
        for parent in ("", "app", "worker", "sdk/lethe")
        for folder in (ROOT / parent).iterdir()
        if (folder / "__init__.py").exists() and folder.name not in NOT_CODE
    ]
    missing = [name for name in packages if not any(f"{path}/".startswith(f"{name}/") for path in listed)]
    assert missing == []


def test_the_layers_are_those_that_are_enforced() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    enforced = next(contract["layers"] for contract in contracts if "app.db" in contract.get("layers", ()))
    assert LAYERS.text.splitlines() == enforced


def test_the_lookup_table_answers_its_questions() -> None:
    section = PAGE.text.partition("## Where to find it")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= LOOKUPS
    assert [row for row in rows if not re.search(r"`(?:app|worker|sdk)/[\w/]+\.py`", row)] == []

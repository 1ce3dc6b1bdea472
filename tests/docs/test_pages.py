"""Links lead to existing pages and headings. Every endpoint, command and page is documented."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest
import typer
from typer.models import CommandInfo

from app.core.settings import Settings
from app.gateway.main import create_app
from lethe.cli.main import app as command
from lethe.cli.server_commands import installed_commands
from tests.docs.pages import PAGES, ROOT, Page, read

ALL = [read(name) for name in PAGES]
FOLDERS = ("app", "bench", "deploy", "docs", "examples", "migrations", "sdk", "tests", "worker")
OUTSIDE = re.compile(r"^(?:https?:|mailto:)")


@pytest.mark.parametrize("page", ALL, ids=lambda page: str(page.name))
def test_links_lead_to_pages_and_headings_that_exist(page: Page) -> None:
    broken = []
    for number, target in page.links:
        if OUTSIDE.match(target):
            continue
        path, _, anchor = unquote(target).partition("#")
        place = (ROOT / page.name).parent / path if path else ROOT / page.name
        if not place.exists():
            broken.append(f"{page.name}:{number}: {target}")
        elif anchor and anchor not in read(str(place.resolve().relative_to(ROOT))).anchors:
            broken.append(f"{page.name}:{number}: {target}: no such heading")
    assert broken == []


@pytest.mark.parametrize("page", ALL, ids=lambda page: str(page.name))
def test_the_files_that_a_page_names_exist(page: Page) -> None:
    named = re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]*)`", page.text)
    tests = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert [path for path in named if not (ROOT / path).exists()] == []
    assert set(re.findall(r"`(test_\w+\.py)`", page.text)) <= tests


@pytest.mark.parametrize("page", ALL, ids=lambda page: str(page.name))
def test_every_row_of_a_table_has_as_many_cells_as_its_head(page: Page) -> None:
    """A bar inside a cell needs a backslash, also in code. Without it, the row has cells too many."""
    expected, wrong = 0, []
    for number, line in page.prose:
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        expected = cells if cells == 0 or expected == 0 else expected
        if cells != expected:
            wrong.append(f"{page.name}:{number}")
    assert wrong == []


@pytest.mark.parametrize("page", ALL, ids=lambda page: str(page.name))
def test_a_page_contains_no_path_of_this_machine(page: Page) -> None:
    assert [place for place in (str(ROOT), f"{Path.home()}/") if place in page.text] == []


def test_the_readme_leads_to_every_page() -> None:
    """Directly, or through other pages."""
    reached, ahead = set(), ["README.md"]
    while ahead:
        name = ahead.pop()
        if name not in reached and name in PAGES:
            reached.add(name)
            targets = (ROOT.joinpath(name).parent / link.partition("#")[0] for _, link in read(name).links)
            ahead += [str(place.resolve().relative_to(ROOT)) for place in targets if place.exists()]
    assert [name for name in PAGES if name not in reached] == []


def test_the_api_guide_has_every_endpoint() -> None:
    guide = read("docs/api.md").text
    missing = [
        f"{method.upper()} {path}"
        for path, operations in create_app(Settings()).openapi()["paths"].items()
        for method in operations
        if not re.search(rf"`{method.upper()} {re.escape(path)}`", guide)
    ]
    assert missing == []


def test_the_client_guide_has_every_command() -> None:
    guide = read("docs/client.md").text
    assert [verb for verb in sorted(_verbs()) if not re.search(rf"`(?:lethe )?{verb}\b", guide)] == []


def _verbs() -> set[str]:
    """Return all commands, such as `model register`, `erase` and `key create`."""
    verbs = set()
    groups = {str(group.name): group.typer_instance for group in command.registered_groups}
    verbs |= {_name(entry) for entry in command.registered_commands}
    for name, point in installed_commands().items():
        loaded = point.load()
        groups |= {name: loaded} if isinstance(loaded, typer.Typer) else {}
        verbs |= set() if isinstance(loaded, typer.Typer) else {name}
    for name, group in groups.items():
        assert group is not None
        verbs |= _verbs_below(name, group)
    return verbs


def _verbs_below(name: str, group: typer.Typer) -> set[str]:
    verbs = {f"{name} {_name(entry)}" for entry in group.registered_commands}
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        verbs |= _verbs_below(f"{name} {inner.name}", inner.typer_instance)
    return verbs


def _name(entry: CommandInfo) -> str:
    assert entry.callback is not None
    return entry.name or entry.callback.__name__

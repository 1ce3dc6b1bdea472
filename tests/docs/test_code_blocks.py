"""Every example in the README and the guides runs, in order, against a real service."""

import json
import re
import shutil
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.core.settings import Settings
from app.db.manifest import Manifest
from app.gateway.main import create_app
from tests.docs import running
from tests.docs.pages import PAGES, Block, Page, read

pytestmark = pytest.mark.slow

QUICKSTART = "docs/quickstart.md"
LANGUAGES = {"sh", "python", "json", "http", "toml", "text"}
# Blocks that cannot run here, such as a whole test run, a cluster or Docker. Avoid adding more.
NOT_RUN = {
    "README.md": 3,
    "docs/quickstart.md": 1,
    "docs/dashboard.md": 1,
    "docs/operating.md": 6,
    "docs/contributing.md": 1,
}
# The receiver of webhooks is tested in tests/unit/app/test_webhook_signing.py, serving in test_serving.py.
ELSEWHERE = {"docs/webhooks.md", "docs/serving.md"}
COMMAND = re.compile(r"^ {4}(?:\$ )?(?:curl|lethe|python3?|pip|make|kubectl|docker|openssl|export) ")

ALL = [read(name) for name in PAGES]
BLOCKS = [block for page in ALL for block in page.blocks]
RUN = [p for p in ALL if any(running.runs(b) for b in p.blocks) and p.name not in ELSEWHERE]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed: the examples of the guides do not run")
    with running.service(tmp_path_factory.getbasetemp()) as variables:
        yield variables


@pytest.fixture(scope="module")
def quickstart(service: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the quickstart and return its folder, in which every other page starts."""
    folder = tmp_path_factory.mktemp("quickstart")
    running.run(read(QUICKSTART), folder, service)
    return folder


@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.name))
def test_the_examples_of_a_page_run_in_order(
    page: Page, quickstart: Path, service: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    if page.name == QUICKSTART:
        return  # the fixture has run it
    folder = tmp_path_factory.mktemp(Path(page.name).stem) / "folder"
    shutil.copytree(quickstart, folder, ignore=shutil.ignore_patterns("lethe-data", "examples"))
    running.run(page, folder, service)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: str(block.place))
def test_a_block_names_its_language_and_known_tags(block: Block) -> None:
    assert block.language in LANGUAGES, f"{block.place}: say sh, python, json, http, toml or text"
    allowed = {"sh": {"no-run"}, "json": {"manifest"}, "text": {"output"}}.get(block.language, set())
    assert block.tags.keys() <= allowed, block.place
    assert all(block.tags[tag] for tag in block.tags if tag == "no-run"), f"{block.place}: say why"


def test_few_blocks_are_not_run() -> None:
    counts = Counter(block.page for block in BLOCKS if "no-run" in block.tags)
    assert {page: n for page, n in counts.items() if n > NOT_RUN.get(page, 0)} == {}


def test_no_command_hides_in_an_indented_block() -> None:
    hidden = [f"{p.name}:{n}" for p in ALL for n, line in p.prose if COMMAND.match(line)]
    assert hidden == []


def test_json_is_valid_and_manifests_are_accepted() -> None:
    for block in BLOCKS:
        if block.language == "http":
            json.loads(block.text.partition("\n\n")[2])
        if block.language == "json":
            document = json.loads(block.text)
            if "manifest" in block.tags:
                Manifest.model_validate(document)


def test_toml_is_valid() -> None:
    for block in BLOCKS:
        if block.language == "toml":
            tomllib.loads(block.text)


def test_requests_name_endpoints_that_exist() -> None:
    """Check blocks of the kind http and every line with text like `POST /v1/erasures`."""
    paths = create_app(Settings()).openapi()["paths"]
    known = {f"{method.upper()} {_shape(path)}" for path, methods in paths.items() for method in methods}
    spoken = re.compile(r"\b(GET|POST|PUT|PATCH|DELETE) +(/v1/[^\s`?,;)]*)")
    wrong = [
        f"{page.name}: {method} {path}"
        for page in ALL
        for method, path in spoken.findall(page.text)
        if "…" not in path and f"{method} {_shape(path.rstrip('.'))}" not in known
    ]
    assert wrong == []


def _shape(path: str) -> str:
    """Return a path with its variables and example values blanked out."""
    path = re.sub(r"\{[^}]*\}|\$\w+", "{}", path)
    return path.replace("/versions/current/", "/versions/{}/")


def test_output_follows_an_example() -> None:
    for page in ALL:
        for example, expected in zip([None, *page.blocks], page.blocks, strict=False):
            if "output" in expected.tags:
                assert example is not None, expected.place
                assert running.runs(example), expected.place

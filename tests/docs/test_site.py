"""The documentation site builds without warnings, is complete, and loads nothing from elsewhere."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from tests.docs.pages import PAGES, ROOT

COUNTED = ("h1", "h2", "h3", "img", "li", "pre", "td", "th")
NAMES = {"README.md": "index.html", "CHANGELOG.md": "changelog.html"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built in strict mode: a broken link or a page that is missing from the menu fails."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


class _Elements(HTMLParser):
    """Counts elements, in the whole text or inside its article only, and collects what it loads."""

    def __init__(self, text: str, *, article: bool) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.loaded: list[str] = []
        self._inside, self._article = not article, article
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside |= tag == "article"
        if self._inside and tag in COUNTED:
            self.counts[tag] += 1
        target = dict(attrs).get("href" if tag == "link" else "src")
        if target is not None and tag in ("img", "link", "script", "iframe", "source"):
            self.loaded.append(target)

    def handle_endtag(self, tag: str) -> None:
        self._inside &= not (self._article and tag == "article")


def _built(site: Path, page: str) -> str:
    return (site / NAMES.get(page, Path(page).with_suffix(".html").name)).read_text()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_the_site_has_the_parts_of_its_source(site: Path, page: str) -> None:
    """GitHub and the site's generator read Markdown a little differently. The pages are written for both."""
    source = MarkdownIt("commonmark").enable("table").render((ROOT / page).read_text())
    expected = _Elements(source, article=False).counts
    assert _Elements(_built(site, page), article=True).counts == expected


@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_the_site_loads_only_files_of_the_site(site: Path, page: str) -> None:
    loaded = _Elements(_built(site, page), article=False).loaded
    assert loaded
    assert [
        target for target in loaded if not (site / target.partition("#")[0].partition("?")[0]).exists()
    ] == []


def test_style_sheets_load_only_files_of_the_site(site: Path) -> None:
    sheets = list(site.rglob("*.css"))
    assert sheets
    for sheet in sheets:
        assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^\"')]*", sheet.read_text()) == []


def test_the_search_finds_every_page(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {NAMES.get(page, Path(page).with_suffix(".html").name) for page in PAGES} <= found
    assert any("trust-region" in entry["text"] for entry in index["docs"])

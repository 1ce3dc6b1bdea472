"""Hooks of the documentation site: they make a site from pages that are written for GitHub.

The README becomes the first page, and the changelog is a page too. Links between them and the other pages are
adapted. Tags that only the tests read are removed from code blocks.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
OUTSIDE = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}
"""Pages that are not in docs/, and their names in the site."""

_FENCE = re.compile(r"^( *`{3,})([\w-]+) .*$", re.MULTILINE)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|mailto:|#)([^()\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the README and the changelog as pages."""
    for source, target in OUTSIDE.items():
        files.append(File.generated(config, target, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Adapt a page for the site before it is rendered."""
    return adapt(markdown, page.file.src_uri)


def adapt(markdown: str, name: str) -> str:
    """Return the page with links of the site, and without tags in the first lines of code blocks.

    `name` is the page's name in the site. Links to folders and to files outside the
    site become plain text.

    >>> adapt("[models](docs/models.md#ridge), [changes](CHANGELOG.md)", "index.md")
    '[models](models.md#ridge), [changes](changelog.md)'
    >>> adapt("[the changelog](../CHANGELOG.md), [composed](../docker-compose.yml)", "api.md")
    '[the changelog](changelog.md), composed (`docker-compose.yml`)'
    """
    folder = "" if name in OUTSIDE.values() else "docs"
    pieces = re.split(r"(^ *`{3,}[^\n]*\n.*?^ *`{3,} *$)", markdown, flags=re.MULTILINE | re.DOTALL)
    pieces[::2] = [_LINK.sub(lambda link: _adapt_link(link, folder), piece) for piece in pieces[::2]]
    pieces[1::2] = [_FENCE.sub(r"\1\2", piece, count=1) for piece in pieces[1::2]]
    return "".join(pieces)


def _adapt_link(link: re.Match[str], folder: str) -> str:
    mark, text, target = link.groups()
    path, hash_mark, anchor = target.partition("#")
    place = posixpath.normpath(posixpath.join(folder, path))
    if place in OUTSIDE:
        place = OUTSIDE[place]
    elif place.startswith("docs/") and not (ROOT / place).is_dir():
        place = place.removeprefix("docs/")
    elif mark:
        return str(link[0])
    else:
        return text if text.strip("`") == place else f"{text} (`{place}`)"
    return f"{mark}[{text}]({place}{hash_mark}{anchor})"

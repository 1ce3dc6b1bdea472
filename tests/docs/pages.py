"""Parse Markdown pages into fenced blocks, links and headings."""

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CHANGELOG.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")))

_FENCE = re.compile(r"^ {0,3}(`{3,})(.*)$")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$")
_LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+(?:\([^()\s]*\)[^()\s]*)?)\)|(?:src|href)=\"([^\"]+)\"")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its tags and its text."""

    page: str
    line: int
    language: str
    tags: dict[str, str]
    text: str

    @property
    def place(self) -> str:
        """Where the block starts, as page and line."""
        return f"{self.page}:{self.line}"


@dataclass
class Page:
    """One Markdown page."""

    name: str
    blocks: list[Block] = field(default_factory=list)
    prose: list[tuple[int, str]] = field(default_factory=list)
    """Lines outside fences, with their numbers."""

    @property
    def text(self) -> str:
        """The whole page."""
        return (ROOT / self.name).read_text()

    @property
    def anchors(self) -> set[str]:
        """The anchors that GitHub derives from the headings. Repeated ones get a number."""
        counts: dict[str, int] = {}
        anchors = set()
        for _, line in self.prose:
            if heading := _HEADING.match(line):
                anchor = slug(heading[1])
                seen = counts.get(anchor, 0)
                counts[anchor] = seen + 1
                anchors.add(f"{anchor}-{seen}" if seen else anchor)
        return anchors

    @property
    def links(self) -> list[tuple[int, str]]:
        """The targets of links and pictures outside code spans, with their line numbers."""
        numbers = [number for number, _ in self.prose]
        text = "\n".join(re.sub(r"`[^`]*`", "", line) for _, line in self.prose)
        return [
            (numbers[text.count("\n", 0, link.start())], link[1] or link[2]) for link in _LINK.finditer(text)
        ]


def slug(heading: str) -> str:
    """Return the anchor of a heading.

    >>> slug("Where a message may go"), slug("`lethe up`, and δ"), slug("[Models](models.md)")
    ('where-a-message-may-go', 'lethe-up-and-δ', 'models')
    """
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def read(name: str) -> Page:
    """Parse a page, given its path from the root of the repository."""
    page, fence, start, inside = Page(name), None, 0, []  # type: ignore[var-annotated]
    for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
        matched = _FENCE.match(line)
        if fence is None and matched:
            fence, start, inside = matched, number, []
        elif fence is not None and matched and matched[1] >= fence[1] and not matched[2].strip():
            page.blocks.append(_block(name, start, fence[2], inside))
            fence = None
        elif fence is not None:
            inside.append(line)
        else:
            page.prose.append((number, line))
    assert fence is None, f"{name}:{start}: the block is not closed"
    return page


def _block(page: str, line: int, info: str, inside: list[str]) -> Block:
    language, *tags = shlex.split(info) or [""]
    pairs = {name: value for name, _, value in (tag.partition("=") for tag in tags)}
    return Block(page, line, language, pairs, "".join(f"{text}\n" for text in inside))

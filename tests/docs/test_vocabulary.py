"""The glossary defines every term of the project, and the prose avoids phrases that confuse readers."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, read

TERMS = (
    "anchor",
    "assurance",
    "attempt",
    "audit log",
    "baseline",
    "batch",
    "budget",
    "certificate",
    "certificate log",
    "certified distance",
    "class drift",
    "commitment",
    "deletion set",
    "deployment key",
    "dispatcher",
    "draw",
    "erasure",
    "evidence",
    "fencing token",
    "gateway",
    "heartbeat",
    "hold",
    "holdout",
    "job",
    "ledger",
    "lifetime",
    "logging",
    "manifest",
    "no data held",
    "outbox",
    "pack",
    "policy",
    "rank",
    "receipt",
    "refusal",
    "rendezvous",
    "replay audit",
    "rollback guard",
    "salt",
    "seal",
    "shift",
    "signing key",
    "subject",
    "suppression list",
    "target distance",
    "task",
    "tenant",
    "tree head",
    "version",
    "weights",
    "worker",
    "δ",
    "ε",
    "λ",
    "σ",
    "Δ",
    "Δ*",
)
"""Every word that has one meaning in this project."""

WRONG_INSTALL = ("pip install lethe", "pip install 'lethe", 'pip install "lethe', "lethe[", "`pip install .`")
"""The name `lethe` on PyPI belongs to an unrelated library, and the service needs ./sdk beside it."""

UNIDIOMATIC = (
    "as far as they were run",
    "as it was asked for",
    "broken off",
    "by its own word",
    "came of it",
    "came to nothing",
    "can hardly be told",
    "comes of it",
    "for ever",
    "for so long;",
    "goes on where it was",
    "gone from:",
    "is looked at",
    "it must be told",
    "mend the",
    "mended",
    "nobody would notice before",
    "noised checkpoint",
    "not there any more",
    "nothing further is to be done",
    "shall not",
    "so many at a time",
    "wait for company",
    "whoever comes after",
    "written anew",
)
"""Phrases that read like a translation or a riddle. Say what happens instead."""

SEARCHED = (
    *(
        "docs",
        "sdk",
        "app",
        "worker",
        "migrations",
        "bench",
        "examples",
        "deploy",
        "README.md",
        "CHANGELOG.md",
    ),
    *("Dockerfile", "Makefile", "docker-compose.yml", "pyproject.toml"),
)
SUFFIXES = {"", ".md", ".py", ".html", ".js", ".svg", ".toml", ".yml", ".yaml"}


def sources() -> Iterator[Path]:
    """Yield every file whose text people read."""
    for name in SEARCHED:
        path = ROOT / name
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        yield from (
            file
            for file in files
            if file.is_file() and file.suffix in SUFFIXES and ".egg-info" not in str(file)
        )


def occurrences(phrase: str) -> list[str]:
    """Return the places where a phrase occurs, ignoring case and line breaks."""
    words = r"\s+".join(map(re.escape, phrase.split(" ")))
    pattern = re.compile(rf"(?<!\w){words}" + (r"(?!\w)" if phrase[-1].isalpha() else ""), re.IGNORECASE)
    return [
        f"{file.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}"
        for file in sources()
        for text in (file.read_text(),)
        for match in pattern.finditer(text)
    ]


def defined_terms() -> set[str]:
    """Return the bold terms of the glossary, without explanations in brackets."""
    rows = re.findall(r"^\| \*\*(.+?)\*\* \|", read("docs/glossary.md").text, re.MULTILINE)
    terms = (re.sub(r" \(.*\)", "", term) for row in rows for term in row.split(", "))
    return {term.replace("\\", "") for term in terms}


@pytest.mark.parametrize("term", TERMS)
def test_the_glossary_defines_the_term(term: str) -> None:
    assert term in defined_terms()


def test_every_definition_is_one_to_three_sentences() -> None:
    rows = re.findall(r"^\| \*\*(.+?)\*\* \| (.+) \|$", read("docs/glossary.md").text, re.MULTILINE)
    assert [term for term, meaning in rows if not 1 <= len(re.findall(r"[.!?](?: |$)", meaning)) <= 3] == []


def test_phrases_are_found_across_line_breaks_and_only_as_whole_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text("recommended for every reader\nfor\nEver, lethe[s3]\n")
    monkeypatch.setattr("tests.docs.test_vocabulary.ROOT", tmp_path)
    monkeypatch.setattr("tests.docs.test_vocabulary.SEARCHED", ("page.md",))
    assert [occurrences(phrase) for phrase in ("for ever", "mended", "lethe[")] == [
        ["page.md:2"],
        [],
        ["page.md:3"],
    ]


@pytest.mark.parametrize("phrase", WRONG_INSTALL)
def test_no_page_or_message_installs_the_unrelated_package(phrase: str) -> None:
    assert occurrences(phrase) == []


@pytest.mark.parametrize("phrase", UNIDIOMATIC)
def test_the_prose_avoids_the_phrase(phrase: str) -> None:
    assert occurrences(phrase) == []

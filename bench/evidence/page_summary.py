"""The first section of the page: what a user gets, one line per data set."""

from collections.abc import Iterator
from statistics import fmean
from typing import Any

from bench.evidence.markdown import Report, number, points, table

PAPER_F1 = {"MNIST": 94.65, "CIFAR-10": 73.64}
"""F1 of the paper's unlearned models after an erasure of this size and bias: an MLP and an AllCNN."""

_HEAD = (
    "data, model",
    "rows erased",
    "F1 before",
    "F1 retrained",
    "**F1 released**",
    "the paper's F1",
    "guarantee",
    "seconds to unlearn",
    "seconds to retrain",
)
_NEEDED = ("title", "rows", "erased", "f1_before", "f1_retrained", "f1_released", "assurance")
Row = tuple[str, ...]
NO_CERTIFICATE = "no certificate"

_LEAD = """One line per data set. A biased group of people is erased, with classes or groups that are hit much
harder than others. The released model, with its noise and its certificate, is compared with a model that is
retrained without these people. ε = 1 and δ = 1e-5 throughout."""

_NOTES = """**The paper's F1** is what it prints for its own unlearned network on the same data, after an
erasure of this size and bias. The comparison is not like for like. The paper trains its networks from
scratch. Our lines that are `proved` have a convex head on a public representation, and the backbone for
CIFAR-10 was trained on other images. Our small networks see a few thousand rows only.

**The guarantee** is `proved` if nothing in it is estimated, and `conditional` if it rests on assumptions
about the network that the certificate lists.

**Seconds** are those of the numerical work alone, on the machines listed [at the end](#where-and-when).
Where unlearning takes as long as retraining, or longer, you gain the certificate and not the time."""


def summary(cases: list[Report | None], networks: list[Report]) -> str:
    """Return the section, or nothing if nothing was measured.

    `cases` are results with one entry per data set, such as those of `python -m bench representations`. An
    entry is shown if it has a title, the scores and the assurance. `networks` are comparisons of methods.
    """
    rows = [_case(entry) for report in cases for entry in _entries(report)]
    rows += [_network(report) for report in networks if report["tier"] == "conditional"]
    if not rows:
        return ""
    return "## What you get\n\n" + "\n\n".join((_LEAD + _largest_gap(rows), table(_HEAD, rows), _NOTES))


def _largest_gap(rows: list[Row]) -> str:
    r"""Say how far released and retrained models are apart at most.

    >>> _largest_gap([("", "", "", "98.50", "**98.48**"), ("", "", "", "60.28", "**60.31**")])
    '\n**In every line, the two score within 0.03 points of each other.**'
    """
    pairs = [(row[3], row[4].strip("*")) for row in rows]
    if any(released == NO_CERTIFICATE for _, released in pairs):
        return ""
    gap = max(abs(float(released) - float(retrained)) for retrained, released in pairs)
    return f"\n**In every line, the two score within {gap:.2f} points of each other.**"


def headline(cases: list[Report | None]) -> str:
    """Return the table of the README: the scores of each data set in `cases`, and the guarantee."""
    head = ("data, model", "rows erased", "F1 before", "F1 retrained", "F1 released", "guarantee")
    rows = [_case(entry) for report in cases for entry in _entries(report)]
    return table(head, [(*row[:5], row[6]) for row in rows])


def _entries(report: Report | None) -> Iterator[dict[str, Any]]:
    for entry in (report or {}).values():
        if isinstance(entry, dict) and all(name in entry for name in _NEEDED):
            yield entry


def _case(entry: dict[str, Any]) -> Row:
    return (
        entry["title"],
        _erased(entry["erased"], entry["rows"]),
        points(entry["f1_before"]),
        points(entry["f1_retrained"]),
        f"**{points(entry['f1_released'])}**",
        _paper(entry["title"]),
        f"`{entry['assurance']}`",
        number(entry.get("unlearn_seconds")),
        number(entry.get("retrain_seconds")),
    )


def _network(report: Report) -> Row:
    runs = report["runs"]
    ours = [run["methods"]["tr"] for run in runs]
    released = [one["released"]["f1"] for one in ours if one["released"] is not None]
    return (
        f"{report['name']}, {report['dimension']:,} parameters",
        _erased(round(fmean(run["erased"] for run in runs)), report["rows"]),
        points(fmean(run["original"]["f1"] for run in runs)),
        points(fmean(run["retrain"]["f1"] for run in runs)),
        f"**{points(fmean(released))}**" if released else NO_CERTIFICATE,
        _paper(report["name"]),
        f"`{report['tier']}`",
        number(fmean(one["seconds"] for one in ours)),
        number(fmean(run["retrain"]["seconds"] for run in runs)),
    )


def _erased(erased: int, rows: int) -> str:
    return f"{erased:,} of {rows:,}"


def _paper(title: str) -> str:
    """Return the paper's figure for the data set that a title starts with.

    >>> _paper("MNIST, training-free transform"), _paper("Fashion-MNIST")
    ('94.65', '–')
    """
    return next((points(score) for name, score in PAPER_F1.items() if title.startswith(name)), "–")

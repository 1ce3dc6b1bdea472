"""The stored files that the record of a draw refers to."""

from collections.abc import Iterator
from typing import Any

from app.core.storage import Stored

_FIELDS = frozenset(Stored.__dataclass_fields__)


def files_of_draft(draft: Any) -> Iterator[Stored]:
    """Yield the files in `DrawRecord.draft`: the weights, the rewritten parts and their features files.

    Whatever is written in the form of a stored file counts as one, wherever in the draft it is. So a file
    that a worker adds to the draft is backed up and kept from the orphan sweep.

    >>> part = {"path": "a", "sha256": "00", "size": 1}
    >>> [file.path for file in files_of_draft({"swap": {"rewritten": [{"stored": part, "rows": 3}]}})]
    ['a']
    """
    if isinstance(draft, dict):
        if draft.keys() == _FIELDS:
            yield Stored(**draft)
        for value in draft.values():
            yield from files_of_draft(value)
    elif isinstance(draft, list):
        for value in draft:
            yield from files_of_draft(value)

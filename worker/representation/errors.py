"""Why a graph or a row is refused. The messages never contain anything of a row."""

from collections.abc import Iterable


class RepresentationError(Exception):
    """The graph, the tokenizer or the declaration cannot be used. `reasons` tells the model's owner why."""

    def __init__(self, reasons: Iterable[str]) -> None:
        self.reasons = list(reasons)
        super().__init__("; ".join(self.reasons))


class RowError(Exception):
    """One row cannot be turned into features. `row` is its index in the array that was passed in."""

    def __init__(self, row: int, reason: str) -> None:
        self.row = row
        self.reason = reason
        super().__init__(f"row {row}: {reason}")


def one_line(message: str) -> str:
    """Return a library's message on one line.

    >>> one_line("input 'x' of node: \\n name: project OpType: MatMul\\n")
    "input 'x' of node: name: project OpType: MatMul"
    """
    return " ".join(message.split())


def printable(text: str, length: int = 200) -> str:
    """Return the start of a text from a file, with everything but printable ASCII replaced.

    >>> printable("Conv\\x1b[31m"), printable("a" * 9, 4)
    ('Conv?[31m', 'aaa…')
    """
    plain = "".join(letter if " " <= letter <= "~" else "?" for letter in text[: length + 1])
    return plain if len(plain) <= length else plain[: length - 1] + "…"

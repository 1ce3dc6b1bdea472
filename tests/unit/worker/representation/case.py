"""One bad input, and what must be said about it."""

from collections.abc import Callable
from dataclasses import dataclass

from worker.representation.errors import RepresentationError, RowError


@dataclass(frozen=True)
class Case:
    """An attempt that must be refused with exactly this error."""

    name: str
    attempt: Callable[[], object]
    error: type[RepresentationError] | type[RowError]
    reason: str = ""
    """What the reason contains."""


SECRET = "Xq7Zk"
"""Rows of the cases contain this. No reason may."""


def reasons_of(problem: RepresentationError | RowError) -> list[str]:
    """Return the sentences that tell people why an input is refused."""
    return problem.reasons if isinstance(problem, RepresentationError) else [problem.reason]


def assert_clear(reasons: list[str]) -> None:
    """Check that every reason is one readable sentence."""
    assert reasons
    for reason in reasons:
        assert reason == reason.strip()
        assert 10 <= len(reason) <= 500
        assert reason.isprintable()
        assert "Traceback" not in reason
        assert "object at 0x" not in reason
        assert SECRET not in reason

"""Exit statuses for scripts, and what a failed command tells its user to do next."""

from enum import IntEnum
from typing import Any

from lethe.client import errors
from lethe.integrations.errors import BadTable, MissingLibrary


class ExitStatus(IntEnum):
    """The exit status of a `lethe` command."""

    DONE = 0
    """The command succeeded, and the answer is yes."""
    NO = 1
    """The answer is no: not verified, failed, held, or refused because of the current state."""
    USAGE = 2
    """The command line or the input is invalid."""
    UNAVAILABLE = 3
    """The service cannot be reached, or it failed."""
    DENIED = 4
    """The API key is missing, unknown, or lacks a scope."""
    NOT_FOUND = 5
    """The object does not exist, or no longer exists."""
    TIMED_OUT = 6
    """The work did not finish within --timeout. It continues on the server."""
    INTERRUPTED = 130
    """The user pressed Ctrl-C. Work on the server continues."""


_STATUS: tuple[tuple[type[errors.LetheError], ExitStatus], ...] = (
    (errors.Unauthorised, ExitStatus.DENIED),
    (errors.Forbidden, ExitStatus.DENIED),
    (errors.NotFound, ExitStatus.NOT_FOUND),
    (errors.Gone, ExitStatus.NOT_FOUND),
    (errors.Invalid, ExitStatus.USAGE),
    (errors.ReleaseUnavailable, ExitStatus.USAGE),
    (BadTable, ExitStatus.USAGE),
    (MissingLibrary, ExitStatus.USAGE),
    (errors.Conflict, ExitStatus.NO),
    (errors.RateLimited, ExitStatus.UNAVAILABLE),
    (errors.ServerError, ExitStatus.UNAVAILABLE),
    (errors.Unreachable, ExitStatus.UNAVAILABLE),
    (errors.BadAnswer, ExitStatus.UNAVAILABLE),
    (errors.TimedOut, ExitStatus.TIMED_OUT),
)
_WITH_A_DRAW = ("quality_gate", "unpublished")  # reasons for a hold after the noise was drawn
_NEXT_STEP: tuple[tuple[type[errors.LetheError], str], ...] = (
    (
        errors.Unauthorised,
        "Run `lethe login`, or set LETHE_API_KEY. To create a key, run `lethe key create` on the server.",
    ),
    (
        errors.Forbidden,
        "Use a key with that scope. To create one, run `lethe key create NAME --scope SCOPE` on the server.",
    ),
    (errors.NotFound, "Run `lethe model list` or `lethe status` to see what exists."),
    (errors.RateLimited, "Wait a moment and try again."),
    (errors.ServerError, "Try again. If it fails again, look for this request in the gateway's log."),
    (
        errors.Unreachable,
        "Check that it is running (`lethe up` starts it on this machine), and check LETHE_URL or --url.",
    ),
    (errors.BadAnswer, "Check that LETHE_URL points to a Lethe service of the same version."),
    (errors.TimedOut, "Run `lethe watch` to keep waiting."),
    (
        errors.DownloadCorrupt,
        "Try again. If it fails again, something between this machine and the service alters files.",
    ),
    (errors.ModelRejected, "Fix the files or the manifest, then run `lethe model register` again."),
)


def status_of(error: errors.LetheError) -> ExitStatus:
    """Return the exit status for an error."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), ExitStatus.NO)


def next_step(error: errors.LetheError) -> str:
    """Return what the user can do about an error, or an empty string."""
    if isinstance(error, errors.BatchHeld):
        return _decision(error)
    return next((step for kind, step in _NEXT_STEP if isinstance(error, kind)), "")


def _decision(held: errors.BatchHeld) -> str:
    """Return the commands that decide about a batch on hold. With a draw, a retry is refused."""
    if held.reason in _WITH_A_DRAW:
        return (
            f"To publish its draw as it is, run `lethe batch approve {held.batch_id}`. To destroy the draw, "
            f"run `lethe batch discard {held.batch_id}`."
        )
    return f"To try it again under the model's current policy, run `lethe batch retry {held.batch_id}`."


def problem_document(error: errors.LetheError) -> dict[str, Any]:
    """Return the server's problem document. Errors of the client get a document of the same shape."""
    if isinstance(error, errors.ApiError):
        return error.problem
    name = "".join("-" + c.lower() if c.isupper() else c for c in type(error).__name__)
    text = str(error)
    if isinstance(error, errors.Unreachable):
        text = f"the service cannot be reached ({error})"
    return {"type": f"urn:lethe:client:{name.lstrip('-')}", "title": text}

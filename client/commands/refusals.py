"""What a refusal means to whoever typed the command: an exit status, and what to do next."""

from typing import Any

from client import errors
from client.commands.session import MISSING, NO, REFUSED, TOO_LATE, UNREACHABLE, USAGE

_CODES: tuple[tuple[type[errors.LetheError], int], ...] = (
    (errors.Unauthorised, REFUSED),
    (errors.Forbidden, REFUSED),
    (errors.NotFound, MISSING),
    (errors.Gone, MISSING),
    (errors.Invalid, USAGE),
    (errors.Conflict, NO),
    (errors.RateLimited, UNREACHABLE),
    (errors.ServerError, UNREACHABLE),
    (errors.Unreachable, UNREACHABLE),
    (errors.BadAnswer, UNREACHABLE),
    (errors.TimedOut, TOO_LATE),
)
_STEPS: tuple[tuple[type[errors.LetheError], str], ...] = (
    (errors.Unauthorised, "Set LETHE_API_KEY; on the server `lethe key create` makes a key."),
    (errors.Forbidden, "Use a key with that scope: `lethe key create NAME --scope SCOPE` on the server."),
    (errors.NotFound, "`lethe model list` and `lethe status` show what there is."),
    (errors.RateLimited, "Wait a moment and try again."),
    (errors.ServerError, "Try again; the gateway's log has the request."),
    (errors.Unreachable, "Is it running? `lethe up` starts it here; LETHE_URL or --url says where it is."),
    (errors.BadAnswer, "Does LETHE_URL name a Lethe service of this version?"),
    (errors.TimedOut, "`lethe watch` goes on waiting."),
    (
        errors.DownloadCorrupt,
        "Try again; if it stays so, something between here and the service alters files.",
    ),
    (errors.ModelRejected, "Mend the files or the manifest and run `lethe model register` again."),
    (errors.BatchHeld, "`lethe batch approve`, `discard` or `retry` decides."),
)


def code_of(problem: errors.LetheError) -> int:
    return next((code for kind, code in _CODES if isinstance(problem, kind)), NO)


def next_step(problem: errors.LetheError) -> str:
    return next((step for kind, step in _STEPS if isinstance(problem, kind)), "")


def document(problem: errors.LetheError) -> dict[str, Any]:
    """The server's problem document; of anything else, the same shape."""
    if isinstance(problem, errors.ApiError):
        return problem.problem
    words = "".join("-" + c.lower() if c.isupper() else c for c in type(problem).__name__)
    text = str(problem)
    if isinstance(problem, errors.Unreachable):
        text = f"the service cannot be reached ({problem})"
    return {"type": f"urn:lethe:client:{words.lstrip('-')}", "title": text}

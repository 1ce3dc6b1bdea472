"""`lethe doctor`: what is wrong with a service or with this machine, and what to do about it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lethe.cli.context import CommandContext, command
from lethe.cli.exit_status import ExitStatus, next_step
from lethe.cli.tables import count, table

if TYPE_CHECKING:
    import httpx

ENTRY_POINT_GROUP = "lethe.checks"
LARGEST_SKEW = timedelta(seconds=30)
_MARKS = {"ok": "✓", "warning": "!", "problem": "✗"}
_REMEDIES = {
    "database": "Run `lethe doctor` on the server, which says more.",
    "redis": "Check that the Redis or Valkey server of the service is running.",
    "storage": "Check that the service can write to its storage.",
    "worker": "Start a worker on the server: `lethe worker`.",
}


@dataclass(frozen=True)
class Finding:
    """The outcome of one check; `state` is `ok`, `warning` or `problem`."""

    check: str
    state: str
    detail: str
    remedy: str = ""


@command
def doctor(
    context: CommandContext,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Check the installation in this folder. Default: LETHE_DATA_DIR, or lethe-data in the "
            "current folder.",
        ),
    ] = None,
) -> int | None:
    """Check this machine and the service, and say what to do about each problem.

    On the machine of an installation, this checks settings, database, queue, storage, worker, clock, keys
    and disk. With --url or LETHE_URL, or after `lethe login`, it also checks that service, and works without
    an installation. Nothing is changed. The exit status is 1 if there is a problem.
    """
    url = _configured_url(context)
    findings = _check_installation(data_dir, required=url is None or data_dir is not None)
    if url is not None or not findings:
        findings += _check_service(context)
    rows = [(_MARKS.get(f.state, "?"), f.check, f.detail, f.remedy) for f in findings]
    problems = [finding for finding in findings if finding.state == "problem"]
    verdict = (
        "Everything is fine." if not problems else f"{count(len(problems), 'problem', 'problems')} found."
    )
    document = {"healthy": not problems, "findings": [vars(finding) for finding in findings]}
    context.show(document, table(("", "Check", "Result", "What to do"), rows), verdict)
    return ExitStatus.NO if problems else None


def _configured_url(context: CommandContext) -> str | None:
    """Return the address that an option, the environment or a stored login names."""
    from lethe.client.stored_login import find_access

    return find_access(*context.access)[0]


def _check_installation(data_dir: Path | None, *, required: bool) -> list[Finding]:
    """Let the installed service check this machine. Without an installed service, return nothing."""
    from importlib.metadata import entry_points

    findings: list[Finding] = []
    for entry_point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            examine: Callable[..., list[Any]] = entry_point.load()
        except ModuleNotFoundError as error:
            findings.append(
                Finding(
                    "installation",
                    "problem",
                    f"the service is installed without the package {error.name}",
                    "Run `pip install ./sdk .` in a checkout of the Lethe repository.",
                )
            )
            continue
        findings += [
            Finding(f.check, str(f.state), f.detail, f.remedy) for f in examine(data_dir, required=required)
        ]
    return findings


def _check_service(context: CommandContext) -> list[Finding]:
    """Check a service from outside: its address, clock, parts, the API key and the issuer's keys."""
    from lethe.client.errors import LetheError

    http = context.api.http
    address = str(http.base_url).rstrip("/")
    try:
        answer = _get(http, "/readyz")
    except LetheError as error:
        return [Finding("service", "problem", f"it cannot be reached: {error}", next_step(error))]
    parts = _parts(answer)
    if parts is None:
        return [
            Finding(
                "service",
                "problem",
                f"{address} answers, but it is not Lethe",
                "Check LETHE_URL or --url.",
            )
        ]
    return [
        Finding("service", "ok", f"{address} answers"),
        _check_clock(answer),
        *_describe_parts(parts),
        _check_key(context),
        _check_issuer_keys(context),
    ]


def _get(http: "httpx.Client", path: str) -> "httpx.Response":
    import httpx

    from lethe.client.transport import unreachable

    try:
        return http.get(path)
    except httpx.TransportError as error:
        raise unreachable(error) from None


def _parts(answer: "httpx.Response") -> dict[str, str] | None:
    try:
        parts = answer.json()["parts"]
    except (ValueError, KeyError, TypeError):
        return None
    return {str(name): str(state) for name, state in parts.items()} if isinstance(parts, dict) else None


def _describe_parts(parts: dict[str, str]) -> Iterator[Finding]:
    for name, state in parts.items():
        label = "queue" if name == "redis" else name
        if state == "ok":
            yield Finding(f"service: {label}", "ok", "ready")
        else:
            yield Finding(f"service: {label}", "problem", state, _REMEDIES.get(name, ""))


def _check_clock(answer: "httpx.Response") -> Finding:
    """Compare this machine's clock with the service's. Deadlines and receipts depend on it."""
    try:
        theirs = parsedate_to_datetime(answer.headers["date"])
    except (KeyError, ValueError, TypeError):
        return Finding("clock", "warning", "the service does not say what time it is")
    apart = abs(datetime.now(UTC) - theirs)
    if apart > LARGEST_SKEW:
        return Finding(
            "clock",
            "problem",
            f"the clocks of this machine and of the service differ by {apart.total_seconds():.0f} s",
            "Synchronise both clocks, for example with chrony.",
        )
    return Finding("clock", "ok", "agrees with the clock of the service")


def _check_key(context: CommandContext) -> Finding:
    from lethe.client.errors import LetheError, NotFound

    try:
        identity = context.api.keys.whoami()
    except NotFound:
        return Finding("API key", "warning", "the service is too old to say what the key may do")
    except LetheError as error:
        return Finding("API key", "problem", str(error).rstrip("."), next_step(error))
    return Finding(
        "API key", "ok", f"{identity.key_name}, tenant {identity.tenant}: {', '.join(identity.scopes)}"
    )


def _check_issuer_keys(context: CommandContext) -> Finding:
    """Check that the public keys, which verification needs, can be fetched."""
    from lethe.certificate.errors import UnusableInput
    from lethe.client.errors import Forbidden, LetheError, Unauthorised

    try:
        context.api.log.keys()
    except (Forbidden, Unauthorised):
        return Finding("issuer's keys", "warning", "this API key may not fetch them")
    except UnusableInput:
        return Finding("issuer's keys", "problem", "they cannot be read", "Use a client of the same version.")
    except LetheError as error:
        return Finding("issuer's keys", "problem", str(error).rstrip("."), next_step(error))
    return Finding("issuer's keys", "ok", "can be fetched")

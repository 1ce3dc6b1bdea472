"""`lethe audit-log`: who did what, as a list, a file or a verification."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lethe.cli.context import CommandContext, command
from lethe.cli.exit_status import ExitStatus
from lethe.cli.tables import count, table

if TYPE_CHECKING:
    from lethe.certificate.audit_log import AuditLogReport

audit_log = typer.Typer(
    help="See who did what, and verify that nobody changed the record.", no_args_is_help=True
)


@audit_log.command("list")
@command
def list_entries(
    context: CommandContext,
    action: Annotated[
        str | None, typer.Option(metavar="ACTION", help="Only this action, such as batch.approved.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="NUMBER", help="The most entries to list.")] = 50,
) -> None:
    """List the newest entries of the audit log."""
    entries = list(context.api.audit_log.list(action=action, limit=limit))
    rows = [
        (e.sequence, f"{e.at:%Y-%m-%d %H:%M:%S}", e.actor.name, e.action, e.target, e.details)
        for e in entries
    ]
    columns = ("Entry", "Time (UTC)", "Who", "Action", "Target", "Details")
    context.show(entries, table(columns, rows) if entries else "The audit log has no such entries.")


@audit_log.command("export")
@command
def export(
    context: CommandContext,
    to: Annotated[Path, typer.Option("--to", dir_okay=False, metavar="FILE", help="The file to write.")],
    format: Annotated[  # noqa: A002
        Literal["ndjson", "csv"],
        typer.Option("--format", metavar="FORMAT", help="ndjson, which can be verified, or csv."),
    ] = "ndjson",
) -> None:
    """Save the whole audit log in a file, oldest entry first."""
    context.api.audit_log.export(to, format)
    context.show({"file": to}, f"Saved the audit log in {to}.")
    if format == "ndjson":
        context.note(f"To verify it, run: lethe audit-log verify {to}")


@audit_log.command("verify")
@command
def verify(
    context: CommandContext,
    file: Annotated[
        Path | None,
        typer.Argument(dir_okay=False, metavar="FILE", help="An export as NDJSON. Default: fetch it now."),
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The issuer's keys, obtained from the issuer.")
    ] = None,
) -> int | None:
    """Verify the audit log: its hash chain, and the heads of it in the certificate log.

    The exit status is 1 if an entry was changed, removed or inserted. The signed heads are fetched from the
    service.
    """
    from lethe.certificate.audit_log import AuditLogInvalid, read_entries, verify_audit_log
    from lethe.certificate.keys import KeySet

    trusted = None if keys is None else KeySet.read(keys.read_bytes(), "keys")
    with TemporaryDirectory(prefix="lethe-audit-log-") as folder:
        source = file or context.api.audit_log.export(Path(folder) / "audit-log.ndjson")
        try:
            with source.open("rb") as lines:
                heads = context.api.audit_log.heads()
                report = verify_audit_log(read_entries(lines), heads, trusted)
        except AuditLogInvalid as problem:
            context.show({"verified": False, "problem": str(problem)}, f"Not verified: {problem}.")
            return ExitStatus.NO
    context.show(
        {"verified": True, "entries": report.entries, "covered": report.covered, "heads": report.heads},
        _describe(report),
    )
    if trusted is None:
        context.note("The keys came from the service itself. To check against keys you kept, pass --keys.")
    return None


def _describe(report: "AuditLogReport") -> str:
    entries = count(report.entries, "entry", "entries")
    if not report.heads:
        return f"Verified: {entries} in one chain. No head has been signed yet."
    heads = count(report.heads, "signed head", "signed heads")
    later = report.entries - report.covered
    rest = f" {count(later, 'entry', 'entries')} came after the newest one." if later else ""
    return f"Verified: {entries} in one chain, up to entry {report.covered - 1} under {heads}.{rest}"

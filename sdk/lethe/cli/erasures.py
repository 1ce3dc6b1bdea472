"""`lethe erase`, `lethe status`, `lethe watch`, `lethe receipts` and `lethe erasure`."""

import json
import os
import shlex
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID

import typer

from lethe.certificate.commitment import IDENTIFIER_RULE_IN_WORDS
from lethe.cli.batches import ON_HOLD, batch_details, decision_hint
from lethe.cli.context import CommandContext, Timeout, UsageError, command
from lethe.cli.drop import request_erasure, show_matches
from lethe.cli.exit_status import ExitStatus
from lethe.cli.ids import find_erasure, find_erasure_or_batch
from lethe.cli.progress import BatchProgress, batch_progress
from lethe.cli.tables import count, details, format_value, in_words, table
from lethe.cli.usage import IDENTIFIERS_ARE_NOT_ARGUMENTS

if TYPE_CHECKING:
    from lethe.client.responses import Batch, Erasure, Event

Models = Annotated[
    list[str] | None,
    typer.Option("--model", metavar="NAME", help="Erase from this model only. Repeat it for more models."),
]
ErasureId = Annotated[str, typer.Argument(metavar="ID", help="ID of the erasure, or its first characters.")]
State = Annotated[str | None, typer.Option(metavar="STATE", help="Only erasures with a task in this state.")]
OfModel = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="Only erasures from this model.")
]
Reference = Annotated[str | None, typer.Option(metavar="CASE", help="Only erasures with this case number.")]
Overdue = Annotated[bool, typer.Option("--overdue", help="Only open erasures past their deadline.")]
Most = Annotated[
    int, typer.Option("--most", metavar="NUMBER", min=1, help="List at most this many erasures.")
]
erasure = typer.Typer(help="List erasures, inspect them, extend or withdraw them.", no_args_is_help=True)


@command
def erase(
    context: CommandContext,
    subjects: Annotated[
        Path,
        typer.Argument(
            allow_dash=True,
            metavar="FILE",
            help="Identifiers, one per line; a .csv file with a column subject_id; or an .ndjson file. "
            "Use - for standard input.",
        ),
    ],
    models: Models = None,
    reference: Annotated[str | None, typer.Option(metavar="CASE", help="Your own case number.")] = None,
    reason: Annotated[str | None, typer.Option(metavar="REASON", help="Why these people are erased.")] = None,
    jurisdiction: Annotated[
        str | None, typer.Option(metavar="LAW", help="The applicable law, for example GDPR.")
    ] = None,
    received_at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="When you received the request, as 2026-01-31T09:00+01:00. Default: now."
        ),
    ] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Runs with the same key create a single erasure."),
    ] = None,
    flush: Annotated[
        bool, typer.Option("--flush", help="Seal a batch now instead of waiting until it is full.")
    ] = False,
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway", help="With --flush: even if there are fewer people than the policy's smallest batch."
        ),
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the erasure has ended.")] = False,
    timeout: Timeout = None,
) -> int | None:
    """Erase people from models.

    Identifiers are read from a file or standard input, never from the command line, and are never printed.
    Without --flush, requests wait until the batch fills up or its age limit passes.
    """
    request: dict[str, Any] = {
        "models": models or None,
        "reference": reference,
        "reason": reason,
        "jurisdiction": jurisdiction,
        "received_at": _parse_time(received_at),
        "idempotency_key": idempotency_key,
    }
    erasure = _create(context, subjects, request)
    for warning in erasure.warnings:
        context.note(warning)
    if flush and not _flush(context, erasure, force=anyway):
        context.show(erasure, *_erasure_tables(erasure))
        return ExitStatus.NO
    if wait:
        context.note(f"Created the erasure {erasure.id}.")
        return _watch_erasure(context, erasure.id, timeout)
    context.show(erasure, *_erasure_tables(erasure))
    context.note(f"To follow it, run: lethe watch {erasure.id}")
    return None


@command
def status(
    context: CommandContext,
    erasure_id: Annotated[
        str | None,
        typer.Argument(
            metavar="ID", help="ID of an erasure, or its first characters. Without it, list the newest."
        ),
    ] = None,
    state: State = None,
    model: OfModel = None,
    reference: Reference = None,
    overdue: Overdue = False,
    most: Most = 20,
) -> int | None:
    """Show one erasure, or list the newest.

    The exit status is 1 if you ask for one erasure and it has failed.
    """
    if erasure_id is not None:
        return _show_erasure(context, erasure_id)
    filters: dict[str, Any] = {"state": state, "model": model, "reference": reference, "overdue": overdue}
    _list_erasures(context, filters, most)
    return None


@erasure.command("list")
@command
def list_erasures(
    context: CommandContext,
    state: State = None,
    model: OfModel = None,
    reference: Reference = None,
    overdue: Overdue = False,
    most: Most = 20,
) -> None:
    """List erasures, newest first."""
    filters: dict[str, Any] = {"state": state, "model": model, "reference": reference, "overdue": overdue}
    _list_erasures(context, filters, most)


@erasure.command("show")
@command
def show(context: CommandContext, erasure_id: ErasureId) -> int | None:
    """Show an erasure. The exit status is 1 if it has failed."""
    return _show_erasure(context, erasure_id)


@erasure.command("extend")
@command
def extend(
    context: CommandContext,
    erasure_id: ErasureId,
    reason: Annotated[
        str,
        typer.Option(metavar="REASON", help="Why more time is needed. The data subject has to be told."),
    ],
) -> None:
    """Extend the deadline of an erasure by two months. This is possible once."""
    extended = context.api.erasures.extend(find_erasure(context, erasure_id), reason)
    context.show(extended, *_erasure_tables(extended))


@erasure.command("import-drop")
@command
def import_drop(
    context: CommandContext,
    source: Annotated[
        Path, typer.Argument(metavar="LIST", help="A consumer deletion list, as DROP delivers it (CSV).")
    ],
    people: Annotated[
        Path,
        typer.Option(metavar="FILE", help="Your people, as CSV: subject_id, and email or phone."),
    ],
    kind: Annotated[
        Literal["email", "phone"] | None,
        typer.Option("--list", metavar="TYPE", help="email or phone. Default: from the name of the list."),
    ] = None,
    models: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="NAME", help="Erase from this model only. Repeat it for more."),
    ] = None,
    shared: Annotated[
        bool,
        typer.Option("--shared", help="Also erase people who share an identifier with someone else."),
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(dir_okay=False, metavar="FILE", help="Write what was matched, by work item, as CSV."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Match, but request nothing.")] = False,
) -> None:
    """Request the erasure of the people on a deletion list of California's DROP.

    The list holds hashes. Your people are hashed in the same way on this machine and compared. Only the
    matching subject_ids are sent to the service.
    """
    from lethe.client.drop import list_type, match_list, read_list, read_people, write_report

    kind = kind or list_type(source.name)
    if kind is None:
        raise UsageError("the name of the list does not say its type; pass --list email or --list phone")
    matches = match_list(read_list(source), read_people(people, kind))
    chosen = [match for match in matches if match.subjects and (shared or not match.shared)]
    subjects = list(dict.fromkeys(subject for match in chosen for subject in match.subjects))
    created = None if dry_run else request_erasure(context, subjects, models)
    if report is not None:
        write_report(report, matches, chosen, created.id if created else None)
    show_matches(context, matches, chosen, subjects, created)


@erasure.command("withdraw")
@command
def withdraw(
    context: CommandContext,
    erasure_id: ErasureId,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Withdraw the request for this model only. Default: for all."),
    ] = None,
    reason: Annotated[
        str | None, typer.Option(metavar="REASON", help="Why. It is shown with the erasure.")
    ] = None,
) -> None:
    """Withdraw an erasure from models that have not started it. Its identifiers are deleted at once."""
    withdrawn = context.api.erasures.withdraw(find_erasure(context, erasure_id), model=model, reason=reason)
    context.show(withdrawn, *_erasure_tables(withdrawn))


@command
def watch(
    context: CommandContext,
    watched: Annotated[
        str, typer.Argument(metavar="ID", help="ID of an erasure or a batch, or its first characters.")
    ],
    timeout: Timeout = None,
) -> int | None:
    """Follow an erasure or a batch until it ends.

    While the solver runs, you see the gradient norm ‖g‖, and the distance Δ to the retrained model on its way
    to the target Δ*. The exit status is 1 if the erasure or batch fails or is put on hold.
    """
    from lethe.client.responses import Batch

    found = find_erasure_or_batch(context, watched)
    if isinstance(found, Batch):
        return _watch_batch(context, found, timeout)
    return _watch_erasure(context, found.id, timeout)


@command
def receipts(
    context: CommandContext,
    erasure_id: ErasureId,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Only receipts of this model.")] = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", file_okay=False, metavar="FOLDER", help="Save each receipt in this folder."),
    ] = None,
    acknowledge: Annotated[
        bool,
        typer.Option(
            "--acknowledge", help="Confirm that you have the receipts. Their salts are then destroyed."
        ),
    ] = False,
) -> None:
    """Fetch the receipts for the erased people.

    People are numbered from 0, in the order of the request. After --acknowledge, nobody can fetch the
    receipts again.
    """
    found = find_erasure(context, erasure_id)
    items = list(context.api.erasures.receipts(found, model=model))
    if to is not None:
        to.mkdir(parents=True, exist_ok=True)
        for item in items:
            if item.receipt is not None:
                _save(to / f"{Path(item.model).name}-{item.ordinal}.json", json.dumps(item.receipt))
    rows = [(item.model, item.ordinal, in_words(item.outcome), item.certificate_id) for item in items]
    context.show(
        items,
        table(("Model", "Person", "Outcome", "Certificate"), rows)
        if items
        else "There are no receipts. They exist once a batch with this request is completed.",
    )
    if any(item.outcome == "not_in_training_set" for item in items):
        context.note(IDENTIFIER_RULE_IN_WORDS)
    if acknowledge:
        destroyed = context.api.erasures.acknowledge_receipts(found).destroyed
        context.note(f"{count(destroyed, 'receipt', 'receipts')} can no longer be fetched.")


def _show_erasure(context: CommandContext, erasure_id: str) -> int | None:
    found = context.api.erasures.get(find_erasure(context, erasure_id))
    context.show(found, *_erasure_tables(found))
    return ExitStatus.NO if found.state == "failed" else None


def _list_erasures(context: CommandContext, filters: dict[str, Any], most: int) -> None:
    matches = list(context.api.erasures.list(**filters, limit=most))
    rows = [
        (
            e.id,
            _state_in_words(e),
            e.subjects,
            e.reference,
            e.received_at,
            e.due_at,
            e.completed_at,
            describe_lateness(e.late_days, overdue=e.overdue),
        )
        for e in matches
    ]
    columns = ("Erasure", "State", "People", "Reference", "Received", "Due", "Completed", "")
    context.show(matches, table(columns, rows) if matches else "There are no erasures.")


def _create(context: CommandContext, source: Path, request: dict[str, Any]) -> "Erasure":
    from lethe.client.erasures import CSV, MOST_SUBJECTS, NDJSON, as_ndjson

    body = sys.stdin.buffer.read() if str(source) == "-" else _read_identifiers(source)
    media_types = {".csv": CSV, ".ndjson": NDJSON, ".jsonl": NDJSON}
    if (media_type := media_types.get(source.suffix.lower())) is not None:
        return context.api.erasures.bulk(body, media_type=media_type, **request)
    try:
        lines = [line.removesuffix("\r") for line in body.decode("utf-8-sig").split("\n")]
    except UnicodeDecodeError:
        raise UsageError("the identifiers are not text in UTF-8; save the file in that encoding") from None
    subjects = [line for line in lines if line.strip()]  # spaces are part of an identifier
    if not subjects:
        raise UsageError("the input contains no identifiers; write one per line")
    if len(subjects) > MOST_SUBJECTS:
        return context.api.erasures.bulk(as_ndjson(subjects), **request)
    return context.api.erasures.create(subjects, **request)


def _read_identifiers(source: Path) -> bytes:
    """Read a file of identifiers. A name without a file may be an identifier in the wrong place."""
    try:
        return source.read_bytes()
    except FileNotFoundError:
        if source.suffix or len(source.parts) > 1:
            raise
        raise UsageError(
            f"there is no file named {source}, and {IDENTIFIERS_ARE_NOT_ARGUMENTS}. "
            f"Run `echo {shlex.quote(str(source))} | lethe erase -`, or write one per line to a file"
        ) from None


def _flush(context: CommandContext, erasure: "Erasure", *, force: bool) -> bool:
    """Flush every model of the erasure. Return whether all of them sealed a batch."""
    from lethe.client.errors import Conflict

    sealed = True
    for task in erasure.tasks:
        if task.ended:
            continue  # the model is not registered, and the task says so
        try:
            context.api.models.flush(task.model, force=force)
        except Conflict as refusal:
            sealed = False
            context.note(
                f"The request is recorded, but {task.model} is not processing it yet. {refusal.detail}"
            )
    return sealed


def _watch_erasure(context: CommandContext, erasure_id: UUID | str, timeout: float | None) -> int | None:
    with batch_progress(context) as display:
        current, last_event = None, ""
        for current in context.api.erasures.follow(erasure_id, timeout=timeout):
            display.show_erasure(current)
            # Events are more detailed than polling. A batch on hold has none until someone decides.
            if len(current.batches) == 1 and timeout is None and current.batches[0].state != "held":
                events = _follow_events(context, display, current.batches[0], after=last_event)
                last_event = events[-1].id if events else last_event
    assert current is not None
    context.show(current.erasure, *_erasure_tables(current.erasure))
    return None if current.erasure.state == "completed" else ExitStatus.NO


def _watch_batch(context: CommandContext, batch: "Batch", timeout: float | None) -> int | None:
    with batch_progress(context) as display:
        if timeout is not None:  # reading the events has no timeout, but returns at once after the end
            context.api.batches.wait(batch.id, timeout=timeout, on_change=display.show_batch)
        events = _follow_events(context, display, batch)
    batch = context.api.batches.get(batch.id)
    context.show({"batch": batch, "events": events}, batch_details(batch))
    return None if batch.state == "completed" else ExitStatus.NO


def _follow_events(
    context: CommandContext, display: BatchProgress, batch: "Batch", *, after: str = ""
) -> "list[Event]":
    events = []
    for event in context.api.batches.events(batch.id, after=after):
        events.append(event)
        display.show_event(batch, event)
        # An old event may say "held" although someone has decided since.
        if event.kind == "held" and context.api.batches.get(batch.id).state == "held":
            break
    return events


def _erasure_tables(erasure: "Erasure") -> tuple[Any, ...]:
    lateness = describe_lateness(erasure.late_days, overdue=erasure.overdue)
    rows = [
        (
            t.model,
            ON_HOLD if t.on_hold else t.state,
            {in_words(outcome): people for outcome, people in t.outcomes.items()},
            # A version is published before the old data is deleted. Nobody is erased before that.
            t.version if t.state == "completed" else None,
            (t.certificate_id if t.state == "completed" else None) or (t.batch_id and f"batch {t.batch_id}"),
        )
        for t in erasure.tasks
    ]
    return (
        details(
            {
                "Erasure": erasure.id,
                "State": _state_in_words(erasure),
                "Summary": erasure.summary,
                "People": erasure.subjects,
                "Reference": erasure.reference,
                "Received": erasure.received_at,
                "Due": f"{format_value(erasure.due_at)}{f' ({lateness})' if lateness else ''}",
                "Deadline extended because": erasure.extension_reason,
                "Withdrawn because": erasure.withdrawal_reason,
                "Completed": erasure.completed_at,
            }
        ),
        table(("Model", "State", "Outcome", "Version", "Certificate or batch"), rows),
        *(f"{t.model}: {t.notice}" for t in erasure.tasks if t.notice),
        *(f"{t.model}: {decision_hint(t.batch_id, t.decisions)}" for t in erasure.tasks if t.decisions),
    )


def _state_in_words(erasure: "Erasure") -> str:
    return ON_HOLD if any(task.on_hold for task in erasure.tasks) else erasure.state


def describe_lateness(late_days: int, *, overdue: bool) -> str:
    """Say by how much a request missed its deadline, or return nothing if it did not.

    >>> describe_lateness(0, overdue=False), describe_lateness(1, overdue=False)
    ('', 'late by 1 day')
    >>> describe_lateness(12, overdue=True)
    'overdue by 12 days'
    """
    if not late_days:
        return ""
    return f"{'overdue' if overdue else 'late'} by {count(late_days, 'day', 'days')}"


def _parse_time(text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise UsageError(f"{text} is not a date and time; write it as 2026-01-31T09:00+01:00") from None


def _save(path: Path, text: str) -> None:
    """Write a receipt to disk before the service is told that it may destroy its salt."""
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())

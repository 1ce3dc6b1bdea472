"""`lethe erase`, `lethe status`, `lethe receipts`."""

import json
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from certificate.commitment import IDENTIFIER_RULE_IN_WORDS
from client.commands import tables, watching
from client.commands.session import NO, Session, Timeout, Unusable, verb

if TYPE_CHECKING:
    from client.answers import Erasure

Models = Annotated[list[str] | None, typer.Option("--model", help="Only from this model; repeatable.")]
ErasureId = Annotated[str, typer.Argument(help="Id of the erasure.")]


@verb
def erase(
    session: Session,
    subjects: Annotated[
        Path,
        typer.Argument(
            allow_dash=True,
            help="File with one identifier per line, `.csv` with a column subject_id, or `.ndjson`; - for "
            "standard input. Never on the command line, where others could read them.",
        ),
    ],
    models: Models = None,
    reference: Annotated[str | None, typer.Option(help="Your own case number.")] = None,
    reason: Annotated[str | None, typer.Option(help="Why.")] = None,
    jurisdiction: Annotated[str | None, typer.Option(help="For example GDPR.")] = None,
    received_at: Annotated[
        str | None, typer.Option(help="When the person asked, as 2026-01-31T09:00+01:00; else now.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Run again with the same key, it is still one request.")
    ] = None,
    flush: Annotated[
        bool, typer.Option("--flush", help="Seal a batch now instead of when it is full.")
    ] = False,
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway", help="With --flush: also with fewer people than the policy's smallest batch."
        ),
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Until it has ended.")] = False,
    timeout: Timeout = None,
) -> int | None:
    """Ask that people be erased. Identifiers are read from a file or standard input and never shown."""
    details: dict[str, Any] = {
        "models": models or None,
        "reference": reference,
        "reason": reason,
        "jurisdiction": jurisdiction,
        "received_at": _moment(received_at),
        "idempotency_key": idempotency_key,
    }
    erasure = _ask(session, subjects, details)
    for warning in erasure.warnings:
        session.note(warning)
    if flush and not _flush(session, erasure, force=anyway):
        session.show(erasure, *shown(erasure))
        return NO
    if wait:
        session.note(f"Asked: {erasure.id}")
        return watching.watch_erasure(session, erasure.id, timeout)
    session.show(erasure, *shown(erasure))
    session.note(f"Follow it: lethe watch {erasure.id}")
    return None


def _flush(session: Session, erasure: "Erasure", *, force: bool) -> bool:
    """Flush every model of the request; say which of them wait for more people."""
    from client.errors import Conflict

    sealed = True
    for task in erasure.tasks:
        try:
            session.api.models.flush(task.model, force=force)
        except Conflict as refused:
            sealed = False
            session.note(f"The request is recorded, but {task.model} does not erase it yet. {refused.detail}")
    return sealed


@verb
def status(
    session: Session,
    erasure_id: Annotated[str | None, typer.Argument(help="Id of an erasure; else the newest.")] = None,
    state: Annotated[str | None, typer.Option(help="Only with a task in this state.")] = None,
    model: Annotated[str | None, typer.Option(help="Only with a task on this model.")] = None,
    reference: Annotated[str | None, typer.Option(help="Only of this case.")] = None,
    overdue: Annotated[bool, typer.Option("--overdue", help="Only open ones past their deadline.")] = False,
    most: Annotated[int, typer.Option("--most", min=1, help="At most so many.")] = 20,
) -> int | None:
    """Show an erasure, or list them. Exit status 1 when the one asked for has failed."""
    erasures = session.api.erasures
    if erasure_id is not None:
        found = erasures.get(erasure_id)
        session.show(found, *shown(found))
        return NO if found.state == "failed" else None
    listed = list(erasures.list(state=state, model=model, reference=reference, overdue=overdue, most=most))
    entries = [
        (e.id, e.state, e.subjects, e.reference, e.received_at, e.due_at, "overdue" if e.overdue else "")
        for e in listed
    ]
    columns = ("erasure", "state", "subjects", "reference", "received", "due", "")
    session.show(listed, tables.rows(columns, entries) if listed else "No erasures.")
    return None


@verb
def receipts(
    session: Session,
    erasure_id: ErasureId,
    model: Annotated[str | None, typer.Option(help="Only of this model.")] = None,
    to: Annotated[
        Path | None, typer.Option("--to", file_okay=False, help="Save each in this folder.")
    ] = None,
    acknowledge: Annotated[
        bool, typer.Option("--acknowledge", help="They are handed out: have their salts destroyed.")
    ] = False,
) -> None:
    """What to hand to each data subject; they are numbered as in the request, from 0."""
    found = list(session.api.erasures.receipts(erasure_id, model=model))
    if to is not None:
        to.mkdir(parents=True, exist_ok=True)
        for each in found:
            if each.receipt is not None:
                _save(to / f"{Path(each.model).name}-{each.ordinal}.json", json.dumps(each.receipt))
    session.show(
        found,
        tables.rows(
            ("model", "subject", "outcome", "certificate"),
            [(each.model, each.ordinal, each.outcome, each.certificate_id) for each in found],
        )
        if found
        else "No receipts yet: no task is completed.",
    )
    if any(each.outcome == "not_in_training_set" for each in found):
        session.note(IDENTIFIER_RULE_IN_WORDS)
    if acknowledge:
        gone = session.api.erasures.acknowledge_receipts(erasure_id)
        session.note(f"{gone.destroyed} receipts cannot be had again.")


def shown(erasure: "Erasure") -> tuple[Any, ...]:
    return (
        tables.facts(
            {
                "erasure": erasure.id,
                "state": erasure.state,
                "subjects": erasure.subjects,
                "reference": erasure.reference,
                "received": erasure.received_at,
                "due": f"{tables.told(erasure.due_at)}{' (overdue)' if erasure.overdue else ''}",
            }
        ),
        tables.rows(
            ("model", "state", "outcomes", "version", "certificate or batch"),
            [
                (
                    t.model,
                    t.state,
                    t.outcomes,
                    t.version,
                    t.certificate_id or (t.batch_id and f"batch {t.batch_id}"),
                )
                for t in erasure.tasks
            ],
        ),
        *(f"{t.model}: {t.notice}" for t in erasure.tasks if t.notice),
    )


def _ask(session: Session, source: Path, details: dict[str, Any]) -> "Erasure":
    from client.erasures import AT_ONCE, CSV, NDJSON, as_ndjson

    body = sys.stdin.buffer.read() if str(source) == "-" else source.read_bytes()
    kinds = {".csv": CSV, ".ndjson": NDJSON, ".jsonl": NDJSON}
    if source.suffix.lower() in kinds:
        return session.api.erasures.bulk(body, media_type=kinds[source.suffix.lower()], **details)
    try:
        lines = [line.removesuffix("\r") for line in body.decode("utf-8-sig").split("\n")]
        subjects = [line for line in lines if line.strip()]  # spaces are part of an identifier
    except UnicodeDecodeError:
        raise Unusable("the identifiers are not UTF-8") from None
    if not subjects:
        raise Unusable("there is no identifier to erase: one per line is wanted")
    if len(subjects) > AT_ONCE:
        return session.api.erasures.bulk(as_ndjson(subjects), **details)
    return session.api.erasures.create(subjects, **details)


def _moment(text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise Unusable(f"{text} is no date and time; 2026-01-31T09:00+01:00 is one") from None


def _save(path: Path, text: str) -> None:
    """On disk before anyone is told that the service may forget it."""
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())

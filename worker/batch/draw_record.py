"""Stage 5, record the draw: from here on it counts as a release, whatever happens to it.

A later attempt continues with the recorded draw and never draws again. If the quality gate holds it, its
owner decides whether it is published or discarded.
"""

from dataclasses import asdict, replace
from typing import Any
from uuid import UUID

from sqlalchemy import delete

from app.core.clock import now
from app.core.storage import Stored
from app.db import transitions
from app.db.tables import DrawRecord
from lethe.certificate import assurance
from lethe.certificate.keys import Signer
from lethe.certificate.predicate import Predicate
from lethe.certificate.statement import parse_current, serialise
from worker.batch import lifetime
from worker.batch.lifetime import Terms
from worker.batch.publish import add_certificate
from worker.batch.release import Draft, Draw
from worker.batch.resolve import PartChanges, RewrittenPart
from worker.context import JobContext


def record_draw(context: JobContext, draw: Draw) -> None:
    """Store the draw's statement and evidence, so that every later attempt continues with this draw."""
    document = {
        "release": _plain(asdict(draw.draft), {"payload", "evidence"}),
        "swap": _plain(asdict(draw.changes), set()),
    }
    with context.writing() as session:
        batch = context.batch_in(session)
        transitions.draw_recorded(session, batch)
        session.merge(
            DrawRecord(
                batch_id=batch.id,
                draft=document,
                payload=draw.draft.payload,
                evidence=draw.draft.evidence,
                decision=None,
            )
        )


def read_record(context: JobContext) -> DrawRecord | None:
    """Return the draw that an earlier attempt recorded for this batch, or None."""
    assert context.batch is not None
    with context.services.database.reading() as session:
        return session.get(DrawRecord, context.batch.id)


def restore_draw(record: DrawRecord) -> Draw:
    """Rebuild a draw from its record."""
    release, changes = dict(record.draft["release"]), record.draft["swap"]
    draft = Draft(
        **release
        | {
            "certificate_id": UUID(release["certificate_id"]),
            "parent_id": UUID(release["parent_id"]),
            "stored": Stored(**release["stored"]),
            "payload": record.payload,
            "evidence": record.evidence,
        }
    )
    rewritten = tuple(
        RewrittenPart(
            UUID(part["replaces"]),
            Stored(**part["stored"]),
            part["rows"],
            Stored(**part["features"]) if part.get("features") else None,
        )
        for part in changes["rewritten"]
    )
    joined = tuple((UUID(part), rows) for part, rows in changes["joined"])
    emptied = tuple(UUID(part) for part in changes["emptied"])
    return Draw(draft, PartChanges(rewritten, emptied, appends=changes["appends"], joined=joined))


def discard_draw(context: JobContext, draft: Draft, signer: Signer) -> None:
    """Delete the noisy weights, then sign a statement that the draw existed and count it.

    The batch and its job end here.
    """
    statement = parse_current(draft.payload)  # the file is deleted only if its statement can be read
    # Only the draw's own folder is deleted. Should this attempt be stale, a later one's files are safe.
    context.services.storage.delete(draft.stored.path.rpartition("/")[0])
    discarded = _discarded_predicate(context, statement.predicate)
    payload = serialise(statement.model_copy(update={"predicate": discarded}))
    with context.writing() as session:
        add_certificate(context, session, replace(draft, mechanism="discarded", payload=payload), signer)
        batch = context.batch_in(session)
        session.execute(delete(DrawRecord).where(DrawRecord.batch_id == batch.id))
        transitions.discarded(session, batch, now())
        transitions.finish_job(session, context.job_id, context.token, now())


def _discarded_predicate(context: JobContext, drawn: Predicate) -> Predicate:
    """Return what the certificate of a discarded draw states: the same release, counted but not published."""
    terms = Terms(
        drawn.bound.rule,
        drawn.guarantee.assurance,
        drawn.lifetime.release_shift,
        drawn.bound.failure_probability,
        0.0 if drawn.bound.rule == "retrain" else drawn.noise.residual,
    )
    head = lifetime.read_chain_head(context)
    extended = lifetime.extend(context.manifest.policy, head, "discarded", terms)
    # A retrained release would have started a new sum. Discarded, it is counted in the old one.
    assumptions = assurance.assumptions_for(
        drawn.bound.rule,
        drawn.guarantee.assurance,
        changed_after_refusal="choices-after-refusal" in drawn.guarantee.assumptions,
        warnings=drawn.objective.warnings,
        sums_floating_point_noise=lifetime.sums_floating_point_noise(context, "discarded"),
        represented=drawn.objective.representation is not None,
        linearisation=drawn.objective.linearisation,
    )
    guarantee = drawn.guarantee.model_copy(update={"assumptions": assumptions})
    return drawn.model_copy(update={"mechanism": "discarded", "lifetime": extended, "guarantee": guarantee})


def _plain(value: Any, without: set[str]) -> Any:
    """Convert to values that JSON can hold, leaving out some keys."""
    if isinstance(value, dict):
        return {key: _plain(entry, set()) for key, entry in value.items() if key not in without}
    if isinstance(value, list | tuple):
        return [_plain(entry, set()) for entry in value]
    return str(value) if isinstance(value, UUID) else value

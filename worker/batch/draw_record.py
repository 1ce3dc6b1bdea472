"""A draw that was evaluated and held: kept exactly as it is, then published or destroyed by decision."""

from dataclasses import asdict, replace
from typing import Any
from uuid import UUID

from sqlalchemy import delete
from sqlalchemy.orm import Session

from app.clock import now
from app.db import transitions
from app.db.states import Decision
from app.db.tables import HeldDraw
from app.storage import Stored
from certificate import assurance
from certificate.keys import Signer
from certificate.statement import parse_current, serialise
from worker.pipeline.certify import lifetime_after, sums_floating_point_noise
from worker.pipeline.claim import Terms
from worker.pipeline.context import Context
from worker.pipeline.publish import add_certificate, publish
from worker.pipeline.release import Draft
from worker.pipeline.resolve import RewrittenPart, Swap


def keep(session: Session, batch_id: UUID, draft: Draft, swap: Swap) -> None:
    """From here on the draw counts: whoever comes after a crash goes on with it, and never draws again."""
    document = {
        "release": _plain(asdict(draft), {"payload", "evidence"}),
        "swap": _plain(asdict(swap), set()),
    }
    session.merge(
        HeldDraw(
            batch_id=batch_id, draft=document, payload=draft.payload, evidence=draft.evidence, decision=None
        )
    )


def made_before(context: Context) -> HeldDraw | None:
    """The draw that a decision, or an attempt that died, has left to be dealt with."""
    assert context.batch is not None
    with context.services.database.reading() as session:
        return session.get(HeldDraw, context.batch.id)


def carry_out(context: Context, held: HeldDraw, signer: Signer) -> bool:
    """True when the draw is published and the purge is left to do."""
    draft, swap = restore(held)
    if held.decision == Decision.APPROVE:
        publish(context, swap, draft, signer)
        return True
    _discard(context, draft, signer)
    return False


def _discard(context: Context, draft: Draft, signer: Signer) -> None:
    """The file goes first; then a signed statement says that the draw existed, and counts it."""
    statement = parse_current(draft.payload)  # what cannot be read must not cost the file
    # Its own folder only: should this attempt be a stale one, a later one's files are not touched.
    context.services.storage.delete(draft.stored.path.rpartition("/")[0])
    said = statement.predicate
    terms = Terms(
        said.bound.rule,
        said.guarantee.assurance,
        said.lifetime.release_shift,
        said.bound.failure_probability,
        0.0 if said.bound.rule == "retrain" else said.noise.residual,
    )
    lifetime = lifetime_after(context, "discarded", terms)
    # A retrain would have started a new sum; its discarded draw is counted in the old one.
    assumptions = assurance.assumptions_for(
        said.bound.rule,
        said.guarantee.assurance,
        changed_after_refusal="choices-after-refusal" in said.guarantee.assumptions,
        warnings=said.objective.warnings,
        sums_floating_point_noise=sums_floating_point_noise(context, "discarded"),
    )
    guarantee = said.guarantee.model_copy(update={"assumptions": assumptions})
    said = said.model_copy(update={"mechanism": "discarded", "lifetime": lifetime, "guarantee": guarantee})
    payload = serialise(statement.model_copy(update={"predicate": said}))
    with context.writing() as session:
        add_certificate(context, session, replace(draft, mechanism="discarded", payload=payload), signer)
        batch = context.batch_in(session)
        session.execute(delete(HeldDraw).where(HeldDraw.batch_id == batch.id))
        transitions.discarded(session, batch, now())
        transitions.finish_job(session, context.job_id, context.token, now())


def restore(held: HeldDraw) -> tuple[Draft, Swap]:
    release, swap = dict(held.draft["release"]), held.draft["swap"]
    draft = Draft(
        **release
        | {
            "certificate_id": UUID(release["certificate_id"]),
            "parent_id": UUID(release["parent_id"]),
            "stored": Stored(**release["stored"]),
            "payload": held.payload,
            "evidence": held.evidence,
        }
    )
    rewritten = tuple(
        RewrittenPart(UUID(part["replaces"]), Stored(**part["stored"]), part["rows"])
        for part in swap["rewritten"]
    )
    joined = tuple((UUID(part), rows) for part, rows in swap["joined"])
    emptied = tuple(UUID(part) for part in swap["emptied"])
    return draft, Swap(rewritten, emptied, appends=swap["appends"], joined=joined)


def _plain(value: Any, without: set[str]) -> Any:
    """As JSON takes it."""
    if isinstance(value, dict):
        return {key: _plain(entry, set()) for key, entry in value.items() if key not in without}
    if isinstance(value, list | tuple):
        return [_plain(entry, set()) for entry in value]
    return str(value) if isinstance(value, UUID) else value

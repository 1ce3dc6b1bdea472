"""Stage 5, publish: one transaction, conditional on the token. Nothing is visible before, all is after."""

from sqlalchemy import delete
from sqlalchemy.orm import Session

from app.clock import now
from app.db import transitions
from app.db.states import VersionState
from app.db.tables import Batch, Certificate, DatasetPart, HeldDraw, Model, Version
from certificate.envelope import sign
from certificate.keys import Signer
from certificate.model_signature import sign_model
from worker.pipeline import log
from worker.pipeline.context import Context
from worker.pipeline.release import Draft
from worker.pipeline.resolve import Resolved, Swap


def publish(context: Context, swap: Swap, draft: Draft, signer: Signer) -> None:
    context.services.tracer.stage("publish")
    with context.writing() as session:
        batch = context.batch_in(session)
        model = session.get_one(Model, context.model.id)
        model.generation += 1
        swap_parts(session, model, swap)
        add_certificate(context, session, draft, signer)
        _supersede(session, draft, model, batch)
        session.execute(delete(HeldDraw).where(HeldDraw.batch_id == batch.id))
        transitions.add_event(
            session,
            batch.id,
            "published",
            {"version": draft.version, "certificate_id": str(draft.certificate_id)},
            now(),
        )
        transitions.batch_purging(session, batch, now())


def add_certificate(context: Context, session: Session, draft: Draft, signer: Signer) -> None:
    """Sign, log and store the statement; leaf, tree head and certificate stand or fall together."""
    envelope = sign(draft.payload, signer)
    place = log.append(session, envelope.digest, signer, context.services.settings.log_origin)
    session.add(
        Certificate(
            id=draft.certificate_id,
            model_id=context.model.id,
            chain_index=draft.chain_index,
            mechanism=draft.mechanism,
            envelope=envelope.raw,
            digest=envelope.digest,
            evidence=draft.evidence,
            model_signature=sign_model(file_name=draft.file_name, sha256=draft.stored.sha256, signer=signer),
            log_index=place,
        )
    )
    session.flush()


def publish_nothing(context: Context, resolved: Resolved) -> None:
    """No subject has a training row: the model is what it would be without them, and stays as it is."""
    context.services.tracer.stage("publish")
    with context.writing() as session:
        batch = context.batch_in(session)
        swap_parts(session, session.get_one(Model, context.model.id), resolved.swap)
        batch.records = 0
        transitions.batch_purging(session, batch, now())


def _supersede(session: Session, draft: Draft, model: Model, batch: Batch) -> None:
    parent = session.get_one(Version, draft.parent_id)
    parent.state, parent.superseded_at = VersionState.SUPERSEDED, now()
    session.add(
        Version(
            model_id=model.id,
            number=draft.version,
            batch_id=batch.id,
            certificate_id=draft.certificate_id,
            generation=model.generation,
            path=draft.stored.path,
            sha256=draft.stored.sha256,
            size=draft.stored.size,
        )
    )


def swap_parts(session: Session, model: Model, swap: Swap) -> None:
    """Untouched parts simply live on; a replaced part ended with the generation before."""
    ended = max(model.generation - 1, 0)
    for new in swap.rewritten:
        replaced = session.get(DatasetPart, new.replaces)
        if replaced is None:  # a staged part, sent anew while a draw was held: the purge looks at what came
            continue
        replaced.last_generation = ended
        stays_staged = replaced.first_generation is None and not swap.appends
        session.add(
            DatasetPart(
                model_id=model.id,
                name=replaced.name,
                role=replaced.role,
                path=new.stored.path,
                rows=new.rows,
                sha256=new.stored.sha256,
                size=new.stored.size,
                first_generation=None if stays_staged else model.generation,
            )
        )
    for part_id in swap.emptied:
        if (part := session.get(DatasetPart, part_id)) is not None:
            part.last_generation = ended
    for part_id, rows in swap.joined:
        joining = session.get_one(DatasetPart, part_id)
        joining.first_generation, joining.rows = model.generation, rows

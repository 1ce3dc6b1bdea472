"""Stage 5, publish: one transaction, conditional on the token. Nothing is visible before, all is after."""

from sqlalchemy.orm import Session

from app.clock import now
from app.db import transitions
from app.db.states import VersionState
from app.db.tables import Batch, Certificate, DatasetPart, Model, Version
from certificate.keys import Signer
from worker.pipeline import log
from worker.pipeline.context import Context
from worker.pipeline.release import Release
from worker.pipeline.resolve import Resolved
from worker.pipeline.solve import Solved


def publish(
    context: Context, resolved: Resolved, solved: Solved, release: Release, chain_index: int, signer: Signer
) -> None:
    with context.writing() as session:
        batch = context.batch_in(session)
        model = session.get_one(Model, context.model.id)
        model.generation += 1
        swap_parts(session, model, resolved)
        place = log.append(session, release.envelope.digest, signer, context.services.settings.log_origin)
        session.add(
            Certificate(
                id=release.certificate_id,
                model_id=model.id,
                chain_index=chain_index,
                mechanism=solved.mechanism,
                envelope=release.envelope.raw,
                digest=release.envelope.digest,
                evidence=release.evidence.to_bytes(),
                model_signature=release.model_signature,
                log_index=place,
            )
        )
        session.flush()
        _supersede(session, release, model, batch)
        batch.records = resolved.records
        transitions.add_event(
            session,
            batch.id,
            "published",
            {"version": release.version, "certificate_id": str(release.certificate_id)},
            now(),
        )
        transitions.batch_purging(session, batch, now())


def publish_nothing(context: Context, resolved: Resolved) -> None:
    """No subject has a training row: the model is what it would be without them, and stays as it is."""
    with context.writing() as session:
        batch = context.batch_in(session)
        swap_parts(session, session.get_one(Model, context.model.id), resolved)
        batch.records = 0
        transitions.batch_purging(session, batch, now())


def _supersede(session: Session, release: Release, model: Model, batch: Batch) -> None:
    parent = session.get_one(Version, release.parent_id)
    parent.state, parent.superseded_at = VersionState.SUPERSEDED, now()
    session.add(
        Version(
            model_id=model.id,
            number=release.version,
            batch_id=batch.id,
            certificate_id=release.certificate_id,
            generation=model.generation,
            path=release.stored.path,
            sha256=release.stored.sha256,
            size=release.stored.size,
        )
    )


def swap_parts(session: Session, model: Model, resolved: Resolved) -> None:
    """Untouched parts simply live on; a replaced part ended with the generation before."""
    ended = max(model.generation - 1, 0)
    for new in resolved.rewritten:
        replaced = session.get_one(DatasetPart, new.replaces)
        replaced.last_generation = ended
        stays_staged = replaced.first_generation is None and not resolved.appends
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
    for part_id in resolved.emptied:
        session.get_one(DatasetPart, part_id).last_generation = ended
    for part_id, rows in resolved.joined:
        part = session.get_one(DatasetPart, part_id)
        part.first_generation, part.rows = model.generation, rows

"""Stage 7, publish: make a draw the current version, in one transaction that needs the attempt's token.

`publish` is the only function that publishes a version.
"""

from sqlalchemy import delete
from sqlalchemy.orm import Session

from app.core.clock import now
from app.db import log_store, transitions
from app.db.states import EventKind
from app.db.tables import Batch, Certificate, DrawRecord, Model, Version
from lethe.certificate.envelope import sign
from lethe.certificate.keys import Signer
from lethe.certificate.model_signature import sign_model
from worker.batch.release import Draft, Draw
from worker.batch.resolve import PartChanges
from worker.context import JobContext


def publish(context: JobContext, draw: Draw, signer: Signer) -> None:
    """Publish a draw as the current version: its weights, certificate and part changes, or nothing."""
    draft = draw.draft
    context.services.tracer.stage("publish")
    with context.writing() as session:
        batch = context.batch_in(session)
        model = session.get_one(Model, context.model.id)
        model.generation += 1
        draw.changes.apply_to(session, model)
        add_certificate(context, session, draft, signer)
        _supersede(session, draft, model, batch)
        session.execute(delete(DrawRecord).where(DrawRecord.batch_id == batch.id))
        transitions.add_event(
            session,
            batch.id,
            EventKind.PUBLISHED,
            {"version": draft.version, "certificate_id": str(draft.certificate_id)},
            now(),
        )
        transitions.batch_purging(session, batch, now())


def add_certificate(context: JobContext, session: Session, draft: Draft, signer: Signer) -> None:
    """Sign the statement, append it to the certificate log, and store the certificate, all or nothing."""
    envelope = sign(draft.payload, signer)
    index = log_store.append(session, envelope.digest, signer, context.services.settings.log_origin)
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
            log_index=index,
        )
    )
    session.flush()


def keep_current_version(context: JobContext, changes: PartChanges) -> None:
    """Move on to the purge without a new version, because no training row leaves or joins."""
    context.services.tracer.stage("publish")
    with context.writing() as session:
        batch = context.batch_in(session)
        changes.apply_to(session, session.get_one(Model, context.model.id))
        batch.records = 0
        transitions.batch_purging(session, batch, now())


def _supersede(session: Session, draft: Draft, model: Model, batch: Batch) -> None:
    transitions.publish_version(
        session,
        Version(
            model_id=model.id,
            number=draft.version,
            batch_id=batch.id,
            certificate_id=draft.certificate_id,
            generation=model.generation,
            path=draft.stored.path,
            sha256=draft.stored.sha256,
            size=draft.stored.size,
        ),
        parent_id=draft.parent_id,
        now=now(),
    )

"""What happens to a deletion set, as its owner sees it."""

from uuid import UUID

from sqlalchemy.orm import Session

from app.batches import repository
from app.batches.schemas import BatchShown
from app.db.states import BatchState, HeldReason
from app.db.tables import Batch
from app.errors import NotFound

ENDED = (BatchState.COMPLETED, BatchState.FAILED)


def get(session: Session, tenant_id: UUID, batch_id: UUID) -> Batch:
    batch = repository.by_id(session, tenant_id, batch_id)
    if batch is None:
        raise NotFound("There is no such batch.")
    return batch


def shown(session: Session, batch: Batch) -> BatchShown:
    model, job, version = repository.surroundings(session, batch)
    return BatchShown(
        id=batch.id,
        model=model.name,
        state=BatchState(batch.state),
        sealed_because=batch.sealed_because,
        step=batch.step,
        subjects=batch.subjects,
        records=batch.records,
        attempt=job.attempt,
        progress=batch.progress,
        held_reason=HeldReason(batch.held_reason) if batch.held_reason else None,
        error=batch.error or job.error,
        version=version.number if version else None,
        certificate_id=version.certificate_id if version else None,
        sealed_at=batch.sealed_at,
        completed_at=batch.completed_at,
    )

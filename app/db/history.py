"""What the events of a batch say about it, for batches that an earlier release worked on.

This release keeps both facts in columns of the batch, which do not depend on events. A worker of the release
before writes events only, and may run beside this one during an upgrade.
"""

from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.states import STEPS_ON_ROWS, BatchState, EventKind
from app.db.tables import BatchEvent


def attempts_started(session: Session, batch_id: UUID) -> int:
    """Return how many attempts have begun to run, according to the events."""
    states = select(BatchEvent.data).where(
        BatchEvent.batch_id == batch_id, BatchEvent.kind == EventKind.STATE
    )
    return sum(data.get("state") == BatchState.RUNNING for data in session.scalars(states))


def rows_examined(session: Session, batch_id: UUID) -> bool:
    """Return whether an attempt has computed on the rows since the last retry, according to the events."""
    kinds = (EventKind.STEP, EventKind.RETRY)
    examined = False
    for event in session.scalars(
        select(BatchEvent)
        .where(BatchEvent.batch_id == batch_id, BatchEvent.kind.in_(kinds))
        .order_by(BatchEvent.id)
    ):
        examined = event.kind == EventKind.STEP and (examined or event.data.get("step") in STEPS_ON_ROWS)
    return examined

"""The keys of a batch's tasks: those of receipts are created, and those of identifiers destroyed.

Identifiers count as deleted only when the data keys that protected them are destroyed, because the database
may keep copies of deleted rows.
"""

from sqlalchemy import select, update

from app.core.data_key import new_task_key, receipt_key_row
from app.db import transitions
from app.db.states import DataKeyPurpose
from app.db.tables import Task
from worker.context import JobContext

TASKS_PER_TRANSACTION = 1000


def prepare_receipt_keys(context: JobContext) -> None:
    """Give every task of the batch a key for its receipts, under the data key of the batch."""
    assert context.batch is not None
    batch_id, data_keys = context.batch.id, context.services.data_keys
    keyless = select(Task.id).where(Task.batch_id == batch_id, Task.receipt_key_id.is_(None))
    while True:
        with context.writing() as session:
            tasks = session.scalars(keyless.order_by(Task.id).limit(TASKS_PER_TRANSACTION)).all()
            if not tasks:
                return
            data_key = data_keys.current(session, DataKeyPurpose.RECEIPTS, [batch_id]).get(batch_id)
            if data_key is not None:
                rows = [
                    {
                        "id": task_id,
                        "receipt_key": data_key.wrap(new_task_key(), row=receipt_key_row(task_id)),
                        "receipt_key_id": data_key.id,
                    }
                    for task_id in tasks
                ]
                session.execute(update(Task), rows)
        if data_key is None:
            data_keys.create(DataKeyPurpose.RECEIPTS, [batch_id])
        elif len(tasks) < TASKS_PER_TRANSACTION:
            return


def destroy_subject_keys(context: JobContext) -> None:
    """Destroy the data keys that protected the identifiers of this batch. Call this after their deletion.

    Requests that wait for a later batch may be under the same data keys, and are put under another one first.
    A repetition continues wherever a crash ended the last attempt: the keys are doomed in the transaction
    that detaches the tasks from them, and stay so until their files are gone.
    """
    assert context.batch is not None
    tasks = Task.batch_id == context.batch.id
    with context.writing() as session:
        transitions.doom_data_keys(session, select(Task.subject_key_id).where(tasks).distinct())
        detached = update(Task).where(tasks).values(subject_key=None, subject_key_id=None)
        session.execute(detached.execution_options(synchronize_session=False))
    context.services.key_renewal.destroy_doomed(context.model.id)

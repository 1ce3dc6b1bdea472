"""What an erasure and its tasks look like to their tenant, from values that are already known."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from app.db.states import TaskOutcome, TaskState
from app.gateway.erasures.schemas import TaskView
from app.gateway.sentences import describe_erasure, join_sentences

# From least to most advanced. `failed` is not in the order: it always wins.
_ORDER = (TaskState.RECEIVED, TaskState.BATCHED, TaskState.RUNNING, TaskState.COMPLETED, TaskState.WITHDRAWN)
NOT_REGISTERED = (
    "This model was not registered: it has no published version, and its files were not searched. If you "
    "register it, leave these people out of its files, or send a new request afterwards. Lethe does not "
    "remember them and will not remind you."
)


def derived_state(tasks: Iterable[TaskState]) -> TaskState:
    """Derive an erasure's state from its tasks.

    It is `failed` if any task failed, otherwise the state of the least advanced task. An erasure without a
    task is completed: there is nothing to do.
    """
    states = set(tasks) or {TaskState.COMPLETED}
    return TaskState.FAILED if TaskState.FAILED in states else min(states, key=_ORDER.index)


def summarise(state: TaskState, tasks: Sequence[TaskView]) -> str:
    """Return the state of an erasure in words."""
    on_hold = any(task.on_hold for task in tasks)
    return join_sentences(*describe_erasure(state, [task.state for task in tasks], on_hold=on_hold))


def new_task(model: str, *, subjects: int, ended_at: datetime | None) -> TaskView:
    """Return a task that was just recorded.

    One with `ended_at` ended at once, because its model is not registered.
    """
    return TaskView(
        model=model,
        state=TaskState.RECEIVED if ended_at is None else TaskState.COMPLETED,
        batch_id=None,
        on_hold=False,
        decisions=[],
        completed_at=ended_at,
        version=None,
        certificate_id=None,
        outcomes={} if ended_at is None else {TaskOutcome.MODEL_NOT_REGISTERED: subjects},
        near_matches=0,
        notice=None if ended_at is None else NOT_REGISTERED,
    )

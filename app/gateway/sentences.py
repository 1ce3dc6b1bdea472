"""What the states of erasures and batches mean, in one sentence each.

The API, the `lethe` command and the dashboard show these sentences. They are defined here and nowhere else.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from app.db.states import BatchState, Decision, HeldReason, TaskState

States = Mapping[str, tuple[str, str]]  # state → (its name, what it means for the reader)

ERASURE: States = {
    TaskState.RECEIVED: ("Received", "This request has been recorded and is waiting for the next batch."),
    TaskState.BATCHED: ("Scheduled", "This request is part of a batch that has not started yet."),
    TaskState.RUNNING: ("In progress", "The batch with this request is in progress."),
    TaskState.COMPLETED: ("Done", "This request is complete."),
    TaskState.FAILED: (
        "Needs attention",
        "The batch with this request failed. The request stays open until someone tries the batch again.",
    ),
    TaskState.WITHDRAWN: ("Withdrawn", "This request was withdrawn before it was carried out."),
}
BATCH: States = {
    BatchState.SEALED: ("Sealed", "The requests in this batch are fixed. A worker will receive it next."),
    BatchState.QUEUED: ("Queued", "This batch is waiting for a free worker."),
    BatchState.RUNNING: ("Running", "A worker is removing the data from the model."),
    BatchState.PURGING: ("Cleaning up", "The new version is published. The old data is being deleted."),
    BatchState.COMPLETED: ("Completed", "The new version is published and the old data has been deleted."),
    BatchState.FAILED: (
        "Failed",
        "This batch ended without a new version. The requests stay open until someone tries it again.",
    ),
    BatchState.HELD: (
        "On hold, needs a decision",
        "The model's team has to decide how this batch continues.",
    ),
}
# A batch that adds rows has no requests. States that are not listed mean the same as above.
APPEND: Mapping[str, str] = {
    BatchState.SEALED: "A worker will receive this batch next.",
    BatchState.RUNNING: "A worker is adding the new rows to the model.",
    BatchState.COMPLETED: "The new version is published, with the new rows.",
    BatchState.FAILED: "The rows were not added. They are still staged: start a new append.",
}
HELD: Mapping[str, str] = {
    HeldReason.NOT_CERTIFIABLE: "The erasure could not be certified, and the policy does not allow "
    "retraining. Change the policy, then try again.",
    HeldReason.BUDGET: "The model's lifetime privacy budget is used up, and the policy does not allow "
    "retraining. Allow retraining or raise the budget, then try again.",
    HeldReason.CANCELLED: "Someone cancelled this batch. Its requests stay open until someone tries it "
    "again.",
    HeldReason.QUALITY_GATE: "The new version scores lower on the holdout data than the policy allows. "
    "Publish it as it is, or discard it.",
    HeldReason.UNPUBLISHED: "A new version was drawn but could not be published. Noise is never drawn twice "
    "for the same release, so publish this version as it is, or discard it.",
}
# A draw that someone has decided about, until a worker has carried the decision out.
DECIDED: Mapping[str, str] = {
    Decision.APPROVE: "Someone decided to publish the new version as it is. A worker will do so next.",
    Decision.DISCARD: "Someone decided to discard the new version. A worker will destroy it next. The "
    "requests stay open until someone tries the batch again.",
}
DELAYED = (
    "A fault of the infrastructure delays this batch. It is retried by itself until it succeeds. The error "
    "says what may need a repair."
)
ERASURE_ON_HOLD = (
    BATCH[BatchState.HELD][0],
    "A batch with this request is on hold. The request stays open until the model's team decides how the "
    "batch continues.",
)


def describe_erasure(state: TaskState, tasks: Sequence[TaskState], *, on_hold: bool) -> tuple[str, str]:
    """Return the name of an erasure's state and what it means, from the states of its tasks.

    >>> describe_erasure(TaskState.RECEIVED, [TaskState.RECEIVED, TaskState.COMPLETED], on_hold=False)[1]
    'This request has been recorded and is waiting for the next batch. 1 of 2 models is done.'
    """
    name, meaning = ERASURE_ON_HOLD if on_hold else ERASURE[state]
    done = sum(task == TaskState.COMPLETED for task in tasks)
    if state not in (TaskState.COMPLETED, TaskState.WITHDRAWN) and 0 < done < len(tasks):
        meaning += f" {done} of {len(tasks)} models {'is' if done == 1 else 'are'} done."
    return name, meaning


def describe_batch(
    state: BatchState,
    held_reason: HeldReason | None,
    *,
    adds_rows: bool = False,
    decision: Decision | None = None,
    delayed: bool = False,
) -> tuple[str, str]:
    """Return the name of a batch's state and what it means. For a batch on hold, this says why.

    `decision` is what someone decided about its draw and a worker has not carried out yet. `delayed` means
    that faults of the infrastructure have ended its latest attempts.

    >>> describe_batch(BatchState.QUEUED, None)
    ('Queued', 'This batch is waiting for a free worker.')
    """
    name, meaning = BATCH[state]
    if state == BatchState.HELD and held_reason is not None:
        return name, HELD[held_reason]
    if decision is not None and state in (BatchState.SEALED, BatchState.QUEUED, BatchState.RUNNING):
        return name, DECIDED[decision]
    if delayed and state in (BatchState.SEALED, BatchState.QUEUED):
        return name, DELAYED
    return name, APPEND.get(state, meaning) if adds_rows else meaning


def join_sentences(name: str, meaning: str) -> str:
    """Return the name of a state and its meaning as one text.

    >>> join_sentences("Queued", "This batch is waiting for a free worker.")
    'Queued. This batch is waiting for a free worker.'
    """
    return f"{name}. {meaning}"


def describe_missing_evidence(deleted_at: datetime) -> str:
    """Return why a check of the evidence was not run.

    >>> describe_missing_evidence(datetime(2026, 11, 18))
    'the evidence was deleted on 2026-11-18, as the policy of the model says (evidence_days)'
    """
    return (
        f"the evidence was deleted on {deleted_at:%Y-%m-%d}, as the policy of the model says (evidence_days)"
    )


def describe_deleted_evidence(deleted_at: datetime) -> str:
    """Return the answer to someone who asks for evidence that was deleted.

    >>> describe_deleted_evidence(datetime(2026, 11, 18)).split(". ")[1]
    'The certificate itself is kept and still verifies.'
    """
    missing = describe_missing_evidence(deleted_at)
    return f"{missing[:1].upper()}{missing[1:]}. The certificate itself is kept and still verifies."


def describe_deleted_report(name: str, deleted_at: datetime, *, start_again: bool = True) -> str:
    """Return the answer to someone who asks for a report whose figures were deleted.

    >>> describe_deleted_report("audit", datetime(2026, 11, 18), start_again=False)
    'The figures of this audit were deleted on 2026-11-18, as the policy of the model says (report_days).'
    """
    sentence = (
        f"The figures of this {name} were deleted on {deleted_at:%Y-%m-%d}, as the policy of the model says "
        "(report_days)."
    )
    return f"{sentence} Start a new one if you need figures." if start_again else sentence

"""Every state change of a model, version, job, batch, task or webhook delivery, in one package.

The gateway, the dispatcher and the worker all change states through these functions.

A job is a piece of work for a worker, and a batch's state follows that of its job. Every attempt at a job has
a fencing token. Code that writes on behalf of an attempt calls `fence` first, in the same transaction;
`fence` raises if a later attempt has begun. A queue message may arrive twice or never: `claim` succeeds for
exactly one delivery of it, and the dispatcher sends unclaimed messages again. Code that locks both rows locks
the job before its batch.
"""

from app.db.transitions.attempts import (
    LONGEST_BACKOFF,
    MAX_DEATHS,
    attempt_failed,
    backoff_after,
    cancel,
    claim,
    dispatch,
    hand_back,
    has_drawn,
    is_claimable,
    was_cancelled,
)
from app.db.transitions.batches import (
    add_event,
    batch_purging,
    batch_step,
    complete_batch,
    decide,
    discarded,
    draw_recorded,
    has_open_batch,
    hold_batch,
    refuse_append,
    request_retry,
    retry,
    seal,
    start_again,
    start_append,
    waiting_requests,
    waiting_subjects,
    waiting_subjects_by_model,
)
from app.db.transitions.deliveries import end_delivery, replay_deliveries
from app.db.transitions.jobs import (
    RUN,
    TokenLost,
    announce,
    change_jobs,
    create_job,
    fence,
    finish_job,
    heartbeat,
    owns_job,
)
from app.db.transitions.models import (
    accept_model,
    complete_unreached,
    publish_version,
    purge_versions,
    reject_model,
    retire_model,
    start_validation,
)
from app.db.transitions.tasks import withdraw_tasks

__all__ = [
    "LONGEST_BACKOFF",
    "MAX_DEATHS",
    "RUN",
    "TokenLost",
    "accept_model",
    "add_event",
    "announce",
    "attempt_failed",
    "backoff_after",
    "batch_purging",
    "batch_step",
    "cancel",
    "change_jobs",
    "claim",
    "complete_batch",
    "complete_unreached",
    "create_job",
    "decide",
    "discarded",
    "dispatch",
    "draw_recorded",
    "end_delivery",
    "fence",
    "finish_job",
    "hand_back",
    "has_drawn",
    "has_open_batch",
    "heartbeat",
    "hold_batch",
    "is_claimable",
    "owns_job",
    "publish_version",
    "purge_versions",
    "refuse_append",
    "reject_model",
    "replay_deliveries",
    "request_retry",
    "retire_model",
    "retry",
    "seal",
    "start_again",
    "start_append",
    "start_validation",
    "waiting_requests",
    "waiting_subjects",
    "waiting_subjects_by_model",
    "was_cancelled",
    "withdraw_tasks",
]

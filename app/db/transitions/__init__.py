"""Every change of state of a model, job, batch and task, for the gateway, the dispatcher and the worker.

A job is what a worker does; a batch's state follows its job's. Each attempt at a job carries a fencing
token: whoever writes on behalf of an attempt calls `fence` first, in the same transaction, and loses when
a later attempt has begun. A message may arrive twice or never: `claim` lets exactly one through, and the
dispatcher sends again what was not claimed. Where both are locked, the job's row comes before its batch's.
"""

from app.db.transitions.attempts import (
    LONGEST_BACKOFF,
    attempt_failed,
    backoff_after,
    cancel,
    claim,
    dispatch,
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
    has_open_batch,
    hold_batch,
    refuse_append,
    retry,
    seal,
    start_append,
    waiting_requests,
    waiting_subjects,
)
from app.db.transitions.draining import hand_back
from app.db.transitions.jobs import (
    FUNCTION,
    TokenLost,
    announce,
    create_job,
    fence,
    finish_job,
    heartbeat,
    holds,
)
from app.db.transitions.models import (
    accept_model,
    complete_unreached,
    reject_model,
    retire_model,
    start_validation,
)

__all__ = [
    "FUNCTION",
    "LONGEST_BACKOFF",
    "TokenLost",
    "accept_model",
    "add_event",
    "announce",
    "attempt_failed",
    "backoff_after",
    "batch_purging",
    "batch_step",
    "cancel",
    "claim",
    "complete_batch",
    "complete_unreached",
    "create_job",
    "decide",
    "discarded",
    "dispatch",
    "fence",
    "finish_job",
    "hand_back",
    "has_drawn",
    "has_open_batch",
    "heartbeat",
    "hold_batch",
    "holds",
    "is_claimable",
    "refuse_append",
    "reject_model",
    "retire_model",
    "retry",
    "seal",
    "start_append",
    "start_validation",
    "waiting_requests",
    "waiting_subjects",
    "was_cancelled",
]

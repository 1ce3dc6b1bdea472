"""The states a noun can be in. Only `transitions` changes one."""

from enum import StrEnum


class ModelState(StrEnum):
    UPLOADING = "uploading"
    VALIDATING = "validating"
    READY = "ready"
    REJECTED = "rejected"
    RETIRED = "retired"


class TaskState(StrEnum):
    RECEIVED = "received"
    BATCHED = "batched"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    WITHDRAWN = "withdrawn"


class BatchState(StrEnum):
    SEALED = "sealed"
    QUEUED = "queued"
    RUNNING = "running"
    PURGING = "purging"
    COMPLETED = "completed"
    FAILED = "failed"
    HELD = "held"


# A model has at most one batch in these states; the rest of its requests wait.
OPEN_BATCH = (BatchState.SEALED, BatchState.QUEUED, BatchState.RUNNING, BatchState.PURGING, BatchState.HELD)


class JobState(StrEnum):
    WAITING = "waiting"
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class JobKind(StrEnum):
    REGISTER = "register"
    UNLEARN = "unlearn"
    APPEND = "append"
    EVALUATE = "evaluate"
    AUDIT = "audit"


class ReportKind(StrEnum):
    EVALUATION = "evaluation"
    AUDIT = "audit"
    MEMBERSHIP = "membership"


class ReportState(StrEnum):
    """Derived: a report is as far as its job."""

    WAITING = "waiting"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


class PartRole(StrEnum):
    TRAIN = "train"
    HOLDOUT = "holdout"


class FileKind(StrEnum):
    WEIGHTS = "weights"
    ANCHOR = "anchor"


class VersionState(StrEnum):
    CURRENT = "current"
    SUPERSEDED = "superseded"
    PURGED = "purged"


class SubjectOutcome(StrEnum):
    ERASED = "erased"
    ERASED_OUTSIDE_TRAINING = "erased_outside_training"  # rows in holdout or staged parts only
    NOT_IN_TRAINING_SET = "not_in_training_set"


class Decision(StrEnum):
    APPROVE = "approve"
    DISCARD = "discard"


class HeldReason(StrEnum):
    NOT_CERTIFIABLE = "not_certifiable"
    BUDGET = "budget"
    QUALITY_GATE = "quality_gate"
    CANCELLED = "cancelled"
    UNPUBLISHED = "unpublished"  # a draw was made and could not be published; it waits, and is never redrawn

"""The states, kinds and reasons that columns hold. Only `transitions` changes a state."""

from enum import StrEnum
from typing import assert_never


class ModelState(StrEnum):
    """The states of a model."""

    UPLOADING = "uploading"
    VALIDATING = "validating"
    READY = "ready"
    REJECTED = "rejected"
    RETIRED = "retired"


class TaskState(StrEnum):
    """The states of a task, which is one erasure on one model."""

    RECEIVED = "received"
    BATCHED = "batched"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    WITHDRAWN = "withdrawn"


class BatchState(StrEnum):
    """The states of a batch. A held one waits for a decision by its owner."""

    SEALED = "sealed"
    QUEUED = "queued"
    RUNNING = "running"
    PURGING = "purging"
    COMPLETED = "completed"
    FAILED = "failed"
    HELD = "held"


# A model has at most one batch in one of these states. Further requests wait for the next batch.
OPEN_BATCH = (BatchState.SEALED, BatchState.QUEUED, BatchState.RUNNING, BatchState.PURGING, BatchState.HELD)


class JobState(StrEnum):
    """The states of a job: waiting to be queued, queued, running, or ended."""

    WAITING = "waiting"
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class JobKind(StrEnum):
    """What a job does."""

    REGISTER = "register"
    UNLEARN = "unlearn"
    APPEND = "append"
    EVALUATE = "evaluate"
    AUDIT = "audit"
    ADVISE = "advise"


class ReportKind(StrEnum):
    """What a report is about."""

    EVALUATION = "evaluation"
    AUDIT = "audit"
    MEMBERSHIP = "membership"
    ADVICE = "advice"


class ReportState(StrEnum):
    """The states of a report. They are derived from its job and not stored."""

    WAITING = "waiting"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    DELETED = "deleted"


class PartRole(StrEnum):
    """What the rows of a dataset part are used for."""

    TRAIN = "train"
    HOLDOUT = "holdout"


class FileKind(StrEnum):
    """The kinds of file that belong to a model besides its dataset."""

    WEIGHTS = "weights"
    ANCHOR = "anchor"
    REPRESENTATION = "representation"  # an ONNX graph
    TOKENIZER = "tokenizer"


# The files that hold tensors in the shape of the model's weights.
WEIGHT_FILES = (FileKind.WEIGHTS, FileKind.ANCHOR)


class ImportRole(StrEnum):
    """What an imported file becomes: a dataset part, or a file of the model's representation."""

    TRAIN = "train"
    HOLDOUT = "holdout"
    REPRESENTATION = "representation"
    TOKENIZER = "tokenizer"


PART_IMPORTS = (ImportRole.TRAIN, ImportRole.HOLDOUT)


class VersionState(StrEnum):
    """The states of a published version. The files of a purged one are deleted."""

    CURRENT = "current"
    SUPERSEDED = "superseded"
    PURGED = "purged"


class SubjectOutcome(StrEnum):
    """The result of an erasure for one person."""

    ERASED = "erased"
    ERASED_OUTSIDE_TRAINING = "erased_outside_training"  # rows in holdout or staged parts only
    NOT_IN_TRAINING_SET = "not_in_training_set"


class TaskOutcome(StrEnum):
    """The result of a task for one person, as its tenant sees it: one of theirs, or none on this model."""

    ERASED = "erased"
    ERASED_OUTSIDE_TRAINING = "erased_outside_training"
    NOT_IN_TRAINING_SET = "not_in_training_set"
    MODEL_NOT_REGISTERED = "model_not_registered"  # derived, not stored: the task ended without a batch


class Decision(StrEnum):
    """What the owner of a held batch decided about its draw."""

    APPROVE = "approve"
    DISCARD = "discard"


class BatchDecision(StrEnum):
    """What the model's team can decide about a batch."""

    APPROVE = "approve"
    DISCARD = "discard"
    RETRY = "retry"
    CANCEL = "cancel"


class SealReason(StrEnum):
    """Why a batch was sealed."""

    COUNT = "count"  # enough people are waiting
    AGE = "age"  # the oldest request has waited long enough
    DEADLINE = "deadline"  # the earliest deadline is near
    FLUSH = "flush"  # the owner asked for it
    APPEND = "append"  # not an erasure: new rows were added


class BatchStep(StrEnum):
    """The step that the running attempt at a batch is at."""

    RESOLVE = "resolve"
    SOLVE = "solve"
    CERTIFY = "certify"
    RELEASE = "release"
    PURGE = "purge"


# Steps that compute on the training rows. A failure after one of them reveals something about the rows.
STEPS_ON_ROWS = (BatchStep.SOLVE, BatchStep.CERTIFY, BatchStep.RELEASE)


class EventKind(StrEnum):
    """The kinds of event in a batch's history."""

    SEALED = "sealed"
    SMALL_BATCH = "small_batch"
    STATE = "state"
    STEP = "step"
    PROGRESS = "progress"
    ALERT = "alert"
    DELAYED = "delayed"  # the infrastructure has kept the batch from running for a while
    PUBLISHED = "published"
    HELD = "held"
    APPROVE = "approve"
    DISCARD = "discard"
    DISCARDED = "discarded"
    RETRY = "retry"
    FAILED = "failed"
    COMPLETED = "completed"


class DataKeyPurpose(StrEnum):
    """What a data key protects. Each purpose has one owner per key: a model, a batch or the deployment."""

    SUBJECTS = "subjects"  # identifiers that wait for a model, and the hashes that count people
    RECEIPTS = "receipts"  # salts and "no data held" statements of a batch
    FINGERPRINTS = "fingerprints"  # the hashes by which repeated requests are recognised


class DataKeyState(StrEnum):
    """The states of a data key. Its row is deleted before its file is destroyed."""

    PENDING = "pending"  # its file may not exist yet
    CURRENT = "current"  # protects what is written now
    RETIRED = "retired"  # protects what was written earlier, and nothing new
    DOOMED = "doomed"  # is destroyed as soon as what it still protects is under another key


class FailureCause(StrEnum):
    """Why an attempt failed. Metrics use the value as a label."""

    SILENT = "silent"  # no heartbeat for too long
    PROCESS_ENDED = "process_ended"  # the attempt's process died
    STORAGE = "storage"  # the storage does not answer or refuses requests
    DATABASE = "database"  # the database does not answer
    QUEUE = "queue"  # Redis does not answer
    DISK_FULL = "disk_full"  # no space is left for scratch files or in the storage
    RANK = "rank"  # another rank of the job was lost, or met a fault of its own machine
    DEVICE = "device"  # the configured device is not available
    KEY = "key"  # a key is missing, unreadable or not the one in use
    LOG_ROLLED_BACK = "log_rolled_back"  # the database is older than a tree head seen before
    RANK_FAILED = "rank_failed"  # another rank could not compute its share
    OUT_OF_MEMORY = "out_of_memory"
    UNEXPECTED = "unexpected"  # any other exception; the error names its type

    @property
    def is_fault(self) -> bool:
        """Whether the infrastructure is to blame.

        The same job succeeds once the machine, the storage or the installation works again, so it is retried
        without limit and nobody has to ask for it. Any other cause is an error of the job itself.
        """
        match self:
            case (
                FailureCause.SILENT
                | FailureCause.PROCESS_ENDED
                | FailureCause.STORAGE
                | FailureCause.DATABASE
                | FailureCause.QUEUE
                | FailureCause.DISK_FULL
                | FailureCause.RANK
                | FailureCause.DEVICE
                | FailureCause.KEY
                | FailureCause.LOG_ROLLED_BACK
            ):
                return True
            case FailureCause.RANK_FAILED | FailureCause.OUT_OF_MEMORY | FailureCause.UNEXPECTED:
                return False
        assert_never(self)

    @property
    def is_death(self) -> bool:
        """Whether the process of the attempt died or was lost. A job can cause that itself, every time."""
        return self in (FailureCause.SILENT, FailureCause.PROCESS_ENDED)


class HeldReason(StrEnum):
    """Why a batch is held."""

    NOT_CERTIFIABLE = "not_certifiable"
    BUDGET = "budget"
    QUALITY_GATE = "quality_gate"
    CANCELLED = "cancelled"
    UNPUBLISHED = "unpublished"  # noise was drawn, but the draw could not be published; it is never redrawn


class RefusalReason(StrEnum):
    """Why an attempt that computed on someone's rows did not lead to a release.

    Every reason to hold a batch is one, so `RefusalReason(held_reason)` is always valid.
    """

    NOT_CERTIFIABLE = "not_certifiable"
    BUDGET = "budget"
    QUALITY_GATE = "quality_gate"
    CANCELLED = "cancelled"
    UNPUBLISHED = "unpublished"
    REJECTED = "rejected"  # the model was not accepted
    FAILED = "failed"  # all attempts at the batch failed
    APPEND_REFUSED = "append refused"

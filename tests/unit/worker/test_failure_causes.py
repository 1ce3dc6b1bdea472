"""Every way in which an attempt can fail is a fault of the infrastructure or an error of the job."""

import errno
import math

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from sqlalchemy.exc import IntegrityError, OperationalError

from app.core.storage import StorageError, StorageUnavailable
from app.core.vault import KeyProblem
from app.db.rollback_guard import LogOlder
from app.db.states import FailureCause
from worker.attempt import describe
from worker.batch.solve import share_of_attempt
from worker.errors import DeviceError, OutOfMemory, RankFailed, RankLost, RankUnavailable, cause_of

OWN_ERRORS = {FailureCause.RANK_FAILED, FailureCause.OUT_OF_MEMORY, FailureCause.UNEXPECTED}


def test_every_cause_but_the_errors_of_a_job_is_a_fault() -> None:
    assert {cause for cause in FailureCause if not cause.is_fault} == OWN_ERRORS
    assert {cause for cause in FailureCause if cause.is_death} == {
        FailureCause.SILENT,
        FailureCause.PROCESS_ENDED,
    }


@pytest.mark.parametrize(
    ("problem", "cause"),
    [
        (StorageUnavailable("no answer"), FailureCause.STORAGE),
        (OSError(errno.EIO, "input/output error"), FailureCause.STORAGE),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), FailureCause.STORAGE),
        (OSError(errno.ENOSPC, "no space left on device"), FailureCause.DISK_FULL),
        (OSError(errno.EDQUOT, "quota"), FailureCause.DISK_FULL),
        (OperationalError("SELECT 1", {}, Exception("gone")), FailureCause.DATABASE),
        (RedisConnectionError("gone"), FailureCause.QUEUE),
        (RankLost("gone"), FailureCause.RANK),
        (RankUnavailable("its disk is full"), FailureCause.RANK),
        (DeviceError("no GPU"), FailureCause.DEVICE),
        (KeyProblem("no key"), FailureCause.KEY),
        (LogOlder("older"), FailureCause.LOG_ROLLED_BACK),
        (RankFailed("its log says why"), FailureCause.RANK_FAILED),
        (OutOfMemory("too large"), FailureCause.OUT_OF_MEMORY),
        (MemoryError(), FailureCause.OUT_OF_MEMORY),
        (StorageError("there is no such file"), FailureCause.UNEXPECTED),
        (FileNotFoundError(errno.ENOENT, "missing"), FailureCause.UNEXPECTED),
        (IntegrityError("INSERT", {}, Exception("twice")), FailureCause.UNEXPECTED),
        (ValueError("a bug"), FailureCause.UNEXPECTED),
    ],
)
def test_an_exception_has_a_cause(problem: Exception, cause: FailureCause) -> None:
    assert cause_of(problem) is cause


def test_a_fault_that_a_library_wrapped_is_still_a_fault() -> None:
    wrapped = RuntimeError("cannot read the file")
    wrapped.__cause__ = StorageUnavailable("no answer")
    assert cause_of(wrapped) is FailureCause.STORAGE
    unrelated = RuntimeError("a bug")
    unrelated.__context__, unrelated.__suppress_context__ = StorageUnavailable("handled"), True
    assert cause_of(unrelated) is FailureCause.UNEXPECTED


def test_any_number_of_attempts_shares_one_failure_probability() -> None:
    shares = [share_of_attempt(number) for number in range(1, 10_000)]
    assert math.fsum(shares) < 1.0
    assert math.fsum(shares) == pytest.approx(1.0, abs=1e-8)
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] > 1e-14


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (
            PermissionError(errno.EACCES, "secret name"),
            "permission denied; give the user that the worker runs as",
        ),
        (OSError(errno.ENOSPC, "secret name"), "a disk is full; make room"),
        (StorageUnavailable("secret name"), "the storage does not answer, or refuses"),
        (OperationalError("secret name", {}, Exception()), "the database does not answer"),
        (ValueError("secret name"), "ValueError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_fault_says_what_to_repair_and_quotes_no_message_of_a_library(
    problem: Exception, words: str
) -> None:
    described = describe(problem)
    assert described.startswith(words)
    assert type(problem).__name__ in described
    assert "secret" not in described

"""Errors that end an attempt: those with a message of our own, which contains no data, and their causes."""

import errno
from collections.abc import Iterator

from redis.exceptions import RedisError
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from app.core.storage import StorageUnavailable
from app.core.vault import KeyProblem
from app.db.rollback_guard import LogOlder
from app.db.states import FailureCause

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# What a file system says that is gone, broken or not ours to use. A missing file is not among them.
_UNAVAILABLE = (
    errno.EIO,
    errno.EROFS,
    errno.ESTALE,
    errno.ENODEV,
    errno.ENXIO,
    errno.EACCES,
    errno.EPERM,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOTCONN,
    errno.ETIMEDOUT,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.ECONNABORTED,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETUNREACH,
)


class WorkerProblem(Exception):
    """An error whose message is safe to store and to show."""

    cause = FailureCause.UNEXPECTED


class DeviceError(WorkerProblem):
    """The configured device is not available."""

    cause = FailureCause.DEVICE


class OutOfMemory(WorkerProblem):
    """Memory cannot hold even the smallest chunk of rows."""

    cause = FailureCause.OUT_OF_MEMORY


class RankLost(WorkerProblem):
    """Another rank ended or did not answer in time. The next attempt starts new ranks."""

    cause = FailureCause.RANK


class RankUnavailable(WorkerProblem):
    """The machine of another rank, or its way to the storage, has a fault. Its own log says which."""

    cause = FailureCause.RANK


class RankFailed(WorkerProblem):
    """Another rank could not compute its share. Its own log says where it failed."""

    cause = FailureCause.RANK_FAILED


def cause_of(problem: BaseException) -> FailureCause:
    """Classify the exception that ended an attempt.

    If a library replaced an error of the infrastructure by one of its own, the original counts.
    """
    causes = [_cause_of_one(link) for link in _chain(problem)]
    if causes[0] is FailureCause.UNEXPECTED:
        return next((cause for cause in causes if cause.is_fault), FailureCause.UNEXPECTED)
    return causes[0]


_DENIED = (errno.EACCES, errno.EPERM)
_WHAT_TO_REPAIR = {
    FailureCause.STORAGE: "the storage does not answer, or refuses what the worker asks of it",
    FailureCause.DATABASE: "the database does not answer",
    FailureCause.QUEUE: "Redis does not answer",
    FailureCause.DISK_FULL: "a disk is full; make room for the storage and the data folder",
}


def what_to_repair(problem: BaseException) -> str | None:
    """Return which part of the infrastructure somebody has to look at, or None if nobody has to.

    A lasting refusal, such as a folder of another user, is retried like an outage, so the words must say it.
    """
    if any(isinstance(link, OSError) and link.errno in _DENIED for link in _chain(problem)):
        return (
            "permission denied; give the user that the worker runs as access to the files in the storage and "
            "in the data folder"
        )
    return _WHAT_TO_REPAIR.get(cause_of(problem))


def _chain(problem: BaseException) -> Iterator[BaseException]:
    """Yield the exception and those that led to it. Python keeps the chain free of cycles."""
    link: BaseException | None = problem
    while link is not None:
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _cause_of_one(problem: BaseException) -> FailureCause:
    match problem:
        case WorkerProblem():
            return problem.cause
        case KeyProblem():
            return FailureCause.KEY
        case LogOlder():
            return FailureCause.LOG_ROLLED_BACK
        case StorageUnavailable():
            return FailureCause.STORAGE
        case OperationalError() | InterfaceError() | PoolTimeout():
            return FailureCause.DATABASE
        case DBAPIError() if problem.connection_invalidated:
            return FailureCause.DATABASE
        case RedisError():
            return FailureCause.QUEUE
        case OSError():
            return _cause_of_number(problem.errno)
        case MemoryError():
            return FailureCause.OUT_OF_MEMORY
    return FailureCause.UNEXPECTED


def _cause_of_number(number: int | None) -> FailureCause:
    if number in _NO_SPACE:
        return FailureCause.DISK_FULL
    return FailureCause.STORAGE if number in _UNAVAILABLE else FailureCause.UNEXPECTED

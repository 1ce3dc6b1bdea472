"""Errors that end an attempt with a message of our own. Those messages contain no data."""

from app.db.states import FailureCause


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


class RankFailed(WorkerProblem):
    """Another rank could not compute its share. Its own log says where it failed."""

    cause = FailureCause.RANK

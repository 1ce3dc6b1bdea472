"""Ends of an attempt that are told in our own words: the messages are fixed, and quote no data."""


class WorkerProblem(Exception):
    pass


class DeviceError(WorkerProblem):
    """The device that was asked for is not there."""


class OutOfMemory(WorkerProblem):
    """Not even the smallest chunk of rows fits into memory."""


class RankLost(WorkerProblem):
    """Another rank ended, or was silent for too long. A new attempt starts a new one."""


class RankFailed(WorkerProblem):
    """Another rank could not do its share; its own log has the place."""

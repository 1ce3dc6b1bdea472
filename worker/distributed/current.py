"""The team of this process. A process group is one per process too, and jobs are called by name alone."""

from app.settings import Settings
from worker import devices
from worker.distributed.leading import Team
from worker.distributed.meeting import Meeting
from worker.distributed.wire import GroupWire, join

_team: list[Team] = []


def form(settings: Settings, meeting: Meeting | None) -> Team:
    """Led by this process, which is alone without a meeting."""
    if meeting is None:
        _team[:] = [Team(devices.choose(settings.device))]
        return _team[0]
    device = devices.choose(settings.device, local_rank=meeting.local_rank)
    devices.share_cores(meeting.local_ranks)

    def connect() -> GroupWire:
        return join(meeting, device, settings.rank_timeout_seconds)

    _team[:] = [Team(device, meeting.size, connect)]
    return _team[0]


def team(settings: Settings) -> Team:
    return _team[0] if _team else form(settings, None)


def disband() -> None:
    for formed in _team:
        formed.close()
    _team.clear()

"""A lasting outage fills no log: its first failure, a count every minute, and its end are logged."""

from structlog.testing import capture_logs

from app.core import logging


class Steady:
    """A monotonic clock that a test moves."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_an_outage_is_logged_once_a_minute_and_at_its_end() -> None:
    steady = Steady()
    outage = logging.OutageLog(logging.get_logger("test"), "database", steady)
    with capture_logs() as lines:
        outage.over()  # there was none
        for _ in range(300):
            outage.failed(ConnectionError("with a message that is not logged"))
            steady.seconds += 0.5
        outage.over()
        outage.over()
        outage.failed(TimeoutError())
    assert [(line["event"], line.get("times")) for line in lines] == [
        ("database unavailable", None),
        ("database still unavailable", 120),
        ("database still unavailable", 120),
        ("database available again", None),
        ("database unavailable", None),
    ]
    assert lines[0]["problem"] == "ConnectionError"


def test_a_failure_after_a_quiet_while_is_a_new_outage() -> None:
    steady = Steady()
    outage = logging.OutageLog(logging.get_logger("test"), "storage", steady)
    with capture_logs() as lines:
        outage.failed(ConnectionError())
        steady.seconds = 3 * logging.OUTAGE_SECONDS
        outage.failed(ConnectionError())
    assert [line["event"] for line in lines] == ["storage unavailable"] * 2

"""The worker's verb of the `lethe` command."""

from app.cli import settings_or_exit


def worker() -> None:
    """Take jobs from the queue, each in a fresh process of its own."""
    from worker.main import run

    run(settings_or_exit())

"""The worker's verb of the `lethe` command."""

from importlib.util import find_spec

from app.startup import refuse, settings_or_exit


def worker() -> None:
    """Take jobs from the queue, each in a fresh process of its own."""
    settings = settings_or_exit()
    if find_spec("torch") is None:
        raise refuse("the worker needs torch: pip install 'lethe[worker]'")
    from worker.main import run

    run(settings)

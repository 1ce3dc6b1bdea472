"""Messages as a worker takes them: two ids for one of its own functions, and nothing else.

RQ imports and calls whatever name lies in Redis. Redis is not trusted with that: whoever can write there may
delay work, and must not be able to run code where the signing key is.
"""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from redis import Redis
from rq import Queue
from rq.exceptions import DeserializationError
from rq.job import Job
from rq.serializers import JSONSerializer

from app.db import transitions
from worker import jobs

FUNCTIONS = frozenset(transitions.FUNCTION.values())


class NotOurs(Exception):
    """The message asks for something that no dispatcher sends."""


class Message(Job):
    """A job of RQ that cannot name code: neither a function outside `worker.jobs` nor a callback."""

    adorned = False

    def restore(self, raw_data: Any) -> Any:
        restored = super().restore(raw_data)
        callbacks = ("_success_callback_name", "_failure_callback_name", "_stopped_callback_name")
        self.adorned = bool(
            any(getattr(self, name) for name in callbacks)
            or self.webhooks
            or self._dependency_ids
            or self.group_id
            or self.retries_left
            or self.repeats_left
        )
        for name in callbacks:  # RQ calls them for abandoned jobs too, which nobody executes
            setattr(self, name, None)
        self.webhooks = []
        return restored

    @property
    def func(self) -> Callable[[str, str], None]:
        self.check()
        found: Callable[[str, str], None] = getattr(jobs, str(self.func_name).rpartition(".")[2])
        return found

    def check(self) -> None:
        """Raise unless this is what a dispatcher sends; nothing is imported to find out."""
        try:
            name, arguments, surplus = self.func_name, self.args, (self.kwargs, self.instance)
        except DeserializationError:
            raise NotOurs("not JSON") from None
        if not isinstance(name, str) or name not in FUNCTIONS:
            raise NotOurs("unknown function")
        if self.adorned or any(surplus):
            raise NotOurs("more than a function and its arguments")
        if len(arguments) != 2 or not all(_is_id(argument) for argument in arguments):
            raise NotOurs("arguments are not two ids")


def _is_id(argument: object) -> bool:
    try:
        return isinstance(argument, str) and str(UUID(argument)) == argument
    except ValueError:
        return False


def open_queue(name: str, connection: Redis) -> Queue:
    """The queue as a worker sees it: whatever RQ reads from it is a `Message`."""
    return Queue(name, connection=connection, serializer=JSONSerializer, job_class=Message)

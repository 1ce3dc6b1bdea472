"""Wakes the dispatcher after requests that give it work, so that jobs start at once."""

from fastapi import BackgroundTasks, Depends

from app.gateway.auth.guard import ServicesOf


def wake_dispatcher_afterwards(services: ServicesOf, tasks: BackgroundTasks) -> None:
    """Wake the dispatcher once the response has been sent, by when the work is committed."""
    tasks.add_task(lambda: services.wake_up.call())


WAKES_DISPATCHER = Depends(wake_dispatcher_afterwards)

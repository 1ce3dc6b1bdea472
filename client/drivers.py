"""Perform what flows ask for: once by blocking, once by awaiting. The only code there are two of."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, ExitStack, aclosing, closing
from typing import Any, TypeVar

import httpx

from client.flow import Answer, Course, Effect, Flow, Item, Read, Request, Send, Sleep

T = TypeVar("T")


class Blocking:
    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def run(self, flow: Flow[T]) -> T:
        """The flow's result; items are for those who iterate."""
        course = Course(flow)
        for _ in self._items(course):
            pass
        return course.result

    def iterate(self, flow: Flow[Any]) -> Iterator[Any]:
        yield from self._items(Course(flow))

    def _items(self, course: Course[Any]) -> Iterator[Any]:
        """Whatever is open is closed, however this ends."""
        with closing(course), ExitStack() as open_bodies:
            while (wanted := course.wanted) is not None:
                if isinstance(wanted, Item):
                    yield wanted.value
                    course.go_on(None)
                    continue
                try:
                    done = self._perform(wanted, open_bodies)
                except httpx.TransportError as problem:
                    course.fail(problem)
                else:
                    course.go_on(done)

    def _perform(self, effect: Effect, open_bodies: ExitStack) -> Any:
        match effect:
            case Sleep(seconds):
                time.sleep(seconds)
                return None
            case Read(answer):
                return next(answer.chunks, b"")
            case Send(request, unread):
                open_bodies.close()  # the one before is done with
                response = self.http.send(_built(self.http, request), stream=True)
                open_bodies.callback(response.close)
                if response.is_error or not unread:
                    response.read()
                return Answer(response, response.iter_bytes() if unread else None)


class Awaiting:
    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def run(self, flow: Flow[T]) -> T:
        """The flow's result; items are for those who iterate."""
        course = Course(flow)
        async for _ in self._items(course):
            pass
        return course.result

    async def iterate(self, flow: Flow[Any]) -> AsyncGenerator[Any]:
        async with aclosing(self._items(Course(flow))) as items:
            async for item in items:
                yield item

    async def _items(self, course: Course[Any]) -> AsyncGenerator[Any]:
        """Whatever is open is closed, however this ends."""
        async with AsyncExitStack() as open_bodies:
            with closing(course):
                while (wanted := course.wanted) is not None:
                    if isinstance(wanted, Item):
                        yield wanted.value
                        course.go_on(None)
                        continue
                    try:
                        done = await self._perform(wanted, open_bodies)
                    except httpx.TransportError as problem:
                        course.fail(problem)
                    else:
                        course.go_on(done)

    async def _perform(self, effect: Effect, open_bodies: AsyncExitStack) -> Any:
        match effect:
            case Sleep(seconds):
                await asyncio.sleep(seconds)
                return None
            case Read(answer):
                return await anext(answer.chunks, b"")
            case Send(request, unread):
                await open_bodies.aclose()
                response = await self.http.send(_built(self.http, request), stream=True)
                open_bodies.push_async_callback(response.aclose)
                if response.is_error or not unread:
                    await response.aread()
                return Answer(response, response.aiter_bytes() if unread else None)


def _built(http: httpx.Client | httpx.AsyncClient, request: Request) -> httpx.Request:
    return http.build_request(
        request.method,
        request.path,
        params={name: value for name, value in request.params.items() if value is not None},
        json=request.json,
        content=request.content,
        headers=dict(request.headers),
    )

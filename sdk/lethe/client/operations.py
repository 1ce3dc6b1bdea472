"""Operations without I/O, and the two drivers that perform their I/O.

Every operation of the client is written once, as a generator. It yields effects (send this request, read the
next chunk, sleep) and receives their results. `BlockingDriver` performs the effects with blocking calls,
`AsyncDriver` with `await`, so retries, resumed transfers and polling exist once for both clients. The
decorators `operation` and `listing` turn such a generator function into a method that returns a value or an
iterator on `Lethe`, and an awaitable or an asynchronous iterator on `AsyncLethe`.
"""

import asyncio
import functools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, aclosing, closing
from dataclasses import dataclass, field
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

import httpx

P = ParamSpec("P")
T = TypeVar("T")
D = TypeVar("D", bound="BlockingDriver | AsyncDriver")


@dataclass(frozen=True)
class Request:
    """An HTTP request. Parameters that are None are not sent."""

    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    json: Any = None
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    read_timeout: float | None = None
    """Seconds without any data after which reading fails. None stands for the client's own limit."""

    @property
    def repeatable(self) -> bool:
        """Whether sending the request twice has the same effect as sending it once.

        That holds for idempotent methods (RFC 9110, 9.2.2) and for requests with an idempotency key.
        """
        return self.method in ("GET", "PUT", "DELETE") or "Idempotency-Key" in self.headers


@dataclass(frozen=True)
class Reply:
    """The response to a request. If it is streamed, `chunks` iterates over the body."""

    response: httpx.Response
    chunks: Any = None


@dataclass(frozen=True)
class Send:
    """Send a request. The result is a `Reply`; failures are raised as `httpx.TransportError`.

    A streamed body stays open until the next request of the same operation.
    """

    request: Request
    stream: bool = False


@dataclass(frozen=True)
class ReadChunk:
    """Read the next bytes of a streamed body. The result is empty at the end."""

    reply: Reply


@dataclass(frozen=True)
class Sleep:
    """Pause for some seconds."""

    seconds: float


@dataclass(frozen=True)
class Item(Generic[T]):
    """A value for the caller who iterates over the operation. Other callers do not see it."""

    value: T


Effect = Send | ReadChunk | Sleep
Procedure = Generator[Effect | Item[Any], Any, T]
ItemStream = Generator[Effect | Item[T], Any, None]


def send(request: Request, *, stream: bool = False) -> Procedure[Reply]:
    """Send a request and return the reply."""
    reply: Reply = yield Send(request, stream)
    return reply


def read_chunk(reply: Reply) -> Procedure[bytes]:
    """Return the next bytes of a streamed reply, or nothing at its end."""
    chunk: bytes = yield ReadChunk(reply)
    return chunk


class Execution(Generic[T]):
    """A running procedure. `pending` is the effect it waits for; when that is None, `result` is set."""

    result: T

    def __init__(self, procedure: Procedure[T]) -> None:
        self._procedure = procedure
        self.pending: Effect | Item[Any] | None = None
        self._advance(lambda: next(procedure))

    def resume(self, result: Any) -> None:
        """Continue with the result of the pending effect."""
        self._advance(lambda: self._procedure.send(result))

    def fail(self, error: Exception) -> None:
        """Raise an error in the procedure, at the pending effect."""
        self._advance(lambda: self._procedure.throw(error))

    def close(self) -> None:
        """Abandon the procedure and run its clean-up code."""
        self._procedure.close()

    def _advance(self, step: Callable[[], Effect | Item[Any]]) -> None:
        try:
            self.pending = step()
        except StopIteration as end:
            self.pending, self.result = None, end.value


class BlockingDriver:
    """Performs the effects of a procedure with blocking calls."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def run(self, procedure: Procedure[T]) -> T:
        """Run a procedure to its end and return its result."""
        execution = Execution(procedure)
        for _ in self._items(execution):
            pass
        return execution.result

    def iterate(self, procedure: Procedure[Any]) -> Iterator[Any]:
        """Run a procedure and yield its items."""
        yield from self._items(Execution(procedure))

    def _items(self, execution: Execution[Any]) -> Iterator[Any]:
        """Yield the items. The procedure and any open response are closed on every way out."""
        with closing(execution), ExitStack() as open_responses:
            while (pending := execution.pending) is not None:
                if isinstance(pending, Item):
                    yield pending.value
                    execution.resume(None)
                    continue
                try:
                    result = self._perform(pending, open_responses)
                except httpx.TransportError as error:
                    execution.fail(error)
                else:
                    execution.resume(result)

    def _perform(self, effect: Effect, open_responses: ExitStack) -> Any:
        match effect:
            case Sleep(seconds):
                time.sleep(seconds)
                return None
            case ReadChunk(reply):
                return next(reply.chunks, b"")
            case Send(request, stream):
                open_responses.close()  # an operation reads one response at a time
                response = self.http.send(_http_request(self.http, request), stream=True)
                open_responses.callback(response.close)
                if response.is_error or not stream:
                    response.read()
                return Reply(response, response.iter_bytes() if stream else None)


class AsyncDriver:
    """Performs the effects of a procedure with `await`."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def run(self, procedure: Procedure[T]) -> T:
        """Run a procedure to its end and return its result."""
        execution = Execution(procedure)
        async for _ in self._items(execution):
            pass
        return execution.result

    async def iterate(self, procedure: Procedure[Any]) -> AsyncGenerator[Any]:
        """Run a procedure and yield its items."""
        async with aclosing(self._items(Execution(procedure))) as items:
            async for item in items:
                yield item

    async def _items(self, execution: Execution[Any]) -> AsyncGenerator[Any]:
        """Yield the items. The procedure and any open response are closed on every way out."""
        async with AsyncExitStack() as open_responses:
            with closing(execution):
                while (pending := execution.pending) is not None:
                    if isinstance(pending, Item):
                        yield pending.value
                        execution.resume(None)
                        continue
                    try:
                        result = await self._perform(pending, open_responses)
                    except httpx.TransportError as error:
                        execution.fail(error)
                    else:
                        execution.resume(result)

    async def _perform(self, effect: Effect, open_responses: AsyncExitStack) -> Any:
        match effect:
            case Sleep(seconds):
                await asyncio.sleep(seconds)
                return None
            case ReadChunk(reply):
                return await anext(reply.chunks, b"")
            case Send(request, stream):
                await open_responses.aclose()  # an operation reads one response at a time
                response = await self.http.send(_http_request(self.http, request), stream=True)
                open_responses.push_async_callback(response.aclose)
                if response.is_error or not stream:
                    await response.aread()
                return Reply(response, response.aiter_bytes() if stream else None)


class DriverBound(Generic[D]):
    """An object whose operations run on one driver."""

    def __init__(self, driver: D) -> None:
        self.driver = driver


class operation(Generic[P, T]):  # noqa: N801  (a decorator)
    """Turn a procedure into a method that returns its result, or an awaitable of it."""

    def __init__(self, procedure: Callable[Concatenate[Any, P], Procedure[T]]) -> None:
        self.procedure = procedure
        self.__doc__ = procedure.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: DriverBound[BlockingDriver], owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(
        self, instance: DriverBound[AsyncDriver], owner: type
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else _method(self.procedure, instance, instance.driver.run)


class listing(Generic[P, T]):  # noqa: N801  (a decorator)
    """Turn a procedure into a method that returns an iterator over its items, or an asynchronous one."""

    def __init__(
        self, procedure: Callable[Concatenate[Any, P], Generator[Effect | Item[T], Any, Any]]
    ) -> None:
        self.procedure = procedure
        self.__doc__ = procedure.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: DriverBound[BlockingDriver], owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, instance: DriverBound[AsyncDriver], owner: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else _method(self.procedure, instance, instance.driver.iterate)


def _method(procedure: Callable[..., Any], instance: Any, drive: Callable[[Any], Any]) -> Callable[..., Any]:
    @functools.wraps(procedure)
    def method(*args: Any, **kwargs: Any) -> Any:
        return drive(procedure(instance, *args, **kwargs))

    return method


def _http_request(http: httpx.Client | httpx.AsyncClient, request: Request) -> httpx.Request:
    return http.build_request(
        request.method,
        request.path,
        params={name: value for name, value in request.params.items() if value is not None},
        json=request.json,
        content=request.content,
        headers=dict(request.headers),
        timeout=_timeout(http.timeout, request.read_timeout),
    )


def _timeout(usual: httpx.Timeout, read: float | None) -> httpx.Timeout:
    if read is None:
        return usual
    return httpx.Timeout(connect=usual.connect, read=read, write=usual.write, pool=usual.pool)

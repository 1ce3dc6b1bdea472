"""Every operation is written once, as a generator that says what it wants done: a flow.

A flow yields effects (send this, read on, sleep) and is sent their results. Two small drivers perform the
effects, one blocking and one awaiting; so retries, resumed transfers and waiting exist once for both.
The descriptors below turn a resource's flow into a method that gives a value on `Lethe` and an awaitable on
`AsyncLethe`.
"""

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

import httpx

if TYPE_CHECKING:
    from client.drivers import Awaiting, Blocking

P = ParamSpec("P")
T = TypeVar("T")
D = TypeVar("D", bound="Blocking | Awaiting")


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    json: Any = None
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def repeatable(self) -> bool:
        """Whether sending it twice is the same as sending it once (RFC 9110, 9.2.2, and our key)."""
        return self.method in ("GET", "PUT", "DELETE") or "Idempotency-Key" in self.headers


@dataclass(frozen=True)
class Answer:
    """`chunks` iterates over the body where it was left unread."""

    response: httpx.Response
    chunks: Any = None


@dataclass(frozen=True)
class Send:
    """→ Answer; a failure to get one is raised in the flow as `httpx.TransportError`."""

    request: Request
    unread: bool = False


@dataclass(frozen=True)
class Read:
    """→ the next bytes of an unread body, empty at its end."""

    answer: Answer


@dataclass(frozen=True)
class Sleep:
    seconds: float


@dataclass(frozen=True)
class Item(Generic[T]):
    """Something for whoever iterates; nobody else sees it."""

    value: T


Effect = Send | Read | Sleep
Flow = Generator[Effect | Item[Any], Any, T]
Items = Generator[Effect | Item[T], Any, None]


def send(request: Request, *, unread: bool = False) -> Flow[Answer]:
    answer: Answer = yield Send(request, unread)
    return answer


def read(answer: Answer) -> Flow[bytes]:
    chunk: bytes = yield Read(answer)
    return chunk


class Course(Generic[T]):
    """A flow under way: what it wants next, or what came of it."""

    result: T

    def __init__(self, flow: Flow[T]) -> None:
        self._flow = flow
        self.wanted: Effect | Item[Any] | None = None
        self._advance(lambda: next(flow))

    def go_on(self, done: Any) -> None:
        self._advance(lambda: self._flow.send(done))

    def fail(self, problem: Exception) -> None:
        self._advance(lambda: self._flow.throw(problem))

    def close(self) -> None:
        self._flow.close()

    def _advance(self, step: Callable[[], Effect | Item[Any]]) -> None:
        try:
            self.wanted = step()
        except StopIteration as end:
            self.wanted, self.result = None, end.value


class Resource(Generic[D]):
    """One noun of the API, on a driver."""

    def __init__(self, driver: D) -> None:
        self.driver = driver


class operation(Generic[P, T]):  # noqa: N801  (a decorator)
    """A flow as a method: its result, or an awaitable of it."""

    def __init__(self, flow: Callable[Concatenate[Any, P], Flow[T]]) -> None:
        self.flow = flow
        self.__doc__ = flow.__doc__

    @overload
    def __get__(self, resource: None, owner: type) -> Self: ...
    @overload
    def __get__(self, resource: "Resource[Blocking]", owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, resource: "Resource[Awaiting]", owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, resource: Any, owner: type) -> Any:
        return self if resource is None else _method(self.flow, resource, resource.driver.run)


class listing(Generic[P, T]):  # noqa: N801  (a decorator)
    """A flow's items as a method: an iterator, or an asynchronous one."""

    def __init__(self, flow: Callable[Concatenate[Any, P], Generator[Effect | Item[T], Any, Any]]) -> None:
        self.flow = flow
        self.__doc__ = flow.__doc__

    @overload
    def __get__(self, resource: None, owner: type) -> Self: ...
    @overload
    def __get__(self, resource: "Resource[Blocking]", owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, resource: "Resource[Awaiting]", owner: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, resource: Any, owner: type) -> Any:
        return self if resource is None else _method(self.flow, resource, resource.driver.iterate)


def _method(flow: Callable[..., Any], resource: Any, drive: Callable[[Any], Any]) -> Callable[..., Any]:
    @functools.wraps(flow)
    def method(*args: Any, **kwargs: Any) -> Any:
        return drive(flow(resource, *args, **kwargs))

    return method

"""What the nouns of the API share: an answer, all pages of a list, and waiting until something has ended."""

import time
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar
from urllib.parse import quote
from uuid import UUID

from pydantic import BaseModel

from client.errors import TimedOut
from client.flow import D, Effect, Flow, Item, Items, Request, Resource, Sleep
from client.requests import Retry, answered, parsed

T = TypeVar("T")
LARGEST_PAGE = 200
FIRST_LOOK, LAST_LOOK = 0.2, 2.0  # seconds between looks
Id = UUID | str


def at(*steps: object) -> str:
    """A path below /v1, of names as someone typed them."""
    return "/v1/" + "/".join(quote(str(step), safe="") for step in steps)


class Page(BaseModel, Generic[T]):
    items: list[T]
    next_cursor: str | None


class Noun(Resource[D]):
    def __init__(self, driver: D, retry: Retry) -> None:
        super().__init__(driver)
        self._retry = retry

    def _take(self, request: Request, kind: type[T]) -> Flow[T]:
        """The JSON answer to a request, as `kind`."""
        answer = yield from answered(request, self._retry)
        return parsed(answer.response, kind)

    def _get(self, path: str, kind: type[T], **params: Any) -> Flow[T]:
        return self._take(Request("GET", path, params), kind)

    def _post(self, path: str, kind: type[T], json: Any = None, **params: Any) -> Flow[T]:
        return self._take(Request("POST", path, json=json, params=params), kind)

    def _bytes(self, path: str) -> Flow[bytes]:
        """The answer byte for byte: what was signed must not be written anew."""
        answer = yield from answered(Request("GET", path), self._retry)
        return answer.response.content

    def _pages(self, path: str, kind: type[T], most: int | None, **params: Any) -> Items[T]:
        """Items of every page, newest first; at most `most` of them."""
        left, cursor = most, None
        while left is None or left > 0:
            size = LARGEST_PAGE if left is None else min(LARGEST_PAGE, left)
            asked = Request("GET", path, params | {"limit": size, "cursor": cursor})
            page: Page[T] = yield from self._take(asked, Page[kind])  # type: ignore[valid-type]
            for item in page.items:
                yield Item(item)
            left = None if left is None else left - len(page.items)
            cursor = page.next_cursor
            if cursor is None:
                return


def until(
    look: Callable[[], Flow[T]],
    ended: Callable[[T], bool],
    *,
    timeout: float | None,
    tell: Callable[[T], object] | None = None,
) -> Generator[Effect | Item[T], Any, T]:
    """Look until it has ended, ever less often; every change is an item, and told."""
    deadline = None if timeout is None else time.monotonic() + timeout
    seen: T | None = None
    pause = FIRST_LOOK
    while True:
        found = yield from look()
        if found != seen:
            seen = found
            if tell is not None:
                tell(found)
            yield Item(found)
        if ended(found):
            return found
        left = pause if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise TimedOut(f"not ended within {timeout:g} s; it goes on at the server")
        yield Sleep(min(pause, left))
        pause = min(LAST_LOOK, pause * 1.3)

"""The base of every group of endpoints: typed requests, paginated lists and waiting."""

from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar
from urllib.parse import quote
from uuid import UUID

from pydantic import BaseModel

from lethe.client.changes import StreamSlots, Watch
from lethe.client.operations import D, DriverBound, Effect, Item, ItemStream, Procedure, Request
from lethe.client.transport import Retry, exchange, parse

T = TypeVar("T")
PAGE_SIZE = 200  # the largest page that the service returns
Id = UUID | str


def path(*segments: object) -> str:
    """Return a path below /v1. Segments are quoted, so a name cannot lead to another endpoint."""
    return "/v1/" + "/".join(quote(str(segment), safe="") for segment in segments)


class Page(BaseModel, Generic[T]):
    """One page of a list. `next_cursor` is None on the last page."""

    items: list[T]
    next_cursor: str | None


class EndpointGroup(DriverBound[D]):
    """A group of endpoints of the API, such as `lethe.models`."""

    def __init__(self, driver: D, retry: Retry, slots: StreamSlots | None = None) -> None:
        super().__init__(driver)
        self._retry, self._slots = retry, slots or StreamSlots()

    def _request(self, request: Request, kind: type[T]) -> Procedure[T]:
        """Send a request and parse the JSON response as `kind`."""
        reply = yield from exchange(request, self._retry)
        return parse(reply.response, kind)

    def _get(self, url: str, kind: type[T], **params: Any) -> Procedure[T]:
        return self._request(Request("GET", url, params), kind)

    def _post(self, url: str, kind: type[T], json: Any = None, **params: Any) -> Procedure[T]:
        return self._request(Request("POST", url, json=json, params=params), kind)

    def _get_bytes(self, url: str) -> Procedure[bytes]:
        """Fetch a body unchanged. A signed document must not be parsed and written again."""
        reply = yield from exchange(Request("GET", url), self._retry)
        return reply.response.content

    def _get_pages(self, url: str, kind: type[T], limit: int | None, **params: Any) -> ItemStream[T]:
        """Yield the items of every page, newest first, up to `limit` items."""
        left, cursor = limit, None
        while left is None or left > 0:
            size = PAGE_SIZE if left is None else min(PAGE_SIZE, left)
            request = Request("GET", url, params | {"limit": size, "cursor": cursor})
            page: Page[T] = yield from self._request(request, Page[kind])  # type: ignore[valid-type]
            for item in page.items:
                yield Item(item)
            left = None if left is None else left - len(page.items)
            cursor = page.next_cursor
            if cursor is None:
                return

    def _watch(
        self,
        url: str,
        kind: type[T],
        ended: Callable[[T], bool],
        *,
        timeout: float | None,
        on_change: Callable[[T], object] | None = None,
        fetch: Callable[[], Procedure[T]] | None = None,
    ) -> Generator[Effect | Item[T], Any, T]:
        """Wait until the resource at `url` has ended, and return it.

        Every change is yielded as an item and passed to `on_change`. Raises `TimedOut` after `timeout`
        seconds.
        """
        read = fetch or (lambda: self._get(url, kind))
        watch = Watch(f"{url}/changes", kind, read, ended, timeout=timeout, on_change=on_change)
        return watch.run(self._slots, self._retry)

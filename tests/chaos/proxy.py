"""TCP proxies on loopback, one between any two parts that talk. A test can stall or cut each of them."""

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

Open = Callable[[], Any]
"""Connects to the server behind a link: returns a coroutine for a pair of streams."""


class Link:
    """One proxied connection between a client and a server. Any number of connections may pass through it."""

    def __init__(self, name: str, open_server: Open, loop: asyncio.AbstractEventLoop) -> None:
        self.name = name
        self._open, self._loop = open_server, loop
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._is_cut = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])

    async def listen(self) -> None:
        """Begin to accept connections."""
        self._server = await asyncio.start_server(self._serve, sock=self._socket)

    def close(self) -> None:
        """Accept no more connections, and reset those there are. Call this on the event loop."""
        self._server.close()
        self._cut()

    def stall(self) -> None:
        """Stop forwarding. Connections stay open, but nothing arrives."""
        self._loop.call_soon_threadsafe(self._flowing.clear)

    def cut(self) -> None:
        """Reset all connections, and refuse new ones."""
        self._loop.call_soon_threadsafe(self._cut)

    def heal(self) -> None:
        """Forward again, and accept new connections."""
        self._loop.call_soon_threadsafe(self._heal)

    def _cut(self) -> None:
        self._is_cut = True
        for writer in self._writers:
            writer.transport.abort()

    def _heal(self) -> None:
        self._is_cut = False
        self._flowing.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        try:
            server_reader, server_writer = await self._open()
        except OSError:  # the server is down
            writer.transport.abort()
            return
        ends = {writer, server_writer}
        self._writers |= ends
        try:
            await asyncio.gather(self._forward(reader, server_writer), self._forward(server_reader, writer))
        finally:
            self._writers -= ends
            for end in ends:
                end.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort() if writer.is_closing() else writer.close()


class Proxies:
    """All links of a service, on an event loop of their own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()
        self.links: list[Link] = []

    def link_to_port(self, name: str, port: int) -> Link:
        """Open a link to a server on loopback."""
        return self._link(name, lambda: asyncio.open_connection("127.0.0.1", port))

    def link_to_socket(self, name: str, path: str) -> Link:
        """Open a link to a server with a Unix socket."""
        return self._link(name, lambda: asyncio.open_unix_connection(path))

    def close(self) -> None:
        """Close all links."""
        self._call(self._cancel_all()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _link(self, name: str, open_server: Open) -> Link:
        link = Link(name, open_server, self._loop)
        self._call(link.listen()).result()
        self.links.append(link)
        return link

    def _call(self, coroutine: Any) -> "Future[Any]":
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def _cancel_all(self) -> None:
        for link in self.links:
            link.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

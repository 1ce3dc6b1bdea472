"""The encoder as the attempt uses it: the graph runs in another process, which may crash."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from app.core import process
from worker.representation import sandbox
from worker.representation.errors import RepresentationError, RowError
from worker.representation.request import GraphRequest, request_pieces, row_pieces

_COMMAND: Final = ("-P", "-m", "worker.representation.encoding")
_ANSWER_BYTES: Final = 1 << 20
_END_SECONDS: Final = 10.0  # how long a process that has closed its output may take to end


class IsolatedEncoder:
    """Turns raw rows into features in a process of its own, under the limits of the request.

    After an error it cannot be used again. Call `close` in any case: it ends the process.
    """

    def __init__(self, request: GraphRequest, *, width: int) -> None:
        self._request = request
        self._width = width
        self._child = sandbox.start(_COMMAND, subprocess.PIPE)
        self._is_new = True

    def close(self) -> None:
        """End the process."""
        process.kill(self._child)
        for pipe in (self._child.stdin, self._child.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # what the process has not read
                pipe.close()

    def encode(self, rows: pa.Array) -> npt.NDArray[np.float32]:
        """Return the features of the rows: (len(rows), width).

        Raises `RowError` for the first row that cannot be used, and `RepresentationError` if the graph or the
        tokenizer fails, crashes, takes too long or needs too much memory.
        """
        assert self._child.stdin is not None
        with suppress(BrokenPipeError):  # the process has ended, and may have said why
            for piece in self._pieces(rows):
                self._child.stdin.write(piece)
            self._child.stdin.flush()
        return self._read(len(rows))

    def _pieces(self, rows: pa.Array) -> Iterator[bytes]:
        if self._is_new:
            self._is_new = False
            yield from request_pieces(self._request)
        yield from row_pieces(rows)

    def _read(self, count: int) -> npt.NDArray[np.float32]:
        source = self._child.stdout
        assert source is not None
        answer = _parse(source.readline(_ANSWER_BYTES))
        if "reasons" in answer:
            raise _problem(answer)
        width = answer.get("width", 0)
        data = source.read(4 * count * width)
        if answer.get("rows") != count or len(data) != 4 * count * width:
            process.wait(self._child, _END_SECONDS)
            process.kill(self._child)
            raise RepresentationError([self._describe_end()])
        if width != self._width:
            raise RepresentationError(
                [f"the outputs have {width:,} numbers per row, but had {self._width:,} in the check"]
            )
        return np.frombuffer(data, np.float32).reshape(count, width)

    def _describe_end(self) -> str:
        limits, end = self._request.limits, self._child.returncode
        if -end == signal.SIGALRM:
            return (
                f"the graph or the tokenizer needs more than {limits.alarm_seconds:g} seconds for one batch "
                "of rows"
            )
        return sandbox.describe_crash(end, limits)


def _parse(line: bytes) -> dict[str, Any]:
    """Return the first line of an answer. A process that has crashed leaves none, or only its beginning."""
    try:
        answer: dict[str, Any] = json.loads(line)
    except ValueError:
        return {}
    return answer


def _problem(answer: dict[str, Any]) -> RowError | RepresentationError:
    if "row" in answer:
        return RowError(answer["row"], answer["reasons"][0])
    return RepresentationError(answer["reasons"])

"""The check of a representation at registration, in a process of its own that may crash."""

import signal
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Final

import pyarrow as pa
from pydantic import TypeAdapter, ValidationError

from app.core import process
from lethe.certificate.representation import Representation, RowCheck
from worker.representation import sandbox
from worker.representation.errors import RepresentationError
from worker.representation.limits import Limits
from worker.representation.request import GraphRequest, request_pieces

SAMPLES: Final = 8
_COMMAND: Final = ("-P", "-m", "worker.representation.probe")
_ANSWER_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Checked:
    """What the check of an accepted representation measured."""

    width: int
    row_check: RowCheck
    batch_rows: int
    operators: tuple[str, ...]
    nodes: int


@dataclass(frozen=True)
class Answer:
    """What the process that tried the graph reports: the result, or every reason against it."""

    checked: Checked | None
    reasons: list[str]


def check_representation(
    declaration: Representation,
    graph: bytes,
    tokenizer: bytes | None,
    *,
    limits: Limits,
    device: str = "cpu",
    samples: pa.Array | None = None,
) -> Checked:
    """Try a graph on zeros, random rows and up to 8 sample rows, and return how to run it.

    Raises `RepresentationError` with every reason against it. The graph is loaded in another process, so
    that one that crashes, hangs or takes all memory does no harm here.
    """
    reasons = _size_problems(graph, tokenizer, limits)
    if reasons:
        raise RepresentationError(reasons)
    first = None if samples is None else samples.slice(0, SAMPLES)
    answer = _ask(GraphRequest(declaration, graph, tokenizer, limits, device, first))
    if answer.checked is None:
        raise RepresentationError(answer.reasons)
    return answer.checked


def _size_problems(graph: bytes, tokenizer: bytes | None, limits: Limits) -> list[str]:
    reasons = []
    if len(graph) > limits.graph_bytes:
        reasons.append(f"the graph file is larger than {limits.graph_bytes:,} bytes")
    if len(tokenizer or b"") > limits.tokenizer_bytes:
        reasons.append(f"the tokenizer is larger than {limits.tokenizer_bytes:,} bytes")
    return reasons


def _ask(request: GraphRequest) -> Answer:
    """Run the process on a request and return its answer."""
    with tempfile.TemporaryFile() as output:
        child = sandbox.start(_COMMAND, output)
        assert child.stdin is not None
        # Rows go through a pipe and never touch the disk. The thread ends when the process does.
        feeder = threading.Thread(target=_feed, args=(child.stdin, request), daemon=True)
        feeder.start()
        try:
            ended = process.wait(child, request.limits.probe_seconds)
        finally:
            process.kill(child)
            feeder.join()
        if not ended:
            raise RepresentationError([_too_slow(request.limits)])
        if child.returncode != 0:
            raise RepresentationError([_describe_end(child.returncode, request.limits)])
        output.seek(0)
        return _parse(output.read(_ANSWER_BYTES))


def _feed(pipe: IO[bytes], request: GraphRequest) -> None:
    with suppress(BrokenPipeError), pipe:  # the process may end before it has read everything
        for piece in request_pieces(request):
            pipe.write(piece)


def _parse(output: bytes) -> Answer:
    try:
        return TypeAdapter(Answer).validate_json(output)
    except ValidationError:
        raise RepresentationError(["the check of the graph ended without a result"]) from None


def _describe_end(returncode: int, limits: Limits) -> str:
    """Say why the process ended without an answer."""
    if -returncode == signal.SIGXCPU:
        return _too_slow(limits)
    return sandbox.describe_crash(returncode, limits)


def _too_slow(limits: Limits) -> str:
    return f"the check of the graph took longer than {limits.probe_seconds:g} seconds"

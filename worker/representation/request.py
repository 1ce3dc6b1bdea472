"""Requests to the processes that run a graph, and rows for them: how they go through a pipe."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import IO

import pyarrow as pa

from lethe.certificate.representation import Representation
from worker.representation.limits import Limits

_SIZE_BYTES = 8


@dataclass(frozen=True)
class GraphRequest:
    """Everything that a process needs to run a graph."""

    declaration: Representation
    graph: bytes
    tokenizer: bytes | None
    limits: Limits
    device: str
    samples: pa.Array | None = None
    batch_rows: int | None = None
    """The rows per run of the graph, or None for the default."""


def request_pieces(request: GraphRequest) -> Iterator[bytes]:
    """Yield the request: one line of JSON with the sizes of the files, then the files."""
    samples = None if request.samples is None else dump_rows(request.samples)
    header = {
        "declaration": request.declaration.model_dump_json(),
        "limits": asdict(request.limits),
        "device": request.device,
        "batch_rows": request.batch_rows,
        "graph": len(request.graph),
        "tokenizer": None if request.tokenizer is None else len(request.tokenizer),
        "samples": None if samples is None else len(samples),
    }
    yield json.dumps(header).encode() + b"\n"
    yield request.graph
    yield request.tokenizer or b""
    yield samples or b""


def read_request(source: IO[bytes]) -> GraphRequest:
    """Read a request as `request_pieces` writes it."""
    header = json.loads(source.readline())
    graph = read_exactly(source, header["graph"])
    tokenizer = None if header["tokenizer"] is None else read_exactly(source, header["tokenizer"])
    samples = None if header["samples"] is None else load_rows(read_exactly(source, header["samples"]))
    return GraphRequest(
        declaration=Representation.model_validate_json(header["declaration"]),
        graph=graph,
        tokenizer=tokenizer,
        limits=Limits(**header["limits"]),
        device=header["device"],
        samples=samples,
        batch_rows=header["batch_rows"],
    )


def row_pieces(rows: pa.Array) -> Iterator[bytes]:
    """Yield rows after a request: the size of the array, then the array."""
    data = dump_rows(rows)
    yield len(data).to_bytes(_SIZE_BYTES)
    yield data


def read_pieces(source: IO[bytes]) -> Iterator[pa.Array]:
    """Yield what `row_pieces` wrote until the input ends."""
    while size := source.read(_SIZE_BYTES):
        yield load_rows(read_exactly(source, int.from_bytes(size)))


def read_exactly(source: IO[bytes], size: int) -> bytes:
    """Return the next `size` bytes, or raise `EOFError`."""
    data = source.read(size)
    if len(data) != size:
        raise EOFError("the request is incomplete")
    return data


def dump_rows(rows: pa.Array) -> bytes:
    """Return an array in Arrow's stream format."""
    batch = pa.record_batch([rows], ["rows"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def load_rows(data: bytes) -> pa.Array:
    """Return the array that `dump_rows` wrote."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch().column(0)

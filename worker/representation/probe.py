"""The process that tries a graph: `python -m worker.representation.probe`, started by the check.

A hostile graph can exhaust memory, run forever or crash ONNX Runtime, so it is loaded here first, under
limits of the operating system and without any secret. The request comes on stdin and the answer, one JSON
object, goes to stdout.
"""

import json
import sys
from dataclasses import asdict
from typing import IO, Any

from lethe.certificate.representation import Representation
from worker.representation import sandbox
from worker.representation.check import Checked
from worker.representation.comparison import compare_rows
from worker.representation.encoder import Encoder
from worker.representation.errors import RepresentationError
from worker.representation.inspection import GraphSummary, inspect_graph
from worker.representation.limits import Limits
from worker.representation.request import GraphRequest, read_request
from worker.representation.rows import open_reader


def main(source: IO[bytes], answer: IO[str]) -> None:
    """Read a request, try the graph, and write the result or every reason to refuse it."""
    request = read_request(source)
    sandbox.limit_process(request.limits, request.device, seconds=request.limits.probe_seconds)
    json.dump(_answer(request), answer)


def _answer(request: GraphRequest) -> dict[str, Any]:
    try:
        return {"checked": asdict(_try(request)), "reasons": []}
    except RepresentationError as problem:
        return {"checked": None, "reasons": problem.reasons}
    except MemoryError:
        return {"checked": None, "reasons": [sandbox.too_much_memory(request.limits)]}


def _try(request: GraphRequest) -> Checked:
    summary = _inspect(request.declaration, request.graph, request.tokenizer, request.limits)

    def open_encoder(batch_rows: int | None) -> Encoder:
        return Encoder(
            request.declaration,
            request.graph,
            request.tokenizer,
            limits=request.limits,
            device=request.device,
            batch_rows=batch_rows,
        )

    compared = compare_rows(open_encoder, request.samples)
    return Checked(
        width=compared.width,
        row_check=compared.row_check,
        batch_rows=compared.batch_rows,
        operators=summary.operators,
        nodes=summary.nodes,
    )


def _inspect(
    declaration: Representation, graph: bytes, tokenizer: bytes | None, limits: Limits
) -> GraphSummary:
    """Collect the reasons against the graph, the tokenizer and the constants before anything runs."""
    reasons: list[str] = []
    summary: GraphSummary | None = None
    try:
        summary = inspect_graph(declaration, graph, limits)
    except RepresentationError as problem:
        reasons += problem.reasons
    try:
        open_reader(declaration, tokenizer, limits)
    except RepresentationError as problem:
        reasons += problem.reasons
    if summary is None or reasons:
        raise RepresentationError(reasons)
    return summary


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout)

"""The process that turns rows into features: `python -m worker.representation.encoding`.

`IsolatedEncoder` starts it. It reads a request and then pieces of rows from stdin, and answers each on
stdout. An answer is one line of JSON, followed by the features if there are any.
"""

import json
import signal
import sys
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from worker.representation import sandbox
from worker.representation.encoder import Encoder
from worker.representation.errors import RepresentationError, RowError
from worker.representation.limits import Limits
from worker.representation.request import read_pieces, read_request


def main(source: IO[bytes], answers: IO[bytes]) -> None:
    """Open the graph of a request and encode rows until the input ends."""
    request = read_request(source)
    limits = request.limits
    sandbox.limit_process(limits, request.device)
    try:
        _set_alarm(limits)
        encoder = Encoder(
            request.declaration,
            request.graph,
            request.tokenizer,
            limits=limits,
            device=request.device,
            batch_rows=request.batch_rows,
        )
        for rows in read_pieces(source):
            features = _encode(encoder, rows, limits)
            _answer(answers, {"rows": features.shape[0], "width": features.shape[1]}, features)
    except RowError as problem:
        _answer(answers, {"row": problem.row, "reasons": [problem.reason]})
    except RepresentationError as problem:
        _answer(answers, {"reasons": problem.reasons})
    except MemoryError:
        _answer(answers, {"reasons": [sandbox.too_much_memory(limits)]})


def _encode(encoder: Encoder, rows: pa.Array, limits: Limits) -> npt.NDArray[np.float32]:
    """Return the features of a piece. If one batch takes too long, the process is killed."""
    features = np.empty((len(rows), encoder.width), np.float32)
    for start in range(0, len(rows), encoder.batch_rows):
        _set_alarm(limits)
        batch = rows.slice(start, encoder.batch_rows)
        try:
            features[start : start + len(batch)] = encoder.encode(batch)
        except RowError as problem:
            raise RowError(start + problem.row, problem.reason) from None
    signal.setitimer(signal.ITIMER_REAL, 0.0)  # waiting for rows takes as long as it takes
    return features


def _set_alarm(limits: Limits) -> None:
    """Let the kernel end this process after a while, even within an operator or the tokenizer."""
    signal.setitimer(signal.ITIMER_REAL, limits.alarm_seconds)


def _answer(
    answers: IO[bytes], header: dict[str, Any], features: npt.NDArray[np.float32] | None = None
) -> None:
    answers.write(json.dumps(header).encode() + b"\n")
    if features is not None:
        answers.write(features.tobytes())
    answers.flush()


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)

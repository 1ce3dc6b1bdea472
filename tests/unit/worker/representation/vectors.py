"""A small graph over vectors that tests alter, and ways to declare and run it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
from onnx import ModelProto, TensorProto, helper, numpy_helper

from lethe.certificate.representation import Representation
from tests.representations import ORIGIN
from worker.representation.encoder import Encoder
from worker.representation.limits import Limits

WIDTH, FEATURES = 4, 3
LIMITS = Limits()
MATRIX = np.random.default_rng(3).normal(size=(WIDTH, FEATURES)).astype(np.float32)
VECTORS: dict[str, Any] = {"input": {"kind": "vector", "width": WIDTH}, "outputs": ["features"], **ORIGIN}


def declare(fields: dict[str, Any], **changes: Any) -> Representation:
    """Return a declaration, with some fields of it or of its input replaced."""
    row = {name: value for name, value in changes.items() if name not in Representation.model_fields}
    rest = {name: value for name, value in changes.items() if name in Representation.model_fields}
    return Representation.model_validate({**fields, "input": {**fields["input"], **row}, **rest})


def tensor(name: str, axes: Any, element: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    """Return the declaration of a graph's input or output."""
    return helper.make_tensor_value_info(name, element, axes)


def vector_model(
    nodes: list[onnx.NodeProto] | None = None,
    *,
    rows: Any = "N",
    outputs: list[onnx.ValueInfoProto] | None = None,
    constants: dict[str, np.ndarray] | None = None,
    opset: int = 17,
) -> ModelProto:
    """Return a model over vectors. Unless nodes are passed in, it multiplies them with `MATRIX`."""
    graph = helper.make_graph(
        nodes or [helper.make_node("MatMul", ["x", "matrix"], ["features"], name="project")],
        "test",
        [tensor("x", [rows, WIDTH])],
        outputs or [tensor("features", [rows, FEATURES])],
        [
            numpy_helper.from_array(value, name)
            for name, value in {"matrix": MATRIX, **(constants or {})}.items()
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def to_bytes(model: ModelProto) -> bytes:
    """Return the model as a file."""
    return bytes(model.SerializeToString())


def altered(change: Callable[[ModelProto], object]) -> bytes:
    """Return the small graph after a change."""
    model = vector_model()
    change(model)
    return to_bytes(model)


def vectors(rows: Any) -> pa.Array:
    """Return rows of numbers as a column of a part."""
    numbers = np.asarray(rows, np.float32)
    return pa.FixedSizeListArray.from_arrays(pa.array(numbers.ravel()), numbers.shape[1])


def open_encoder(
    graph: bytes,
    fields: dict[str, Any] | None = None,
    tokenizer: bytes | None = None,
    *,
    limits: Limits = LIMITS,
    batch_rows: int | None = None,
    **changes: Any,
) -> Encoder:
    """Open a graph in this process, on one thread."""
    declaration = declare(fields or VECTORS, **changes)
    return Encoder(declaration, graph, tokenizer, limits=limits, batch_rows=batch_rows, threads=1)

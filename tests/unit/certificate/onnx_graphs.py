"""Small representations as real ONNX graphs, and exports of certified models that use them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from lethe.certificate.onnx_file import head_of, join
from lethe.certificate.representation import CertifiedRepresentation, VectorInput
from tests.unit.certificate.certificate_cases import Issued, Issuer
from tests.unit.certificate.certificate_reports import KEY
from tests.unit.certificate.representation_cases import IMAGE, TEXT, certified

WIDTH = 99  # with ten classes, this makes the dimension of the certificates under test
ROW = VectorInput(kind="vector", width=12)
Array = NDArray[Any]
_IR_OF_OPSET = {7: 3, 9: 4, 13: 7, 17: 8, 21: 10, 23: 11}


def _model(
    nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: dict[str, Array], opset: int
) -> bytes:
    """Serialise a graph. Constants are nodes: old formats require initialisers to be inputs."""
    tensors = {name: numpy_helper.from_array(value) for name, value in constants.items()}
    made = [helper.make_node("Constant", [], [name], value=value) for name, value in tensors.items()]
    graph = helper.make_graph([*made, *nodes], "backbone", inputs, outputs)
    imports = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=_IR_OF_OPSET[opset])
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def _random(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def vector_graph(opset: int = 13, *, output: str = "hidden") -> bytes:
    """Return a layer from 12 numbers to 99."""
    nodes = [
        helper.make_node("MatMul", ["row", "layer"], ["product"]),
        helper.make_node("Relu", ["product"], [output]),
    ]
    inputs = [helper.make_tensor_value_info("row", TensorProto.FLOAT, ["n", 12])]
    outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["n", WIDTH])]
    return _model(nodes, inputs, outputs, {"layer": _random(12, WIDTH)}, opset)


def image_graph(opset: int = 13) -> bytes:
    """Return a convolution with two outputs: 90 numbers in three dimensions, and 9 means."""
    nodes = [
        helper.make_node("Conv", ["image", "filters"], ["maps"], kernel_shape=[4, 4], strides=[4, 4]),
        helper.make_node("GlobalAveragePool", ["maps"], ["means"]),
        helper.make_node("Conv", ["image", "more"], ["wide"], kernel_shape=[8, 8]),
    ]
    inputs = [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, 8, 8])]
    outputs = [
        helper.make_tensor_value_info("wide", TensorProto.FLOAT, ["n", 90, 1, 1]),
        helper.make_tensor_value_info("means", TensorProto.FLOAT, ["n", 9, 1, 1]),
    ]
    constants = {"filters": _random(9, 3, 4, 4), "more": _random(90, 3, 8, 8)}
    return _model(nodes, inputs, outputs, constants, opset)


def text_graph(opset: int = 13) -> bytes:
    """Return a mean of embeddings over token ids."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["embedded"], axis=0),
        helper.make_node("Transpose", ["embedded"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("GlobalAveragePool", ["turned"], ["mean"]),
    ]
    inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, "tokens"])]
    outputs = [helper.make_tensor_value_info("mean", TensorProto.FLOAT, [1, WIDTH, 1])]
    return _model(nodes, inputs, outputs, {"table": _random(50, WIDTH)}, opset)


@dataclass(frozen=True, repr=False)
class Export:
    """A certified model, its graph and its ONNX file."""

    issuer: Issuer
    issued: Issued
    graph: bytes | None
    data: bytes

    def __repr__(self) -> str:
        return f"<export of {self.issued.predicate.objective.family}>"

    @property
    def weights(self) -> bytes:
        assert self.issued.weights is not None
        return self.issued.weights


def export(
    graph: bytes | None, representation: CertifiedRepresentation | None, family: str = "softmax"
) -> Export:
    """Certify a model on this representation and export it."""
    shape = (10, WIDTH) if family == "softmax" else (1, 999)
    issuer = Issuer(KEY, family=family, representation=representation, shape=shape)
    issued = issuer.issue("tr-proved")
    assert issued.weights is not None
    return Export(issuer, issued, graph, join(graph, head_of(issued.weights, issued.predicate)))


def vector_export(opset: int = 13, normalisation: str = "none", output: str = "hidden") -> Export:
    """Export a model on vectors."""
    graph = vector_graph(opset, output=output)
    return export(graph, certified(ROW, graph=graph, outputs=(output,), normalisation=normalisation))


def image_export(opset: int = 13, normalisation: str = "none") -> Export:
    """Export a model on images, with two outputs joined."""
    graph = image_graph(opset)
    return export(
        graph, certified(IMAGE, graph=graph, outputs=("wide", "means"), normalisation=normalisation)
    )


def text_export(opset: int = 13, normalisation: str = "none") -> Export:
    """Export a model on texts."""
    graph = text_graph(opset)
    return export(graph, certified(TEXT, graph=graph, outputs=("mean",), normalisation=normalisation))

"""A small builder of ONNX graphs: nodes and constants are added one by one, values are known by name."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET, IR_VERSION = 17, 8
Shape = Sequence[int | str]


class GraphBuilder:
    """Collects the nodes, constants, inputs and outputs of one graph."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    def add_input(self, name: str, shape: Shape, kind: int = TensorProto.FLOAT) -> str:
        """Declare an input of the graph and return its name."""
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def add_output(self, value: str, name: str, shape: Shape) -> None:
        """Declare that a value leaves the graph under `name`, in float32."""
        self._nodes.append(helper.make_node("Identity", [value], [name]))
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def add_constant(self, name: str, array: NDArray[Any]) -> str:
        """Store an array once and return its name."""
        if name not in self._constants:
            self._constants[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def add_node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output and return the name of that output."""
        value = f"{operator.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, list(inputs), [value], **attributes))
        return value

    def serialise(self) -> bytes:
        """Check the graph and return its bytes. The same calls always give the same bytes."""
        graph = helper.make_graph(
            self._nodes, self._name, self._inputs, self._outputs, list(self._constants.values())
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="lethe",
        )
        onnx.checker.check_model(model, full_check=True)
        return bytes(model.SerializeToString(deterministic=True))

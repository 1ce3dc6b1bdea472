"""Inspection of a graph file before ONNX Runtime sees it: what it contains, and why it is refused."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from lethe.certificate.representation import Representation, TextInput
from worker.representation.errors import RepresentationError, one_line, printable
from worker.representation.limits import Limits
from worker.representation.texts import TOKEN_INPUTS

RESERVED: Final = "lethe/"
"""Names of nodes and tensors that begin with this are added when a model is exported."""

LEAST_OPSET: Final = 7
LEAST_IR_VERSION: Final = 3
MAX_FIXED_BATCH: Final = 4096
_RUNTIME_FORMAT: Final = b"ORTM"
_DEFAULT_DOMAINS: Final = ("", "ai.onnx")
_LOOPS: Final = frozenset({"Loop", "Scan", "SequenceMap"})
_RANDOM: Final = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
_MOST_NAMES: Final = 5  # of nodes or tensors that one reason quotes

Axis = int | None
"""The length of an axis, or None if it varies."""


@dataclass(frozen=True)
class GraphSummary:
    """What an accepted graph takes and contains."""

    inputs: tuple[str, ...]
    batch: Axis
    """The number of rows that the graph takes at once, or None for any number."""
    nodes: int
    operators: tuple[str, ...]


def inspect_graph(declaration: Representation, graph: bytes, limits: Limits) -> GraphSummary:
    """Describe a graph, or raise `RepresentationError` with every reason that reading the file can show."""
    model = _parse(graph, limits)
    graphs = list(_graphs(model.graph))
    nodes = [node for part in graphs for node in part.node]
    if len(nodes) > limits.nodes:
        raise RepresentationError(
            [f"the graph has {len(nodes):,} nodes, and at most {limits.nodes:,} are allowed"]
        )
    if _has_unreadable_text(model):
        raise RepresentationError(["a name in the graph file is not valid UTF-8; the file is damaged"])
    batch, reasons = _interface_problems(model.graph, declaration, limits)
    reasons = [
        *_model_problems(model),
        *_external_data(graphs),
        *_reserved_names(graphs),
        *_operator_problems(nodes),
        *_training_problems(graphs),
        *reasons,
    ] or _checker_problems(graph)
    if reasons:
        raise RepresentationError(reasons)
    operators = tuple(sorted({node.op_type for node in nodes}))
    return GraphSummary(tuple(real_inputs(model.graph)), batch, len(nodes), operators)


def _parse(graph: bytes, limits: Limits) -> ModelProto:
    if not graph:
        raise RepresentationError(["the graph file is empty"])
    if len(graph) > limits.graph_bytes:
        raise RepresentationError([f"the graph file is larger than {limits.graph_bytes:,} bytes"])
    if graph[4:8] == _RUNTIME_FORMAT:  # a runtime would load another graph than the one inspected here
        raise RepresentationError(["the graph file is in a format of ONNX Runtime's own; save it as ONNX"])
    try:
        model = onnx.load_model_from_string(graph)
    except MemoryError:
        raise
    except Exception:  # protobuf's DecodeError, and others for odd files
        raise RepresentationError(["the graph file is not an ONNX file, or it is truncated"]) from None
    if not model.graph.node:
        raise RepresentationError(["the file contains no graph: it has no nodes"])
    return model


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield the graph and every graph nested in it."""
    waiting = [graph]
    while waiting:
        part = waiting.pop()
        yield part
        for node in part.node:
            for attribute in node.attribute:
                waiting += [attribute.g] if attribute.HasField("g") else []
                waiting += attribute.graphs


def _has_unreadable_text(model: ModelProto) -> bool:
    """Return whether a text in the file is not UTF-8. Protobuf then returns bytes in place of a string."""
    waiting: list[Any] = [model]
    while waiting:
        for field, value in waiting.pop().ListFields():
            single = isinstance(value, str | bytes) or hasattr(value, "ListFields")
            if field.type == field.TYPE_MESSAGE:
                waiting += [value] if single else value
            elif field.type == field.TYPE_STRING and any(
                isinstance(text, bytes) for text in ([value] if single else value)
            ):
                return True
    return False


# -- the file as a whole ------------------------------------------------------------------------------------


def _model_problems(model: ModelProto) -> Iterator[str]:
    if not LEAST_IR_VERSION <= model.ir_version <= onnx.IR_VERSION:
        yield (
            f"the file has the ONNX IR version {model.ir_version}; "
            f"versions {LEAST_IR_VERSION} to {onnx.IR_VERSION} are supported"
        )
    opsets = [entry.version for entry in model.opset_import if entry.domain in _DEFAULT_DOMAINS]
    newest = onnx.defs.onnx_opset_version()
    if len(opsets) != 1:
        yield f"the file must declare the default operator set exactly once, not {len(opsets)} times"
    elif not LEAST_OPSET <= opsets[0] <= newest:
        yield f"the file uses operator set {opsets[0]}; sets {LEAST_OPSET} to {newest} are supported"
    if model.functions:
        yield "the file defines functions of its own; export the graph with its functions inlined"
    if model.training_info:
        yield "the file contains training information; export the graph for inference"
    if any(entry.key.lower().startswith("lethe") for entry in model.metadata_props):
        yield "the file has metadata whose key begins with 'lethe', which is reserved for exported models"


def _external_data(graphs: Iterable[GraphProto]) -> Iterator[str]:
    names = [
        tensor.name or "(unnamed)"
        for graph in graphs
        for tensor in _tensors(graph)
        if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data
    ]
    if names:
        yield f"the graph keeps data in other files: {_listed(names)}; save everything in one file"


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Yield every constant of a graph, those in attributes and sparse ones included."""
    sparse = list(graph.sparse_initializer)
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield attribute.t
            yield from attribute.tensors
            sparse += [attribute.sparse_tensor, *attribute.sparse_tensors]
    for tensor in sparse:
        yield tensor.values
        yield tensor.indices


def _reserved_names(graphs: Iterable[GraphProto]) -> Iterator[str]:
    names = sorted({name for graph in graphs for name in _names(graph) if name.startswith(RESERVED)})
    if names:
        yield f"names that begin with '{RESERVED}' are reserved for exported models: {_listed(names)}"


def _names(graph: GraphProto) -> Iterator[str]:
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        yield value.name
    for tensor in graph.sparse_initializer:
        yield tensor.values.name
    for node in graph.node:
        yield node.name
        yield from node.input
        yield from node.output


# -- operators ----------------------------------------------------------------------------------------------


def _operator_problems(nodes: Iterable[NodeProto]) -> Iterator[str]:
    nodes = list(nodes)
    foreign = sorted(
        {f"{node.domain}.{node.op_type}" for node in nodes if node.domain not in _DEFAULT_DOMAINS}
    )
    if foreign:
        yield f"the graph uses operators that are not part of standard ONNX: {_listed(foreign)}"
    kinds = {node.op_type for node in nodes}
    if kinds & _LOOPS:
        yield f"the graph has loops, whose length cannot be limited: {_listed(sorted(kinds & _LOOPS))}"
    if kinds & _RANDOM:
        yield f"the graph draws random numbers: {_listed(sorted(kinds & _RANDOM))}"
    if any(attribute.ref_attr_name for node in nodes for attribute in node.attribute):
        yield "the graph refers to attributes of a function outside of any function"


def _training_problems(graphs: Iterable[GraphProto]) -> Iterator[str]:
    names = [
        node.name or node.op_type for graph in graphs for node in graph.node if _in_training_mode(node, graph)
    ]
    if names:
        yield f"the graph is in training mode: {_listed(names)}; export it for inference"


def _in_training_mode(node: NodeProto, graph: GraphProto) -> bool:
    if node.op_type == "BatchNormalization":
        switched = any(entry.name == "training_mode" and entry.i != 0 for entry in node.attribute)
        return switched or len([name for name in node.output if name]) > 1
    if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2]:
        return not _is_constant_false(node.input[2], graph)
    return False


def _is_constant_false(name: str, graph: GraphProto) -> bool:
    """Return whether a tensor is the constant false. If in doubt, it is not."""
    constants = [tensor for tensor in graph.initializer if tensor.name == name]
    constants += [
        attribute.t
        for node in graph.node
        if node.op_type == "Constant" and name in node.output
        for attribute in node.attribute
        if attribute.type == AttributeProto.TENSOR
    ]
    inputs = {value.name for value in graph.input}  # whoever runs the graph could override these
    return (
        len(constants) == 1
        and name not in inputs
        and constants[0].data_type == TensorProto.BOOL
        and not any(constants[0].int32_data)
        and not any(constants[0].raw_data)
    )


# -- inputs and outputs -------------------------------------------------------------------------------------


def real_inputs(graph: GraphProto) -> dict[str, ValueInfoProto]:
    """Return the inputs that have no initial value. Old files list constants among the inputs too."""
    constants = {tensor.name for tensor in graph.initializer}
    constants |= {tensor.values.name for tensor in graph.sparse_initializer}
    return {value.name: value for value in graph.input if value.name not in constants}


def _interface_problems(
    graph: GraphProto, declaration: Representation, limits: Limits
) -> tuple[Axis, list[str]]:
    inputs = real_inputs(graph)
    text = isinstance(declaration.input, TextInput)
    reasons = list(_type_problems(graph, inputs.values()))
    reasons += _token_problems(inputs) if text else _input_problems(inputs, declaration)
    batch = 1 if text else next((axes[0] for axes in map(_axes, inputs.values()) if axes), None)
    reasons += _output_problems(graph, declaration, limits, batch)
    return batch, reasons


def _type_problems(graph: GraphProto, inputs: Iterable[ValueInfoProto]) -> Iterator[str]:
    for value in (*inputs, *graph.output):
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type":
            name = (kind or "value of no type").removesuffix("_type").replace("_", " ")
            yield f"{_quoted(value.name)} is a {name}, not a tensor"
        elif value.type.tensor_type.elem_type == TensorProto.STRING:
            yield f"{_quoted(value.name)} contains strings; only numbers can go in and out of a graph"
    for names in ([value.name for value in graph.input], [value.name for value in graph.output]):
        if len(set(names)) != len(names):
            yield "two inputs or two outputs of the graph have the same name"


def _input_problems(inputs: dict[str, ValueInfoProto], declaration: Representation) -> Iterator[str]:
    assert not isinstance(declaration.input, TextInput)
    shape = declaration.input.shape
    if len(inputs) != 1:
        yield f"the graph must have one input for the rows, but has {len(inputs)}: {_listed(inputs)}"
        return
    name, value = next(iter(inputs.items()))
    yield from _element_problems(value, TensorProto.FLOAT)
    axes = _axes(value)
    expected = f"(rows, {', '.join(map(str, shape))})"
    if axes is None:
        yield f"the input {_quoted(name)} declares no shape; it must be {expected}"
    elif len(axes) != 1 + len(shape) or any(
        axis not in (None, length) for axis, length in zip(axes[1:], shape, strict=True)
    ):
        yield f"the input {_quoted(name)} has the shape {_shape(axes)}, but the declaration needs {expected}"
    elif axes[0] is not None and not 1 <= axes[0] <= MAX_FIXED_BATCH:
        yield f"the graph takes {axes[0]:,} rows at once; 1 to {MAX_FIXED_BATCH:,} are supported"


def _token_problems(inputs: dict[str, ValueInfoProto]) -> Iterator[str]:
    unknown = [name for name in inputs if name not in TOKEN_INPUTS]
    if unknown:
        yield f"the graph has inputs that a tokenizer does not provide: {_listed(unknown)}"
    if TOKEN_INPUTS[0] not in inputs:
        yield f"the graph has no input {_quoted(TOKEN_INPUTS[0])}, which takes the tokens of a text"
    for name in (name for name in inputs if name in TOKEN_INPUTS):
        yield from _element_problems(inputs[name], TensorProto.INT64)
        axes = _axes(inputs[name])
        if axes is None or len(axes) != 2 or axes[0] not in (None, 1) or axes[1] is not None:
            form = "none" if axes is None else _shape(axes)
            yield (
                f"the input {_quoted(name)} must have the shape (1, tokens) with a variable number of "
                f"tokens, not {form}"
            )


def _output_problems(
    graph: GraphProto, declaration: Representation, limits: Limits, batch: Axis
) -> Iterator[str]:
    outputs = {value.name: value for value in graph.output}
    width = 0
    for name in declaration.outputs:
        if name not in outputs:
            yield f"the graph has no output {_quoted(name)}; it has {_listed(outputs)}"
            continue
        yield from _element_problems(outputs[name], TensorProto.FLOAT)
        axes = _axes(outputs[name])
        if axes is None:
            continue
        if not axes or axes[0] not in (None, batch):
            yield (
                f"the output {_quoted(name)} has the shape {_shape(axes)}, whose first axis is not the rows "
                "of the input"
            )
        if any(axis is not None and axis < 1 for axis in axes):
            yield f"the output {_quoted(name)} has the shape {_shape(axes)}, which is empty"
        width += math.prod(axis for axis in axes[1:] if axis is not None)
    if width > limits.width:
        yield f"the outputs have {width:,} numbers per row, and at most {limits.width:,} are allowed"


def _element_problems(value: ValueInfoProto, expected: int) -> Iterator[str]:
    element = value.type.tensor_type.elem_type
    if value.type.HasField("tensor_type") and element not in (expected, TensorProto.STRING):
        known = TensorProto.DataType.DESCRIPTOR.values_by_number.get(element)
        yield (
            f"{_quoted(value.name)} has the element type {known.name if known else element}, but must have "
            f"{TensorProto.DataType.Name(expected)}"
        )


def _axes(value: ValueInfoProto) -> tuple[Axis, ...] | None:
    """Return the lengths of a tensor's axes, or None if the file declares no shape."""
    tensor = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not tensor.HasField("shape"):
        return None
    return tuple(axis.dim_value if axis.HasField("dim_value") else None for axis in tensor.shape.dim)


def _shape(axes: Iterable[Axis]) -> str:
    """Return a shape in words: `(?, 3, 32, 32)`."""
    return f"({', '.join('?' if axis is None else str(axis) for axis in axes)})"


# -- the library's own check --------------------------------------------------------------------------------


def _checker_problems(graph: bytes) -> list[str]:
    """Ask the onnx library whether the file follows the standard."""
    try:
        onnx.checker.check_model(graph)
    except MemoryError:
        raise
    except Exception as problem:  # it raises ValidationError, and other kinds for odd files
        return [f"the graph does not follow the ONNX standard: {printable(one_line(str(problem)))}"]
    return []


def _quoted(name: str) -> str:
    return f"'{printable(name, 60)}'"


def _listed(names: Iterable[str]) -> str:
    """Return some names for people: `'a', 'b' and 3 more`."""
    names = list(names)
    shown = ", ".join(_quoted(name) for name in names[:_MOST_NAMES]) or "none"
    rest = len(names) - _MOST_NAMES
    return f"{shown} and {rest} more" if rest > 0 else shown

"""Graphs that must be refused, each with a name and a part of the reason."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper

from lethe.certificate.representation import Representation
from tests.representations import IMAGES, TEXTS, image_graph, text_graph, tokenizer_json
from tests.unit.worker.representation.case import Case
from tests.unit.worker.representation.vectors import (
    FEATURES,
    LIMITS,
    VECTORS,
    WIDTH,
    altered,
    declare,
    open_encoder,
    tensor,
    to_bytes,
    vector_model,
    vectors,
)
from worker.representation.errors import RepresentationError
from worker.representation.inspection import inspect_graph
from worker.representation.limits import Limits


def cases() -> Iterator[Case]:
    """Yield every graph to refuse."""
    yield from _truncated()
    yield from _not_graphs()
    yield from _misspelt()
    yield from _refused_contents()
    yield from _external_data()
    yield from _operators()
    yield from _interfaces()
    yield from _text_interfaces()
    yield from _limits()
    yield from _runs()


def _inspected(
    name: str,
    graph: bytes,
    reason: str,
    fields: dict[str, Any] = VECTORS,
    limits: Limits = LIMITS,
    **changes: Any,
) -> Case:
    declaration: Representation = declare(fields, **changes)
    return Case(name, lambda: inspect_graph(declaration, graph, limits), RepresentationError, reason)


def _altered(name: str, reason: str, change: Callable[[ModelProto], object]) -> Case:
    return _inspected(name, altered(change), reason)


# -- files --------------------------------------------------------------------------------------------------


def _truncated() -> Iterator[Case]:
    """Yield prefixes of three valid files."""
    files = {
        "vector": (to_bytes(vector_model()), VECTORS),
        "image": (image_graph(), IMAGES),
        "text": (text_graph(), TEXTS),
    }
    for kind, (graph, fields) in files.items():
        for share in range(1, 16):
            size = len(graph) * share // 16
            yield _inspected(f"{kind} graph cut off after {size} bytes", graph[:size], "", fields)


def _not_graphs() -> Iterator[Case]:
    files = {
        "an empty graph": b"",
        "one zero byte": b"\0",
        "zeros": bytes(1000),
        "a text": b"this is not a graph",
        "JSON": b'{"graph": {}}',
        "a PNG file": b"\x89PNG\r\n\x1a\n" + bytes(100),
        "a ZIP file": b"PK\x03\x04" + bytes(100),
        "an ELF file": b"\x7fELF" + bytes(100),
        "a pickle": b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00\x8c\x01x\x94.",
        "a tokenizer": tokenizer_json(),
        "a graph after a byte of rubbish": b"\xff" + to_bytes(vector_model()),
        "a graph and rubbish": to_bytes(vector_model()) + b"\xff\xff\xff",
        "a file without a graph": to_bytes(ModelProto(ir_version=8)),
        "a graph without nodes": altered(lambda model: model.graph.ClearField("node")),
        "deeply nested graphs": _nested(200),
    }
    for name, content in files.items():
        yield _inspected(name, content, "")
    # Read as ONNX, this is the small graph with a producer called O and an unknown field.
    two_faces = b"\x08\x08\x12\x01ORTM" + bytes(83) + to_bytes(vector_model())
    yield _inspected("a graph that ONNX Runtime takes for its own format", two_faces, "of ONNX Runtime's own")


def _misspelt() -> Iterator[Case]:
    """Yield graphs with a name that is not UTF-8."""
    graph = to_bytes(vector_model())
    for name in (b"matrix", b"features", b"project", b"MatMul", b"test"):
        damaged = graph.replace(name, name[:-1] + b"\xff")
        yield _inspected(f"{name!r} is not UTF-8", damaged, "not valid UTF-8")


def _nested(depth: int) -> bytes:
    """Return a file with so many graphs in each other that no parser accepts it."""
    content = b""
    for _ in range(depth):
        for field in (0x32, 0x2A, 0x0A):  # a graph in an attribute in a node
            content = bytes([field]) + _varint(len(content)) + content
    return b"\x3a" + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    return bytes([*digits, number])


def _refused_contents() -> Iterator[Case]:
    def opset(version: int, domain: str = "") -> Callable[[ModelProto], object]:
        def change(model: ModelProto) -> None:
            model.opset_import.append(helper.make_opsetid(domain, version))

        return change

    def only_opset(version: int) -> Callable[[ModelProto], object]:
        def change(model: ModelProto) -> None:
            model.opset_import[0].version = version

        return change

    yield _altered("the default operator set twice", "exactly once, not 2 times", opset(17))
    yield _altered("the operator set under its other name too", "exactly once", opset(17, "ai.onnx"))
    yield _altered("no operator set", "not 0 times", lambda model: model.ClearField("opset_import"))
    for version in (-1, 0, 1, 6, 999, 2**62):
        yield _altered(f"operator set {version}", f"operator set {version}", only_opset(version))
    for version in (-5, 0, 1, 2, 999, 2**62):
        yield _altered(
            f"IR version {version}",
            f"IR version {version}",
            partial(_set_ir_version, version=version),
        )
    yield _altered("no IR version", "IR version 0", lambda model: model.ClearField("ir_version"))
    yield _altered("a function", "functions of its own", _add_function)
    yield _altered("training information", "training information", lambda model: model.training_info.add())
    for key in ("lethe", "lethe.head", "LETHE/x"):
        yield _altered(
            f"metadata {key}",
            "reserved for exported models",
            partial(_add_metadata, key=key),
        )
    yield from _reserved_names()


def _add_function(model: ModelProto) -> None:
    node = helper.make_node("Identity", ["a"], ["b"])
    function = helper.make_function("own", "copy", ["a"], ["b"], [node], [helper.make_opsetid("", 17)])
    model.functions.append(function)


def _reserved_names() -> Iterator[Case]:
    def rename_tensor(model: ModelProto) -> None:
        model.graph.initializer[0].name = model.graph.node[0].input[1] = "lethe/matrix"

    def rename_input(model: ModelProto) -> None:
        model.graph.input[0].name = model.graph.node[0].input[0] = "lethe/x"

    def add_output(model: ModelProto) -> None:
        model.graph.node.append(helper.make_node("Identity", ["x"], ["lethe/copy"]))

    def nested(model: ModelProto) -> None:
        _add_branch(model, helper.make_node("Identity", ["x"], ["lethe/inner"]), "lethe/inner")

    reason = "names that begin with 'lethe/' are reserved"
    yield _altered("a reserved constant", reason, rename_tensor)
    yield _altered("a reserved input", reason, rename_input)
    yield _altered("a reserved intermediate result", reason, add_output)
    yield _altered("a reserved name in a branch", reason, nested)
    yield _altered(
        "a reserved node", reason, lambda model: setattr(model.graph.node[0], "name", "lethe/head")
    )
    yield _altered(
        "a reserved shape", reason, lambda model: model.graph.value_info.append(tensor("lethe/v", [1]))
    )
    yield _altered(
        "a reserved sparse constant",
        reason,
        lambda model: model.graph.sparse_initializer.add().values.CopyFrom(
            numpy_helper.from_array(np.ones(1, np.float32), "lethe/s")
        ),
    )


def _add_branch(model: ModelProto, node: onnx.NodeProto, output: str) -> None:
    """Add an If whose branches contain a node."""
    branch = helper.make_graph([node], "branch", [], [tensor(output, None)])
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "condition"))
    model.graph.node.append(
        helper.make_node("If", ["condition"], ["chosen"], then_branch=branch, else_branch=branch)
    )


# -- data in other files ------------------------------------------------------------------------------------


def _outside(name: str = "weights", location: str = "weights.bin") -> TensorProto:
    constant = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[WIDTH, FEATURES])
    constant.data_location = TensorProto.EXTERNAL
    constant.external_data.add(key="location", value=location)
    return constant


def _external_data() -> Iterator[Case]:
    def in_initializer(location: str) -> Callable[[ModelProto], object]:
        return lambda model: model.graph.initializer[0].CopyFrom(_outside("matrix", location))

    for location in ("weights.bin", "/etc/passwd", "../../secret", "", "http://example.test/weights"):
        yield _altered(f"constant in the file '{location}'", "in other files", in_initializer(location))
    yield _altered(
        "a location without the flag",
        "in other files",
        lambda model: model.graph.initializer[0].external_data.add(key="location", value="w"),
    )
    yield _altered(
        "the flag without a location",
        "in other files",
        lambda model: setattr(model.graph.initializer[0], "data_location", TensorProto.EXTERNAL),
    )
    sparse = onnx.SparseTensorProto(values=_outside(), dims=[WIDTH])
    indices = onnx.SparseTensorProto(indices=_outside(), dims=[WIDTH])
    attributes = {
        "a tensor": AttributeProto(name="value", type=AttributeProto.TENSOR, t=_outside()),
        "a tensor of another type": AttributeProto(name="value", type=AttributeProto.INT, t=_outside()),
        "several tensors": AttributeProto(name="value", type=AttributeProto.TENSORS, tensors=[_outside()]),
        "a sparse tensor": AttributeProto(
            name="sparse_value", type=AttributeProto.SPARSE_TENSOR, sparse_tensor=sparse
        ),
        "sparse indices": AttributeProto(
            name="sparse_value", type=AttributeProto.SPARSE_TENSOR, sparse_tensor=indices
        ),
        "several sparse tensors": AttributeProto(
            name="sparse_value", type=AttributeProto.SPARSE_TENSORS, sparse_tensors=[sparse]
        ),
    }
    for name, attribute in attributes.items():
        node = helper.make_node("Constant", [], ["outside"])
        node.attribute.append(attribute)
        yield _altered(
            f"an attribute with {name} in another file",
            "in other files",
            partial(_add_node, node=node),
        )
        yield _altered(
            f"a branch with {name} in another file",
            "in other files",
            partial(_add_branch, node=node, output="outside"),
        )
    yield _altered(
        "a sparse constant in another file",
        "in other files",
        lambda model: model.graph.sparse_initializer.append(sparse),
    )


# -- operators ----------------------------------------------------------------------------------------------


def _operators() -> Iterator[Case]:
    def replaced(operator: str, domain: str = "") -> Callable[[ModelProto], object]:
        def change(model: ModelProto) -> None:
            model.graph.node[0].op_type, model.graph.node[0].domain = operator, domain

        return change

    def nested(operator: str) -> Callable[[ModelProto], object]:
        return lambda model: _add_branch(model, helper.make_node(operator, ["x"], ["inner"]), "inner")

    for domain in ("com.microsoft", "ai.onnx.ml", "ai.onnx.training", "own", "ai.onnx ", "AI.ONNX"):
        yield _altered(f"the domain '{domain}'", "not part of standard ONNX", replaced("MatMul", domain))
    for operator in ("Loop", "Scan", "SequenceMap"):
        yield _altered(f"the loop {operator}", "has loops", replaced(operator))
        yield _altered(f"the loop {operator} in a branch", "has loops", nested(operator))
    random = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial")
    for operator in (*random, "Bernoulli"):
        yield _altered(f"the random operator {operator}", "random numbers", replaced(operator))
        yield _altered(f"{operator} in a branch", "random numbers", nested(operator))
    for operator in ("NoSuchOperator", "", "matmul", "Mat Mul", "x" * 10_000, "\n\nMatMul", "\x1b[31m"):
        name = repr(operator[:20])
        yield _altered(f"the operator {name}", "does not follow the ONNX standard", replaced(operator))
    yield from _training()
    yield from _malformed()


def _training() -> Iterator[Case]:
    true = numpy_helper.from_array(np.array(True), "training")

    def dropout(model: ModelProto, *constants: TensorProto, inputs: tuple[str, ...] = ()) -> None:
        model.graph.node.append(helper.make_node("Dropout", ["x", "", "training"], ["dropped"]))
        model.graph.initializer.extend(constants)
        model.graph.input.extend(tensor(name, [], TensorProto.BOOL) for name in inputs)

    def computed(model: ModelProto) -> None:
        dropout(model)
        model.graph.node.append(helper.make_node("Not", ["other"], ["training"]))

    def batch_norm(outputs: list[str], **attributes: Any) -> Callable[[ModelProto], object]:
        node = helper.make_node("BatchNormalization", ["x", "a", "a", "a", "a"], outputs, **attributes)
        return lambda model: model.graph.node.append(node)

    false = numpy_helper.from_array(np.array(False), "training")
    reason = "training mode"
    yield _altered("dropout that is switched on", reason, lambda model: dropout(model, true))
    yield _altered("dropout with an unknown switch", reason, lambda model: dropout(model))
    yield _altered("dropout with a computed switch", reason, computed)
    yield _altered(
        "dropout whose switch is an input", reason, lambda model: dropout(model, false, inputs=("training",))
    )
    yield _altered("dropout with two switches", reason, lambda model: dropout(model, false, true))
    yield _altered("batch statistics", reason, batch_norm(["y"], training_mode=1))
    yield _altered("batch statistics as outputs", reason, batch_norm(["y", "mean", "var"]))
    yield _altered(
        "batch statistics in a branch",
        reason,
        lambda model: _add_branch(
            model,
            helper.make_node("BatchNormalization", ["x", "a", "a", "a", "a"], ["y"], training_mode=1),
            "y",
        ),
    )


def _malformed() -> Iterator[Case]:
    def reference(model: ModelProto) -> None:
        model.graph.node[0].attribute.add(name="alpha", ref_attr_name="alpha", type=AttributeProto.FLOAT)

    def cycle(model: ModelProto) -> None:
        model.graph.node[0].input[0] = "features"

    def twice(model: ModelProto) -> None:
        model.graph.node.append(model.graph.node[0])

    def short_constant(model: ModelProto) -> None:
        model.graph.initializer[0].raw_data = b"\0"

    def negative(model: ModelProto) -> None:
        model.graph.initializer[0].dims[0] = -4

    def huge(model: ModelProto) -> None:
        model.graph.initializer[0].dims[:] = [2**62, 2**62]

    standard = "does not follow the ONNX standard"
    yield _altered("an attribute of no function", "outside of any function", reference)
    yield _altered("a cycle", standard, cycle)
    yield _altered("a result that is computed twice", standard, twice)
    yield _altered(
        "an unknown attribute", standard, lambda model: model.graph.node[0].attribute.add(name="a")
    )
    yield _altered("a node without inputs", standard, lambda model: model.graph.node[0].ClearField("input"))
    yield _altered("a graph without a name", standard, lambda model: model.graph.ClearField("name"))
    yield _inspected("a constant with too few bytes", altered(short_constant), "")
    yield _inspected("a constant of negative size", altered(negative), "")
    yield _inspected("a constant of immense size", altered(huge), "")
    yield _altered(
        "an undefined name", standard, lambda model: model.graph.node[0].input.__setitem__(0, "nothing")
    )


# -- inputs and outputs -------------------------------------------------------------------------------------


def _interfaces() -> Iterator[Case]:
    def with_input(*values: onnx.ValueInfoProto) -> bytes:
        def change(model: ModelProto) -> None:
            model.graph.ClearField("input")
            model.graph.input.extend(values)

        return altered(change)

    def with_output(*values: onnx.ValueInfoProto) -> bytes:
        def change(model: ModelProto) -> None:
            model.graph.ClearField("output")
            model.graph.output.extend(values)

        return altered(change)

    shapes: list[Any] = [
        [],
        ["N"],
        ["N", 3],
        ["N", 5],
        ["N", 4, 4],
        ["N", 0],
        ["N", -4],
        ["N", 2**62],
    ]
    for shape in (*shapes, None):
        yield _inspected(f"an input of shape {shape}", with_input(tensor("x", shape)), "the input 'x'")
    for rows in (0, -1, 4097, 2**62):
        reason = "1 to 4,096 are supported"
        yield _inspected(f"a batch of {rows} rows", with_input(tensor("x", [rows, WIDTH])), reason)
    for element in ("DOUBLE", "FLOAT16", "BFLOAT16", "INT64", "UINT8", "BOOL", "COMPLEX64", "UNDEFINED"):
        number = TensorProto.DataType.Value(element)
        made = tensor("x", ["N", WIDTH])
        made.type.tensor_type.elem_type = number
        yield _inspected(f"an input of {element}", with_input(made), f"element type {element}")
        made = tensor("features", ["N", FEATURES])
        made.type.tensor_type.elem_type = number
        yield _inspected(f"an output of {element}", with_output(made), f"element type {element}")
    strings = tensor("x", ["N", WIDTH], TensorProto.STRING)
    yield _inspected("an input of strings", with_input(strings), "contains strings")
    yield from _other_types(with_input, "x")
    yield from _other_types(with_output, "features")
    rows = tensor("x", ["N", WIDTH])
    yield _inspected("no input", with_input(), "one input for the rows, but has 0")
    yield _inspected("two inputs", with_input(rows, tensor("y", ["N", WIDTH])), "but has 2")
    yield _inspected("the same input twice", with_input(rows, rows), "")
    output = tensor("features", ["N", FEATURES])
    yield _inspected("the same output twice", with_output(output, output), "")
    yield _inspected("no output", with_output(), "no output 'features'")
    yield _inspected("another output", with_output(tensor("other", ["N", 1])), "it has 'other'")
    yield _inspected(
        "one of two outputs missing", to_bytes(vector_model()), "no output 'b'", outputs=["features", "b"]
    )
    for shape in ([], [7, FEATURES], [FEATURES], ["N", 0], ["N", -3], [0]):
        shaped = with_output(tensor("features", shape))
        yield _inspected(f"an output of shape {shape}", shaped, "the output 'features'")
    yield _inspected("a vector graph for images", to_bytes(vector_model()), "needs (rows, 1, 8, 8)", IMAGES)
    yield _inspected("an image graph for vectors", image_graph(), "needs (rows, 4)")


def _other_types(make: Callable[..., bytes], name: str) -> Iterator[Case]:
    row = helper.make_tensor_type_proto(TensorProto.FLOAT, ["N", WIDTH])
    kinds = {
        "sequence": helper.make_sequence_type_proto(row),
        "optional": helper.make_optional_type_proto(row),
        "map": helper.make_map_type_proto(TensorProto.INT64, row),
        "sparse tensor": helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, ["N", WIDTH]),
        "value of no type": onnx.TypeProto(),
    }
    for kind, made in kinds.items():
        value = onnx.ValueInfoProto(name=name, type=made)
        yield _inspected(f"'{name}' is a {kind}", make(value), f"'{name}' is a {kind}, not a tensor")


def _text_interfaces() -> Iterator[Case]:
    def with_inputs(*values: onnx.ValueInfoProto) -> bytes:
        model = onnx.load_model_from_string(text_graph())
        model.graph.ClearField("input")
        model.graph.input.extend(values)
        return to_bytes(model)

    tokens = tensor("input_ids", ["N", "T"], TensorProto.INT64)
    inputs: dict[str, tuple[list[onnx.ValueInfoProto], str]] = {
        "no tokens": ([], "no input 'input_ids'"),
        "other inputs": ([tensor("ids", ["N", "T"], TensorProto.INT64)], "no input 'input_ids'"),
        "an unknown input": (
            [tokens, tensor("position_ids", ["N", "T"])],
            "does not provide: 'position_ids'",
        ),
        "tokens of 32 bits": ([tensor("input_ids", ["N", "T"], TensorProto.INT32)], "must have INT64"),
        "tokens of floats": ([tensor("input_ids", ["N", "T"])], "must have INT64"),
        "a fixed number of tokens": ([tensor("input_ids", ["N", 16], TensorProto.INT64)], "(1, tokens)"),
        "a fixed batch of texts": ([tensor("input_ids", [8, "T"], TensorProto.INT64)], "(1, tokens)"),
        "one axis of tokens": ([tensor("input_ids", ["T"], TensorProto.INT64)], "(1, tokens)"),
        "tokens without a shape": ([tensor("input_ids", None, TensorProto.INT64)], "not none"),
        "a mask of floats": ([tokens, tensor("attention_mask", ["N", "T"])], "must have INT64"),
    }
    for name, (values, reason) in inputs.items():
        yield _inspected(f"a text graph with {name}", with_inputs(*values), reason, TEXTS)


# -- limits and runs ----------------------------------------------------------------------------------------


def _limits() -> Iterator[Case]:
    graph = to_bytes(vector_model())
    chain = [helper.make_node("Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(20)]
    branch = helper.make_graph(chain, "branch", [], [tensor("v20", None)])

    def add_chain(model: ModelProto) -> None:
        model.graph.node.append(helper.make_node("If", ["c"], ["d"], then_branch=branch, else_branch=branch))

    def limited(**changes: int) -> Limits:
        return replace(LIMITS, **changes)

    yield _inspected("too many nodes", _long(30), "30 nodes, and at most 20", limits=limited(nodes=20))
    yield _inspected("too many nodes in branches", altered(add_chain), "42 nodes", limits=limited(nodes=41))
    yield _inspected(
        "too large a file",
        graph,
        "larger than",
        limits=limited(graph_bytes=len(graph) - 1),
    )
    yield _inspected("too many features", graph, "3 numbers per row", limits=limited(width=2))


def _long(nodes: int) -> bytes:
    names = ["x", *(f"v{i}" for i in range(nodes - 1)), "features"]
    chain = [helper.make_node("Neg", [names[i]], [names[i + 1]]) for i in range(nodes)]
    return to_bytes(vector_model(chain, outputs=[tensor("features", ["N", WIDTH])]))


def _runs() -> Iterator[Case]:
    """Yield graphs whose fault shows only when they are loaded or run."""
    node, any_shape = helper.make_node, [tensor("features", ["A", "B"])]
    shape = {"shape": np.array([5, -1], np.int64), "big": np.array([-1, 7], np.int64)}
    graphs = {
        "a product of matrices that do not fit": (
            vector_model(constants={"matrix": np.ones((5, 3), np.float32)}),
            "ONNX Runtime cannot",
        ),
        "a reshape that does not fit": (
            vector_model([node("Reshape", ["x", "big"], ["features"])], outputs=any_shape, constants=shape),
            "",
        ),
        "another number of rows": (
            vector_model([node("Transpose", ["x"], ["features"])], outputs=any_shape),
            "the first axis of an output is not the rows",
        ),
        "a scalar": (
            vector_model([node("ReduceSum", ["x"], ["features"], keepdims=0)], outputs=any_shape),
            "",
        ),
        "no numbers at all": (
            vector_model(
                [node("Slice", ["x", "zero", "zero", "one"], ["features"])],
                outputs=any_shape,
                constants={"zero": np.array([0]), "one": np.array([1])},
            ),
            "0 numbers per row",
        ),
    }
    for name, (model, reason) in graphs.items():
        graph = to_bytes(model)
        yield Case(
            f"a graph that gives {name}",
            partial(_encode_ones, graph),
            RepresentationError,
            reason,
        )


def _encode_ones(graph: bytes) -> object:
    return open_encoder(graph).encode(vectors(np.ones((2, WIDTH))))


def _set_ir_version(model: ModelProto, version: int) -> None:
    model.ir_version = version


def _add_metadata(model: ModelProto, key: str) -> None:
    model.metadata_props.add(key=key, value="1")


def _add_node(model: ModelProto, node: Any) -> None:
    model.graph.node.append(node)

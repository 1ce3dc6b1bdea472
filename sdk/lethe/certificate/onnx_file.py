"""ONNX files that any runtime serves: a representation's graph followed by the certified model.

The file is the exact bytes of the graph, then one more serialised `ModelProto`. A protobuf parser merges
concatenated messages, so the second adds nodes, outputs and metadata to the first. A verifier can therefore
hash the graph as it is, and rebuild the rest from the weights in it. The released weights file can be rebuilt
too, byte for byte: its tensors are in the nodes `lethe/weight` and `lethe/bias`, its header in the metadata.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lethe.certificate.errors import FileMismatch, NotExportable, OnnxMismatch, UnusableInput
from lethe.certificate.predicate import Predicate
from lethe.certificate.protobuf import (
    Field,
    MalformedMessage,
    bytes_field,
    number_field,
    read_fields,
    text_field,
)
from lethe.certificate.records import canonical_json, file_problem, printable
from lethe.certificate.representation import CertifiedRepresentation
from lethe.certificate.statement import AnyPredicate
from lethe.certificate.weights_file import Tensor, read_tensors, write_tensors

MAX_FILE: Final = 2**31 - 1  # the largest message that protobuf parsers accept
PREFIX: Final = "lethe/"
METADATA_PREFIX: Final = "lethe."
SMALLEST_OPSET: Final = 7
SMALLEST_LENGTH: Final = 1e-30  # a row of zeros is divided by this instead of by its length
INPUT: Final = "features"
OUTPUTS: Final[dict[str, tuple[str, ...]]] = {
    "softmax": ("logits", "probabilities"),
    "logistic": ("logit", "probability"),
    "ridge": ("prediction",),
}
_ACTIVATION = {"softmax": "Softmax", "logistic": "Sigmoid"}

# Numbers of fields and values of enums in onnx.proto.
_IR_VERSION, _GRAPH, _OPSET_IMPORT, _METADATA = 1, 7, 8, 14
_NODE, _GRAPH_NAME, _INITIALIZER, _INPUT, _OUTPUT, _VALUE_INFO, _SPARSE = 1, 2, 5, 11, 12, 13, 15
_FLOAT, _DOUBLE = 1, 11
_ATTRIBUTE_INT, _ATTRIBUTE_TENSOR, _ATTRIBUTE_INTS = 2, 4, 7
_ELEMENT = {"F32": _FLOAT, "F64": _DOUBLE}


@dataclass(frozen=True)
class Head:
    """A certified linear model: what is added to a representation's graph."""

    predicate: Predicate
    header: bytes
    weight: Tensor
    bias: Tensor | None
    weights_sha256: str

    @property
    def outputs(self) -> int:
        """The number of scores per row."""
        return self.weight.shape[0]

    @property
    def width(self) -> int:
        """The number of features per row."""
        return self.weight.shape[1]

    @property
    def representation(self) -> CertifiedRepresentation | None:
        """The representation that the certificate names, or None."""
        return self.predicate.objective.representation


@dataclass(frozen=True)
class OnnxParts:
    """The parts of an exported file: the graph, its metadata, and the weights file that it was made from."""

    graph: bytes
    metadata: dict[str, str]
    weights: bytes


def can_export(predicate: AnyPredicate) -> bool:
    """Return whether a certified model is of a kind that can be written as an ONNX file."""
    return isinstance(predicate, Predicate) and predicate.objective.family in OUTPUTS


def head_of(weights: bytes, predicate: AnyPredicate) -> Head:
    """Return the head that a released weights file describes, or raise `NotExportable`."""
    if not isinstance(predicate, Predicate):
        raise NotExportable("a certificate of format 1 does not say enough about its model to export it")
    family = predicate.objective.family
    if family not in OUTPUTS:
        raise NotExportable(
            f"a model of the family {printable(family)} cannot be exported; softmax, logistic and ridge can, "
            "with or without a representation"
        )
    try:
        header, tensors = read_tensors(weights)
    except FileMismatch as error:
        raise NotExportable(f"the weights file cannot be read: {error}") from None
    weight, bias = tensors.get("weight"), tensors.get("bias")
    if weight is None or len(weight.shape) != 2 or tensors.keys() - {"weight", "bias"}:
        raise NotExportable(
            "the weights file is not that of a linear model: one matrix, and one bias or none"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise NotExportable("the bias does not have one number for each row of the weight matrix")
    if family != "softmax" and weight.shape[0] != 1:
        raise NotExportable(f"a {family} model has one output, but the weights are for {weight.shape[0]}")
    return Head(predicate, header, weight, bias, hashlib.sha256(weights).hexdigest())


def join(graph: bytes | None, head: Head) -> bytes:
    """Return the ONNX file of a graph and a head. Raise `NotExportable` if they do not fit.

    Pass None for a model without a representation. The same input always gives the same bytes.
    """
    if graph is None:
        graph = base_graph(head.width)
    names, metadata_keys, opset = _inspect(graph)
    if opset < SMALLEST_OPSET:
        raise NotExportable(
            f"the graph uses version {opset} of the ONNX operators, and an export needs version "
            f"{SMALLEST_OPSET} or later"
        )
    taken = sorted(name for name in names if name.startswith(PREFIX)) or sorted(
        key for key in metadata_keys if key.startswith(METADATA_PREFIX)
    )
    if taken:
        raise NotExportable(
            f"the graph already has the name {printable(taken[0])!r}, which is reserved for the export"
        )
    declared = (INPUT,) if head.representation is None else head.representation.declaration.outputs
    if missing := [name for name in declared if name not in names]:
        raise NotExportable(f"the graph has no output named {printable(missing[0])!r}")
    outputs = _free_names(OUTPUTS[head.predicate.objective.family], names)
    joined = graph + _suffix(head, declared, outputs)
    if len(joined) > MAX_FILE:
        raise NotExportable("the file would be larger than 2 GiB, which ONNX runtimes cannot read")
    return joined


def _free_names(wanted: tuple[str, ...], names: set[str]) -> tuple[str, ...]:
    """Return names for the outputs. A name that the graph has already gets the prefix `lethe_`."""
    free = tuple(f"lethe_{name}" if name in names else name for name in wanted)
    if taken := [name for name in free if name in names]:
        raise NotExportable(f"the graph already has the name {printable(taken[0])!r}, which the export needs")
    return free


def base_graph(width: int) -> bytes:
    """Return the graph of a model without a representation: an input of (rows, width), and no node."""
    graph = text_field(_GRAPH_NAME, "lethe") + bytes_field(_INPUT, _value_info(INPUT, width))
    opset = text_field(1, "") + number_field(2, 13)
    return number_field(_IR_VERSION, 7) + bytes_field(_OPSET_IMPORT, opset) + bytes_field(_GRAPH, graph)


# ---- The head as a message ----


def _suffix(head: Head, declared: tuple[str, ...], outputs: tuple[str, ...]) -> bytes:
    graph = b"".join(bytes_field(_NODE, node) for node in _nodes(head, declared, outputs))
    graph += b"".join(bytes_field(_OUTPUT, _value_info(name, head.outputs)) for name in outputs)
    properties = b"".join(
        bytes_field(_METADATA, text_field(1, key) + text_field(2, value))
        for key, value in _metadata(head, outputs).items()
    )
    return bytes_field(_GRAPH, graph) + properties


def _metadata(head: Head, outputs: tuple[str, ...]) -> dict[str, str]:
    """Return what the file says about itself, in the order of the file."""
    predicate = head.predicate
    entries = {
        "certificate_id": predicate.certificate_id,
        "model": predicate.model,
        "version": str(predicate.version),
        "family": predicate.objective.family,
        "outputs": canonical_json(list(outputs)).decode(),
        "weights_sha256": head.weights_sha256,
        "weights_header": head.header.decode(),
    }
    if head.representation is not None:
        entries["representation"] = head.representation.digest
        entries["declaration"] = head.representation.declaration.to_bytes().decode()
    return {f"{METADATA_PREFIX}{key}": value for key, value in entries.items()}


def _nodes(head: Head, declared: tuple[str, ...], outputs: tuple[str, ...]) -> Iterator[bytes]:
    """Yield the nodes of the head in the order in which they run.

    Every operator used means the same in all operator sets from 7 on. Constants are nodes rather than
    initialisers, because old versions of the format require initialisers to be inputs.
    """
    yield from _feature_nodes(head, declared)
    yield from _double_constant("weight", head.weight)
    yield _node("Transpose", ["weight64"], "columns", _integers("perm", (1, 0)))
    yield _node("MatMul", ["features", "columns"], "products")
    scores = "products"
    if head.bias is not None:
        yield from _double_constant("bias", head.bias)
        yield _node("Add", ["products", "bias64"], "scores")
        scores = "scores"
    yield _cast(scores, outputs[0], _FLOAT, own=False)
    family = head.predicate.objective.family
    if family in _ACTIVATION:
        axis = _integer("axis", 1) if family == "softmax" else b""
        yield _node(_ACTIVATION[family], [scores], "activated", axis)
        yield _cast("activated", outputs[1], _FLOAT, own=False)


def _feature_nodes(head: Head, declared: tuple[str, ...]) -> Iterator[bytes]:
    """Yield the nodes from the declared outputs to `lethe/features`: joined, normalised, rounded to float32.

    The model was fitted on float32 features, so features are rounded here too.
    """
    for place, name in enumerate(declared):
        yield _encode_node("Flatten", [name], f"{PREFIX}flat{place}", _integer("axis", 1))
        yield _cast(f"flat{place}", f"{PREFIX}part{place}", _DOUBLE)
    yield _node("Concat", [f"part{place}" for place in range(len(declared))], "joined", _integer("axis", 1))
    last = "joined"
    if head.representation is not None and head.representation.declaration.normalisation == "unit":
        yield from _unit_nodes(head.width)
        last = "unit"
    yield _cast(last, f"{PREFIX}features32", _FLOAT)
    yield _cast("features32", f"{PREFIX}features", _DOUBLE)


def _unit_nodes(width: int) -> Iterator[bytes]:
    """Yield the nodes that divide each row by its length. The sum is a product with a column of ones."""
    yield _node("Mul", ["joined", "joined"], "squares")
    yield _constant("ones", _DOUBLE, (width, 1), struct.pack("<d", 1.0) * width)
    yield _node("MatMul", ["squares", "ones"], "sum")
    yield _node("Sqrt", ["sum"], "length")
    yield _constant("floor", _DOUBLE, (1, 1), struct.pack("<d", SMALLEST_LENGTH))
    # max(length, floor): runtimes have no float64 Max in operator set 7
    yield _node("Sub", ["length", "floor"], "above")
    yield _node("Relu", ["above"], "excess")
    yield _node("Add", ["excess", "floor"], "divisor")
    yield _node("Div", ["joined", "divisor"], "unit")


def _double_constant(name: str, tensor: Tensor) -> Iterator[bytes]:
    """Yield a tensor of the weights file with its exact bytes, and its conversion to float64."""
    yield _constant(name, _ELEMENT[tensor.dtype], tensor.shape, tensor.data)
    yield _cast(name, f"{PREFIX}{name}64", _DOUBLE)


def _constant(name: str, element: int, shape: tuple[int, ...], data: bytes) -> bytes:
    dims = b"".join(number_field(1, side) for side in shape)
    tensor = dims + number_field(2, element) + bytes_field(9, data)
    value = text_field(1, "value") + bytes_field(5, tensor) + number_field(20, _ATTRIBUTE_TENSOR)
    return _node("Constant", [], name, value)


def _cast(source: str, target: str, element: int, *, own: bool = True) -> bytes:
    """Encode a conversion of the tensor `lethe/<source>`. Targets are full names."""
    name = target if own else f"{PREFIX}{target}"
    return _encode_node("Cast", [f"{PREFIX}{source}"], target, _integer("to", element), name=name)


def _node(operator: str, inputs: list[str], output: str, attribute: bytes = b"") -> bytes:
    """Encode a node between tensors whose names begin with `lethe/`."""
    return _encode_node(operator, [f"{PREFIX}{name}" for name in inputs], f"{PREFIX}{output}", attribute)


def _encode_node(
    operator: str, inputs: list[str], output: str, attribute: bytes = b"", name: str | None = None
) -> bytes:
    message = b"".join(text_field(1, tensor) for tensor in inputs)
    message += text_field(2, output) + text_field(3, name or output) + text_field(4, operator)
    return message + (bytes_field(5, attribute) if attribute else b"")


def _integer(name: str, value: int) -> bytes:
    return text_field(1, name) + number_field(3, value) + number_field(20, _ATTRIBUTE_INT)


def _integers(name: str, values: tuple[int, ...]) -> bytes:
    numbers = b"".join(number_field(8, value) for value in values)
    return text_field(1, name) + numbers + number_field(20, _ATTRIBUTE_INTS)


def _value_info(name: str, columns: int) -> bytes:
    """Encode the type of a float32 tensor of any number of rows."""
    shape = bytes_field(1, text_field(2, "rows")) + bytes_field(1, number_field(1, columns))
    tensor = number_field(1, _FLOAT) + bytes_field(2, shape)
    return text_field(1, name) + bytes_field(2, bytes_field(1, tensor))


# ---- Reading ----


def _inspect(graph: bytes) -> tuple[set[str], set[str], int]:
    """Return the names in a graph, the keys of its metadata, and its version of the ONNX operators."""
    names: set[str] = set()
    keys: set[str] = set()
    opset = graphs = 0
    try:
        for entry in read_fields(graph):
            if entry.number == _GRAPH:
                graphs += 1
                names.update(_names(entry.data))
            elif entry.number == _METADATA:
                keys.update(field.text for field in read_fields(entry.data) if field.number == 1)
            elif entry.number == _OPSET_IMPORT:
                fields = list(read_fields(entry.data))
                if not any(field.number == 1 and field.text not in ("", "ai.onnx") for field in fields):
                    opset = max(int(field.value) for field in fields if field.number == 2)
    except (MalformedMessage, ValueError, TypeError) as error:
        raise NotExportable(f"the graph is not an ONNX file: {printable(error)}") from None
    if graphs == 0:
        raise NotExportable("the graph is not an ONNX file: it contains no graph")
    return names, keys, opset


def _names(graph: memoryview, depth: int = 0) -> Iterator[str]:
    """Yield the names of all nodes and tensors of a graph, including those of graphs inside nodes."""
    if depth > 32:
        raise MalformedMessage("graphs are nested too deeply")
    for entry in read_fields(graph):
        if entry.number == _NODE:
            yield from _names_of_node(entry.data, depth)
        elif entry.number == _INITIALIZER:
            yield from (field.text for field in read_fields(entry.data) if field.number == 8)
        elif entry.number == _SPARSE:
            values = (field for field in read_fields(entry.data) if field.number == 1)
            yield from (
                field.text for value in values for field in read_fields(value.data) if field.number == 8
            )
        elif entry.number in (_INPUT, _OUTPUT, _VALUE_INFO):
            yield from (field.text for field in read_fields(entry.data) if field.number == 1)


def _names_of_node(node: memoryview, depth: int) -> Iterator[str]:
    for field in read_fields(node):
        if field.number in (1, 2, 3):
            yield field.text
        elif field.number == 5:
            for inner in read_fields(field.data):
                if inner.number in (6, 11):
                    yield from _names(inner.data, depth + 1)


def read(data: bytes, graph_bytes: int | None) -> OnnxParts:
    """Split an exported file into its parts. Raise `OnnxMismatch` if it is not such a file.

    `graph_bytes` is the size of the representation's graph, or None for a model without a representation.
    Nothing is verified here: `check_onnx` does that.
    """
    try:
        start = _second_graph(data) if graph_bytes is None else graph_bytes
        list(read_fields(memoryview(data)[:start]))
        metadata, constants = _read_suffix(memoryview(data)[start:])
    except MalformedMessage as error:
        raise OnnxMismatch(f"the file is not an exported ONNX file, or it is damaged: {error}") from None
    header = metadata.get(f"{METADATA_PREFIX}weights_header")
    if header is None or "weight" not in constants:
        raise OnnxMismatch("the file contains no certified model: it was not written by `lethe export`")
    try:
        order = _order_of_tensors(header)
        tensors = [constants[name] for name in order]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise OnnxMismatch("the header of the weights file inside the ONNX file is damaged") from None
    return OnnxParts(bytes(data[:start]), metadata, write_tensors(header.encode(), tensors))


def _order_of_tensors(header: str) -> list[str]:
    """Return the names of the tensors in the order of their bytes."""
    document = json.loads(header)
    entries = {name: entry["data_offsets"] for name, entry in document.items() if name != "__metadata__"}
    return sorted(entries, key=lambda name: [int(offset) for offset in entries[name]])


def _second_graph(data: bytes) -> int:
    """Return where the second message begins: at the second field `graph`."""
    starts = [entry.start for entry in read_fields(data) if entry.number == _GRAPH]
    if len(starts) < 2:
        raise MalformedMessage("no model was added to its graph")
    return starts[1]


def _read_suffix(suffix: memoryview) -> tuple[dict[str, str], dict[str, bytes]]:
    """Return the metadata and the bytes of the constants `lethe/…` of the second message."""
    metadata: dict[str, str] = {}
    constants: dict[str, bytes] = {}
    for entry in read_fields(suffix):
        if entry.number == _METADATA:
            pair = {field.number: field.text for field in read_fields(entry.data)}
            metadata[pair.get(1, "")] = pair.get(2, "")
        elif entry.number == _GRAPH:
            for node in read_fields(entry.data):
                if node.number == _NODE:
                    constants |= _read_constant(node)
    return metadata, constants


def _read_constant(node: Field) -> dict[str, bytes]:
    """Return the raw bytes of a constant by its name without the prefix, or nothing for another node."""
    fields = list(read_fields(node.data))
    if not any(field.number == 4 and bytes(field.data) == b"Constant" for field in fields):
        return {}
    name = next((field.text for field in fields if field.number == 2), "").removeprefix(PREFIX)
    attributes = [inner for field in fields if field.number == 5 for inner in read_fields(field.data)]
    tensors = [field for inner in attributes if inner.number == 5 for field in read_fields(inner.data)]
    raw = [bytes(field.data) for field in tensors if field.number == 9]
    return {name: raw[0]} if len(raw) == 1 else {}


# ---- Checking ----


def read_onnx(source: bytes | Path) -> bytes:
    """Return the bytes of an ONNX file, or raise `UnusableInput` if it cannot be read or is too large."""
    if isinstance(source, bytes):
        return source
    try:
        if source.stat().st_size > MAX_FILE:
            raise UnusableInput("ONNX file: larger than 2 GiB, so no export can have written it")
        return source.read_bytes()
    except (OSError, ValueError) as error:
        raise UnusableInput(f"ONNX file: {file_problem(error)}") from None


def parts_for(data: bytes, predicate: AnyPredicate) -> OnnxParts:
    """Split an exported file as its certificate says, or raise `OnnxMismatch`."""
    if not isinstance(predicate, Predicate):
        raise OnnxMismatch("the certificate is of format 1, and models of that format are not exported")
    if predicate.mechanism == "discarded":
        raise OnnxMismatch("the certificate is for a draw that was destroyed, so no file can belong to it")
    representation = predicate.objective.representation
    if representation is None:
        return read(data, None)
    size = representation.graph_bytes
    if len(data) <= size:
        raise OnnxMismatch(f"the file has {len(data)} bytes, but the graph alone has {size}")
    digest = hashlib.sha256(memoryview(data)[:size]).hexdigest()
    if digest != representation.graph_sha256:
        raise OnnxMismatch(
            f"the graph in the file has the sha256 {digest}, the certificate names "
            f"{representation.graph_sha256}"
        )
    return read(data, size)


def check_onnx(data: bytes, expected_sha256: str, predicate: AnyPredicate) -> str:
    """Check line 10 and return the detail to show, or raise `OnnxMismatch`.

    The graph must have the certified digest, and the weights file rebuilt from the rest must have the
    certified digest too. The whole file is then written again from these two, and must be the same.
    """
    parts = parts_for(data, predicate)
    actual = hashlib.sha256(parts.weights).hexdigest()
    if actual != expected_sha256:
        raise OnnxMismatch(
            f"the weights in the file have the sha256 {actual}, the certificate is for {expected_sha256}"
        )
    represented = predicate.objective.representation if isinstance(predicate, Predicate) else None
    try:
        expected = join(None if represented is None else parts.graph, head_of(parts.weights, predicate))
    except NotExportable as error:
        raise OnnxMismatch(str(error)) from None
    if expected != data:
        raise OnnxMismatch("the file contains something besides the graph and the certified model")
    graph = f"the graph {represented.graph_sha256} and " if represented is not None else ""
    return f"{len(data)} bytes: {graph}the certified weights {actual}"

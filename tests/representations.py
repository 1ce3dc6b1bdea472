"""Small public representations for tests: graphs over vectors, images and texts, and rows to feed them."""

import io
import json
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers

SIDE, FEATURES = 8, 6
ORIGIN = {"origin": "fixed numbers from a test", "licence": "Apache-2.0"}
IMAGES: dict[str, Any] = {
    "input": {"kind": "image", "shape": [1, SIDE, SIDE], "resize": "none"},
    "outputs": ["features"],
    **ORIGIN,
}
TEXTS: dict[str, Any] = {
    "input": {"kind": "text", "max_length": 16},
    "outputs": ["features"],
    "normalisation": "unit",
    **ORIGIN,
}
WORDS = ("[UNK]", "red", "green", "blue", "sky", "grass", "rose", "sea", "leaf", "blood")


def model_of(nodes: list[onnx.NodeProto], inputs: list[Any], outputs: list[Any], constants: Any) -> bytes:
    """Return a graph as the bytes of an ONNX file."""
    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "test", inputs, outputs, initializers)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made, full_check=True)
    return bytes(made.SerializeToString())


def projection(seed: int = 0) -> np.ndarray:
    """Return the matrix that the image graph multiplies pixels with."""
    return np.random.default_rng(seed).normal(size=(SIDE * SIDE, FEATURES)).astype(np.float32) / SIDE


def image_graph(seed: int = 0) -> bytes:
    """Return a graph that projects the pixels of a small grey image."""
    return model_of(
        [
            helper.make_node("Flatten", ["image"], ["flat"], axis=1),
            helper.make_node("MatMul", ["flat", "matrix"], ["features"]),
        ],
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, SIDE, SIDE])],
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["N", FEATURES])],
        {"matrix": projection(seed)},
    )


def mixing_graph() -> bytes:
    """Return a graph that subtracts the mean over the rows of a batch, so rows influence each other."""
    return model_of(
        [
            helper.make_node("Flatten", ["image"], ["flat"], axis=1),
            helper.make_node("MatMul", ["flat", "matrix"], ["projected"]),
            helper.make_node("ReduceMean", ["projected"], ["mean"], axes=[0], keepdims=1),
            helper.make_node("Sub", ["projected", "mean"], ["features"]),
        ],
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, SIDE, SIDE])],
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["N", FEATURES])],
        {"matrix": projection()},
    )


def text_graph() -> bytes:
    """Return a graph that averages fixed word vectors."""
    table = np.random.default_rng(1).normal(size=(len(WORDS), FEATURES)).astype(np.float32)
    return model_of(
        [
            helper.make_node("Gather", ["table", "input_ids"], ["embedded"], axis=0),
            helper.make_node("ReduceMean", ["embedded"], ["features"], axes=[1], keepdims=0),
        ],
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["N", "T"])],
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["N", FEATURES])],
        {"table": table},
    )


def tokenizer_json() -> bytes:
    """Return a tokenizer that splits at white space."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return json.dumps(json.loads(tokenizer.to_str())).encode()


def pictures(rows: int, *, seed: int = 7) -> tuple[np.ndarray, np.ndarray]:
    """Return labels 0 to 2 and grey images (rows, 8, 8) whose bright third shows the label."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, rows)
    pixels = generator.integers(0, 80, (rows, SIDE, SIDE)).astype(np.uint8)
    for row, label in enumerate(labels):
        pixels[row, 2 * label : 2 * label + 3] += 150
    return labels, pixels


def png(pixels: np.ndarray) -> bytes:
    """Return an image as a PNG file."""
    sink = io.BytesIO()
    Image.fromarray(pixels).save(sink, "PNG")
    return sink.getvalue()


def image_part(*, rows: int = 120, subjects: int = 30, seed: int = 7, first: int = 0) -> bytes:
    """Return a raw part of images. Its subjects are numbered from `s{first}` and have several rows each."""
    labels, pixels = pictures(rows, seed=seed)
    people = [f"s{first + i % subjects}" for i in range(rows)]
    return raw_part(people, labels, "image", pa.array([png(picture) for picture in pixels], pa.binary()))


def text_part(*, rows: int = 120, subjects: int = 30, seed: int = 7) -> bytes:
    """Return a raw part of short texts about things that are red, green or blue."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, rows)
    things = (("rose", "blood", "red"), ("grass", "leaf", "green"), ("sky", "sea", "blue"))
    texts = [" ".join(generator.choice(things[label], 4)) for label in labels]
    people = [f"s{i % subjects}" for i in range(rows)]
    return raw_part(people, labels, "text", pa.array(texts, pa.string()))


def raw_part(subjects: list[str], labels: np.ndarray, column: str, rows: pa.Array) -> bytes:
    """Return raw rows as a Parquet part."""
    table = pa.table({"subject_id": pa.array(subjects, pa.string()), "label": pa.array(labels), column: rows})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()

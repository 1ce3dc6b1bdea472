"""The encoder gives every row the features that the graph computes, whatever rows are next to it."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from onnx import TensorProto, helper
from tokenizers import Tokenizer, processors

from tests.representations import (
    IMAGES,
    SIDE,
    TEXTS,
    WORDS,
    image_graph,
    model_of,
    pictures,
    png,
    projection,
    text_graph,
    tokenizer_json,
)
from tests.unit.worker.representation.vectors import (
    FEATURES,
    MATRIX,
    VECTORS,
    WIDTH,
    declare,
    open_encoder,
    tensor,
    to_bytes,
    vector_model,
    vectors,
)
from worker.representation.encoder import unit_rows
from worker.representation.errors import RepresentationError, RowError
from worker.representation.rows import BATCH_BYTES, default_batch_rows

ROWS = np.random.default_rng(11).normal(size=(23, WIDTH)).astype(np.float32)
GRAPH = to_bytes(vector_model())


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether two arrays have the same type, shape and bits."""
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


# -- what is computed ---------------------------------------------------------------------------------------


def test_vectors_go_through_the_graph():
    features = open_encoder(GRAPH).encode(vectors(ROWS))
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, ROWS @ MATRIX, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("element", [pa.float16(), pa.float32(), pa.float64()])
def test_vectors_of_every_float_type_are_rounded_to_float32(element: pa.DataType):
    exact = ROWS.astype(np.float16)
    rows = pa.FixedSizeListArray.from_arrays(pa.array(exact.ravel()).cast(element), WIDTH)
    expected = open_encoder(GRAPH).encode(vectors(exact))
    assert same_bits(open_encoder(GRAPH).encode(rows), expected)


def test_images_go_through_the_graph():
    _, pixels = pictures(5)
    features = open_encoder(image_graph(), IMAGES).encode(pa.array([png(image) for image in pixels]))
    expected = (pixels.reshape(5, SIDE * SIDE) / 255) @ projection()
    np.testing.assert_allclose(features, expected, rtol=1e-4, atol=1e-5)


def test_texts_go_through_the_graph():
    rows = pa.array(["red rose", "sea", "sky unheard"])
    features = open_encoder(text_graph(), TEXTS, tokenizer_json(), normalisation="none").encode(rows)
    table = np.random.default_rng(1).normal(size=(len(WORDS), 6)).astype(np.float32)
    ids = [[WORDS.index("red"), WORDS.index("rose")], [WORDS.index("sea")], [WORDS.index("sky"), 0]]
    expected = np.stack([table[row].mean(axis=0) for row in ids])
    np.testing.assert_allclose(features, expected, rtol=1e-5, atol=1e-6)


def test_texts_are_cut_off_at_the_greatest_length():
    encoder = open_encoder(text_graph(), TEXTS, tokenizer_json(), max_length=3)
    whole, cut = encoder.encode(pa.array(["red sky sea blood blood", "red sky sea"]))
    assert same_bits(whole, cut)
    assert not same_bits(*encoder.encode(pa.array(["red sky sea", "red sky"])))


def test_special_tokens_count_towards_the_greatest_length():
    tokenizer = Tokenizer.from_str(tokenizer_json().decode())
    tokenizer.post_processor = processors.BertProcessing(("rose", 6), ("leaf", 8))
    encoder = open_encoder(text_graph(), TEXTS, tokenizer.to_str().encode(), max_length=4)
    (tokens,) = encoder.reader.read(pa.array(["red green blue sky"]), 0, 1)
    words = [WORDS.index(word) for word in ("leaf", "red", "green", "rose")]
    assert tokens.tolist() == [words, [1] * 4, [0] * 4]


def test_padding_and_truncation_of_the_tokenizer_are_not_used():
    tokenizer = Tokenizer.from_str(tokenizer_json().decode())
    tokenizer.enable_padding(length=12)
    tokenizer.enable_truncation(2)
    encoder = open_encoder(text_graph(), TEXTS, tokenizer.to_str().encode())
    (tokens,) = encoder.reader.read(pa.array(["red sky sea"]), 0, 1)
    assert tokens.shape == (3, 3)


def test_a_graph_gets_the_token_inputs_that_it_has():
    inputs = [tensor(name, ["N", "T"], TensorProto.INT64) for name in ("attention_mask", "input_ids")]
    graph = model_of(
        [
            helper.make_node("Mul", ["attention_mask", "hundred"], ["scaled"]),
            helper.make_node("Add", ["scaled", "input_ids"], ["sum"]),
            helper.make_node("Cast", ["sum"], ["numbers"], to=TensorProto.FLOAT),
            helper.make_node("ReduceSum", ["numbers", "axis"], ["features"], keepdims=1),
        ],
        inputs,
        [tensor("features", ["N", 1])],
        {"hundred": np.array(100), "axis": np.array([1])},
    )
    encoder = open_encoder(graph, TEXTS, tokenizer_json(), normalisation="none")
    assert encoder.encode(pa.array(["red green", "blue"])).tolist() == [[203.0], [103.0]]


def test_outputs_are_joined_in_the_declared_order():
    nodes = [helper.make_node("Neg", ["x"], ["negative"]), helper.make_node("Reshape", ["x", "to"], ["cube"])]
    outputs = [tensor("negative", ["N", WIDTH]), tensor("cube", ["N", 2, 2])]
    graph = to_bytes(vector_model(nodes, outputs=outputs, constants={"to": np.array([-1, 2, 2])}))
    one = open_encoder(graph, outputs=["negative", "cube"]).encode(vectors(ROWS))
    other = open_encoder(graph, outputs=["cube", "negative"]).encode(vectors(ROWS))
    assert same_bits(one, np.concatenate([-ROWS, ROWS], axis=1))
    assert same_bits(other, np.concatenate([ROWS, -ROWS], axis=1))
    assert same_bits(open_encoder(graph, outputs=["negative"]).encode(vectors(ROWS)), -ROWS)


def test_unit_rows_have_length_one_and_zeros_stay_zeros():
    rows = np.concatenate([ROWS, np.zeros((1, WIDTH), np.float32)])
    plain = open_encoder(GRAPH).encode(vectors(rows))
    unit = open_encoder(GRAPH, normalisation="unit").encode(vectors(rows))
    np.testing.assert_allclose(np.linalg.norm(unit[:-1].astype(np.float64), axis=1), 1, atol=1e-6)
    assert same_bits(unit, unit_rows(plain))
    assert not unit[-1].any()


@pytest.mark.parametrize("size", [1e-20, 1.0, 3e38])
def test_unit_rows_of_any_size_neither_overflow_nor_vanish(size: float):
    unit = unit_rows(np.full((2, 4), size, np.float32))
    np.testing.assert_allclose(unit, 0.5, rtol=1e-6)


def test_no_rows_give_an_empty_table_of_the_right_width():
    assert open_encoder(GRAPH).encode(vectors(ROWS)[:0]).shape == (0, FEATURES)
    assert open_encoder(text_graph(), TEXTS, tokenizer_json()).encode(pa.array([], pa.string())).shape == (
        0,
        6,
    )


def test_constants_among_the_inputs_are_no_rows():
    model = vector_model()
    model.graph.input.append(tensor("matrix", [WIDTH, FEATURES]))
    encoder = open_encoder(to_bytes(model))
    assert encoder.summary.inputs == ("x",)
    assert same_bits(encoder.encode(vectors(ROWS)), open_encoder(GRAPH).encode(vectors(ROWS)))


def test_dropout_that_is_switched_off_is_accepted():
    model = vector_model(
        [
            helper.make_node("Dropout", ["x", "", "off"], ["kept"]),
            helper.make_node("MatMul", ["kept", "matrix"], ["features"]),
        ],
        constants={"off": np.array(False)},
    )
    assert same_bits(
        open_encoder(to_bytes(model)).encode(vectors(ROWS)), open_encoder(GRAPH).encode(vectors(ROWS))
    )


# -- rows do not influence each other -----------------------------------------------------------------------


def test_the_last_batch_is_padded_so_a_row_has_the_same_bits_alone():
    encoder = open_encoder(GRAPH, batch_rows=8)
    together = encoder.encode(vectors(ROWS))
    for index in range(len(ROWS)):
        assert same_bits(encoder.encode(vectors(ROWS[index : index + 1]))[0], together[index])


def test_features_do_not_depend_on_neighbours_or_order():
    encoder = open_encoder(GRAPH, batch_rows=8)
    together = encoder.encode(vectors(ROWS))
    order = np.random.default_rng(2).permutation(len(ROWS))
    assert same_bits(encoder.encode(vectors(ROWS[order])), np.ascontiguousarray(together[order]))
    assert same_bits(encoder.encode(vectors(ROWS[::2])), np.ascontiguousarray(together[::2]))
    assert same_bits(open_encoder(GRAPH, batch_rows=8).encode(vectors(ROWS)), together)


def test_a_slice_of_a_column_gives_the_rows_of_the_slice():
    encoder = open_encoder(GRAPH)
    assert same_bits(encoder.encode(vectors(ROWS)[5:9]), encoder.encode(vectors(ROWS[5:9])))
    texts = open_encoder(text_graph(), TEXTS, tokenizer_json())
    column = pa.array(["red", "green", "blue"])
    assert same_bits(texts.encode(column[1:]), texts.encode(pa.array(["green", "blue"])))


def test_a_graph_with_a_fixed_number_of_rows_runs_in_batches_of_that_number():
    graph = to_bytes(vector_model(rows=5))
    encoder = open_encoder(graph)
    assert encoder.batch_rows == encoder.summary.batch == 5
    np.testing.assert_allclose(encoder.encode(vectors(ROWS)), ROWS @ MATRIX, rtol=1e-5, atol=1e-6)
    with pytest.raises(RepresentationError, match="takes exactly 5 rows at once, not 4"):
        open_encoder(graph, batch_rows=4)


def test_the_first_bad_row_is_named_by_its_index():
    rows = ROWS.copy()
    rows[13, 2] = rows[17, 0] = np.nan
    with pytest.raises(RowError) as caught:
        open_encoder(GRAPH, batch_rows=4).encode(vectors(rows))
    assert caught.value.row == 13


@pytest.mark.parametrize("bad", [0, 7, 8, 22])
def test_the_row_whose_features_are_not_finite_is_named_by_its_index(bad: int):
    rows = np.abs(ROWS) + 1
    rows[bad, 1] = -1
    graph = to_bytes(
        vector_model(
            [helper.make_node("Log", ["x"], ["features"])], outputs=[tensor("features", ["N", WIDTH])]
        )
    )
    with pytest.raises(RowError) as caught:
        open_encoder(graph, batch_rows=8).encode(vectors(rows))
    assert caught.value.row == bad


def test_outputs_whose_size_depends_on_the_row_are_refused():
    graph = model_of(
        [helper.make_node("Gather", ["table", "input_ids"], ["features"], axis=0)],
        [tensor("input_ids", ["N", "T"], TensorProto.INT64)],
        [tensor("features", ["N", "T", 2])],
        {"table": np.ones((len(WORDS), 2), np.float32)},
    )
    with pytest.raises(RepresentationError, match="choose outputs whose size does not depend on the row"):
        open_encoder(graph, TEXTS, tokenizer_json()).encode(pa.array(["red", "red sky"]))


def test_large_rows_run_in_smaller_batches():
    sizes: list[tuple[dict[str, Any], int]] = [
        (VECTORS, 256),
        ({**VECTORS, "input": {"kind": "vector", "width": 10_000_000}}, BATCH_BYTES // 40_000_000),
        ({**VECTORS, "input": {"kind": "image", "shape": [3, 4096, 4096]}}, 1),
        (IMAGES, 16),
        (TEXTS, 1),
    ]
    assert [default_batch_rows(declare(fields)) for fields, _ in sizes] == [rows for _, rows in sizes]

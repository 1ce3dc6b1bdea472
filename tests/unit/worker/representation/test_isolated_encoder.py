"""Rows are encoded in a process of its own, so that a hostile graph or tokenizer cannot harm the attempt."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pyarrow as pa
import pytest
from onnx import TensorProto, helper

from tests.representations import IMAGES, TEXTS, image_graph, pictures, png, text_graph, tokenizer_json
from tests.unit.worker.representation.case import assert_clear
from tests.unit.worker.representation.vectors import (
    FEATURES,
    LIMITS,
    VECTORS,
    WIDTH,
    declare,
    open_encoder,
    to_bytes,
    vector_model,
    vectors,
)
from worker.representation import isolated_encoder
from worker.representation.errors import RepresentationError, RowError
from worker.representation.isolated_encoder import IsolatedEncoder
from worker.representation.limits import Limits
from worker.representation.request import GraphRequest
from worker.representation.session import GraphSession

GRAPH = to_bytes(vector_model())
ROWS = np.random.default_rng(5).normal(size=(600, WIDTH)).astype(np.float32)


@contextmanager
def isolated(
    graph: bytes,
    fields: dict[str, Any] = VECTORS,
    tokenizer: bytes | None = None,
    *,
    limits: Limits = LIMITS,
    batch_rows: int | None = None,
    width: int = FEATURES,
) -> Iterator[IsolatedEncoder]:
    request = GraphRequest(declare(fields), graph, tokenizer, limits, "cpu", batch_rows=batch_rows)
    encoder = IsolatedEncoder(request, width=width)
    try:
        yield encoder
    finally:
        encoder.close()


def refusal(encoder: IsolatedEncoder, rows: pa.Array) -> str:
    """Encode rows that must be refused, and return the reason."""
    with pytest.raises(RepresentationError) as caught:
        encoder.encode(rows)
    assert_clear(caught.value.reasons)
    return "; ".join(caught.value.reasons)


def sized_graph(exponent: int) -> bytes:
    """Return a graph whose effort is decided by a value of the rows: a product of two n by n matrices."""
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["largest"], keepdims=0),
        helper.make_node("Cast", ["largest"], ["side"], to=TensorProto.INT64),
        helper.make_node("Max", ["side", "one"], ["positive"]),
        helper.make_node("Expand", ["positive", "axes"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["square"]),
        helper.make_node("MatMul", ["square", "square"], ["product"])
        if exponent == 3
        else helper.make_node("Identity", ["square"], ["product"]),
        helper.make_node("ReduceMax", ["product"], ["zero"], keepdims=0),
        helper.make_node("Add", ["x", "zero"], ["sum"]),
        helper.make_node("MatMul", ["sum", "matrix"], ["features"]),
    ]
    return to_bytes(vector_model(nodes, constants={"one": np.array(1), "axes": np.array([2])}))


def row_of(value: float) -> pa.Array:
    return vectors([[value, 0, 0, 0]])


# -- the same features --------------------------------------------------------------------------------------


def test_features_have_the_bits_of_an_encoder_in_this_process():
    rows = vectors(ROWS)
    with isolated(GRAPH, batch_rows=256) as encoder:
        pieces = [encoder.encode(rows[:256]), encoder.encode(rows[256:]), encoder.encode(rows[:0])]
    expected = open_encoder(GRAPH, batch_rows=256).encode(rows)
    assert np.concatenate(pieces).tobytes() == expected.tobytes()
    assert pieces[2].shape == (0, FEATURES)


def test_images_and_texts_reach_the_process():
    files = pa.array([png(image) for image in pictures(20)[1]], pa.large_binary())
    with isolated(image_graph(), IMAGES, width=6) as encoder:
        assert encoder.encode(files).shape == (20, 6)
    with isolated(text_graph(), TEXTS, tokenizer_json(), width=6) as encoder:
        assert encoder.encode(pa.array(["red sky", "sea"], pa.large_string())).shape == (2, 6)


def test_a_bad_row_is_named_by_its_place_in_the_whole_piece():
    files = [png(image) for image in pictures(40)[1]]
    files[37] = files[37][:30]
    with (
        isolated(image_graph(), IMAGES, width=6, batch_rows=16) as encoder,
        pytest.raises(RowError) as caught,
    ):
        encoder.encode(pa.array(files, pa.binary()))
    assert caught.value.row == 37


def test_another_width_than_the_check_measured_is_refused():
    with isolated(GRAPH, width=FEATURES + 1) as encoder:
        assert "3 numbers per row, but had 4 in the check" in refusal(encoder, vectors(ROWS))


# -- rows that make a graph or a tokenizer misbehave --------------------------------------------------------


def test_a_row_that_makes_the_graph_take_all_memory_is_refused():
    with isolated(sized_graph(2), limits=replace(LIMITS, memory_bytes=1 << 29)) as encoder:
        assert encoder.encode(row_of(3)).shape == (1, FEATURES)
        assert "memory" in refusal(encoder, row_of(1e6))


def test_a_row_that_keeps_one_operator_busy_for_too_long_is_refused():
    limits = replace(LIMITS, seconds_per_batch=1.0)
    with isolated(sized_graph(3), limits=limits) as encoder:
        assert encoder.encode(row_of(3)).shape == (1, FEATURES)
        assert "needs more than 2 seconds for one batch" in refusal(encoder, row_of(9000))


def test_a_text_that_the_tokenizer_expands_without_end_is_refused():
    content = json.loads(tokenizer_json())
    expansion = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
    content["normalizer"] = {"type": "Sequence", "normalizers": [expansion] * 4}
    tokenizer = json.dumps(content).encode()
    limits = replace(LIMITS, memory_bytes=1 << 29)
    with isolated(text_graph(), TEXTS, tokenizer, limits=limits, width=6) as encoder:
        assert encoder.encode(pa.array(["red"])).shape == (1, 6)
        assert "memory" in refusal(encoder, pa.array(["red", "a"]))


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import os; os.kill(os.getpid(), 11)", "crash"),
        ("import os; os.kill(os.getpid(), 9)", "stopped by the operating system"),
        ("import os; os.kill(os.getpid(), 14)", "needs more than 120 seconds for one batch"),
        ("pass", "crash"),
        ("print('{')", "crash"),
        ('print(\'{"rows": 1, "width": 3}\')', "crash"),
        ('print(\'{"rows": 7, "width": 3}\')', "crash"),
    ],
)
def test_a_process_that_dies_gives_a_clear_reason(monkeypatch: pytest.MonkeyPatch, program: str, reason: str):
    monkeypatch.setattr(isolated_encoder, "_COMMAND", ("-c", program))
    with isolated(GRAPH + bytes(1_000_000)) as encoder:
        assert reason in refusal(encoder, row_of(1))


def test_the_process_gets_no_secret_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    listing = tmp_path / "names"
    program = f"import os; open({str(listing)!r}, 'w').write('\\n'.join(os.environ))"
    monkeypatch.setenv("LETHE_DATABASE_URL", "postgresql://secret")
    monkeypatch.setattr(isolated_encoder, "_COMMAND", ("-c", program))
    with isolated(GRAPH) as encoder:
        refusal(encoder, row_of(1))
    assert not [name for name in listing.read_text().split() if name.startswith("LETHE")]


def test_a_file_in_the_format_of_the_runtime_is_not_loaded(tmp_path: Path):
    """Such bytes could hide in a file that the inspection reads as another, harmless graph."""
    target, options = tmp_path / "model.ort", ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(target)
    options.add_session_config_entry("session.save_model_format", "ORT")
    ort.InferenceSession(GRAPH, options, providers=["CPUExecutionProvider"])
    with pytest.raises(RepresentationError, match="ONNX Runtime cannot load the graph"):
        GraphSession(
            target.read_bytes(), device="cpu", seconds=9, threads=1, memory_bytes=1 << 30, fixed_shapes=True
        )

"""Exported ONNX files run like the certified model, and nothing can be changed in or added to one."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from safetensors.numpy import load

from lethe.certificate.cli import run_verify
from lethe.certificate.errors import NotExportable, OnnxMismatch
from lethe.certificate.onnx_file import check_onnx, head_of, join, read
from lethe.certificate.verify import verify
from tests.unit.certificate.certificate_cases import Issuer
from tests.unit.certificate.certificate_reports import KEY, failed_lines
from tests.unit.certificate.onnx_graphs import (
    ROW,
    Array,
    Export,
    export,
    image_export,
    text_export,
    vector_export,
    vector_graph,
)
from tests.unit.certificate.representation_cases import certified

OPSETS = [7, 9, 13, 17, 21, 23]
MAKERS = {"vector": vector_export, "image": image_export, "text": text_export}
RANDOM = np.random.default_rng(0)
ROWS: dict[str, dict[str, Array]] = {
    "vector": {"row": RANDOM.normal(size=(5, 12)).astype(np.float32)},
    "image": {"image": RANDOM.normal(size=(5, 3, 8, 8)).astype(np.float32)},
    "text": {"input_ids": RANDOM.integers(0, 50, size=(1, 7))},
}


@cache
def exported(kind: str = "image", opset: int = 13, normalisation: str = "none") -> Export:
    return MAKERS[kind](opset, normalisation)


@cache
def plain(family: str) -> Export:
    return export(None, None, family)


def run(data: bytes, rows: dict[str, Array], outputs: list[str] | None = None) -> list[Array]:
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    return [np.asarray(value) for value in session.run(outputs, rows)]


def scores(features: Array, weights: bytes) -> Array:
    tensors = load(weights)
    result: Array = features.astype(np.float64) @ tensors["weight"].T + tensors["bias"]
    return result


def softmax(values: Array) -> Array:
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    result: Array = powers / powers.sum(axis=1, keepdims=True)
    return result


def check(case: Export, data: bytes | None = None) -> str:
    statement = case.issued.statement
    return check_onnx(case.data if data is None else data, statement.weights_sha256, statement.predicate)


# ---- Serving ----


@pytest.mark.parametrize("normalisation", ["none", "unit"])
@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("kind", MAKERS)
def test_an_exported_model_agrees_with_its_weights_on_the_features(kind, opset, normalisation):
    case = exported(kind, opset, normalisation)
    assert case.graph is not None
    model = onnx.load_from_string(case.data)
    onnx.checker.check_model(model, full_check=True)
    representation = case.issued.predicate.objective.representation
    assert representation is not None
    parts = run(case.graph, ROWS[kind], list(representation.declaration.outputs))
    features = np.concatenate([part.reshape(len(part), -1).astype(np.float64) for part in parts], axis=1)
    if normalisation == "unit":
        features /= np.maximum(np.sqrt((features**2).sum(axis=1, keepdims=True)), 1e-30)
    expected = scores(features.astype(np.float32), case.weights)
    logits, probabilities = run(case.data, ROWS[kind], ["logits", "probabilities"])
    assert logits.dtype == probabilities.dtype == np.float32
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(probabilities, softmax(expected), rtol=1e-5, atol=1e-5)
    assert check(case)


def test_a_row_of_zeros_has_finite_scores_when_rows_are_normalised():
    case = exported("vector", 13, "unit")
    logits, probabilities = run(
        case.data, {"row": np.zeros((2, 12), np.float32)}, ["logits", "probabilities"]
    )
    np.testing.assert_allclose(logits, scores(np.zeros((2, 99)), case.weights), atol=1e-5)
    assert np.isfinite(probabilities).all()


@pytest.mark.parametrize(
    ("family", "outputs"),
    [
        ("softmax", ["logits", "probabilities"]),
        ("logistic", ["logit", "probability"]),
        ("ridge", ["prediction"]),
    ],
)
def test_every_linear_family_is_exported_without_a_representation(family, outputs):
    case = plain(family)
    onnx.checker.check_model(onnx.load_from_string(case.data), full_check=True)
    rows = RANDOM.normal(size=(4, 99 if family == "softmax" else 999)).astype(np.float32)
    expected = scores(rows, case.weights)
    results = run(case.data, {"features": rows})
    assert [value.name for value in onnx.load_from_string(case.data).graph.output] == outputs
    np.testing.assert_allclose(results[0], expected, rtol=1e-5, atol=1e-5)
    if family == "logistic":
        np.testing.assert_allclose(results[1], 1 / (1 + np.exp(-expected)), rtol=1e-5, atol=1e-5)
    assert check(case)


def test_a_model_without_bias_and_with_float32_weights_is_exported():
    issuer = Issuer(KEY, family="ridge")
    predicate = issuer.issue("tr-proved").predicate
    header = b'{"__metadata__":{},"weight":{"dtype":"F32","shape":[1,3],"data_offsets":[0,12]}}'
    matrix = np.array([[1.5, -2.0, 0.25]], np.float32)
    weights = len(header).to_bytes(8, "little") + header + matrix.tobytes()
    data = join(None, head_of(weights, predicate))
    onnx.checker.check_model(onnx.load_from_string(data), full_check=True)
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_allclose(run(data, {"features": rows})[0], rows @ matrix.T, rtol=1e-6)
    assert read(data, None).weights == weights


# ---- What the file says ----


@pytest.mark.parametrize("kind", MAKERS)
def test_the_file_begins_with_the_graph_and_contains_the_released_weights_file(kind):
    case = exported(kind)
    assert case.graph is not None
    assert case.data.startswith(case.graph)
    parts = read(case.data, len(case.graph))
    assert parts.graph == case.graph
    assert parts.weights == case.weights
    assert hashlib.sha256(parts.weights).hexdigest() == case.issued.statement.weights_sha256
    predicate, session = case.issued.predicate, onnxruntime.InferenceSession(case.data)
    metadata = session.get_modelmeta().custom_metadata_map
    assert predicate.objective.representation is not None
    declaration = predicate.objective.representation.declaration
    assert metadata["lethe.certificate_id"] == predicate.certificate_id
    assert metadata["lethe.model"] == predicate.model
    assert metadata["lethe.version"] == str(predicate.version)
    assert metadata["lethe.representation"] == predicate.objective.representation.digest
    assert metadata["lethe.weights_sha256"] == case.issued.statement.weights_sha256
    assert json.loads(metadata["lethe.declaration"]) == declaration.model_dump(mode="json")
    assert json.loads(metadata["lethe.outputs"]) == ["logits", "probabilities"]


def test_the_same_input_gives_the_same_bytes():
    case = exported()
    assert join(case.graph, head_of(case.weights, case.issued.predicate)) == case.data


def test_an_output_that_has_the_name_of_a_tensor_of_the_graph_is_renamed():
    case = vector_export(output="logits")
    names = [value.name for value in onnx.load_from_string(case.data).graph.output]
    assert names == ["logits", "lethe_logits", "probabilities"]
    features, logits = run(case.data, ROWS["vector"], ["logits", "lethe_logits"])
    np.testing.assert_allclose(logits, scores(features, case.weights), rtol=1e-5, atol=1e-5)
    assert check(case)


# ---- Refusals ----


def refusal(graph: bytes, **declared: Any) -> str:
    with pytest.raises(NotExportable) as error:
        export(graph, certified(ROW, graph=graph, **({"outputs": ("hidden",)} | declared)))
    return str(error.value)


def test_graphs_that_the_head_does_not_fit_are_refused_with_a_sentence():
    assert "not an ONNX file" in refusal(b"\xff\xff\xff")
    assert "not an ONNX file" in refusal(b"\x08\x07")
    assert "not an ONNX file" in refusal(vector_graph()[:-5])
    assert "no output named 'gone'" in refusal(vector_graph(), outputs=("gone",))
    old = onnx.load_from_string(vector_graph(7))
    old.opset_import[0].version = 6
    assert "version 6 of the ONNX operators" in refusal(old.SerializeToString())
    once = vector_export()
    assert "reserved for the export" in refusal(once.data)
    named = onnx.load_from_string(vector_graph())
    helper.set_model_props(named, {"lethe.model": "another"})
    assert "'lethe.model'" in refusal(named.SerializeToString())
    both = onnx.load_from_string(vector_graph(output="logits"))
    both.graph.node[-1].name = "lethe_logits"
    assert "'lethe_logits'" in refusal(both.SerializeToString(), outputs=("logits",))


def test_networks_are_refused_with_what_works_instead():
    issued = Issuer(KEY, family="mlp").issue("tr-conditional")
    assert issued.weights is not None
    with pytest.raises(NotExportable, match="mlp cannot be exported; softmax, logistic and ridge can"):
        head_of(issued.weights, issued.predicate)


def test_a_file_that_is_no_linear_model_is_refused():
    issued = Issuer(KEY).issue("tr-proved")
    assert issued.weights is not None
    with pytest.raises(NotExportable, match="not that of a linear model"):
        head_of(issued.weights, issued.predicate)
    with pytest.raises(NotExportable, match="not safetensors"):
        head_of(b"nothing", issued.predicate)


# ---- Verification ----


@pytest.mark.parametrize("kind", [*MAKERS, "plain"])
def test_an_onnx_file_takes_the_place_of_the_weights_file(kind):
    case = plain("softmax") if kind == "plain" else exported(kind)
    alone = verify(case.issuer.pack(), onnx=case.data)
    assert alone.verdict == "verified", alone.failed
    assert [line.number for line in alone.lines] == [*range(1, 9), 10]
    assert "1000 weights (F64)" in alone.lines[2].detail
    both = verify(case.issuer.pack(), onnx=case.data, weights=case.weights)
    assert both.verdict == "verified"
    assert both.proves == alone.proves


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_changed_byte_anywhere_makes_the_check_fail(data):
    case = data.draw(st.sampled_from([exported(kind) for kind in MAKERS] + [plain("softmax")]))
    place = data.draw(st.integers(0, len(case.data) - 1))
    changed = bytearray(case.data)
    changed[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(OnnxMismatch):
        check(case, bytes(changed))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_bytes_added_or_removed_anywhere_make_the_check_fail(data):
    case = data.draw(st.sampled_from([exported("vector"), plain("logistic")]))
    place = data.draw(st.integers(0, len(case.data)))
    extra = data.draw(st.binary(min_size=1, max_size=40))
    with pytest.raises(OnnxMismatch):
        check(case, case.data[:place] + extra + case.data[place:])
    if place < len(case.data):
        with pytest.raises(OnnxMismatch):
            check(case, case.data[:place])


def test_a_node_or_metadata_added_by_someone_else_is_refused():
    case = exported("vector")
    hidden = onnx.ModelProto()
    hidden.graph.node.append(helper.make_node("Relu", ["logits"], ["spy"]))
    property_ = onnx.ModelProto()
    helper.set_model_props(property_, {"note": "hello"})
    for addition in (hidden, property_):
        data = case.data + addition.SerializeToString()
        onnx.load_from_string(data)
        with pytest.raises(OnnxMismatch, match="something besides the graph"):
            check(case, data)
    merged = onnx.load_from_string(case.data).SerializeToString()  # the same model, but other bytes
    with pytest.raises(OnnxMismatch, match="the graph in the file has the sha256"):
        check(case, merged)


def test_the_weights_and_the_graph_of_another_release_are_refused():
    case = exported("vector")
    other = case.issuer.issue("tr-proved")
    assert other.weights is not None
    newer = join(case.graph, head_of(other.weights, other.predicate))
    with pytest.raises(OnnxMismatch, match="the weights in the file have the sha256"):
        check(case, newer)
    with pytest.raises(OnnxMismatch):
        check(case, exported("image").data)
    with pytest.raises(OnnxMismatch):
        check(case, plain("softmax").data)
    with pytest.raises(OnnxMismatch):
        check(plain("softmax"), case.data)


@pytest.mark.parametrize("bad", ["truncated", "text", "empty", "longer", "graph", "weights"])
def test_the_command_marks_a_wrong_file_and_exits_with_1(bad, tmp_path):
    case = exported("vector")
    assert case.graph is not None
    contents = {
        "truncated": case.data[:-1],
        "text": b"no ONNX file at all",
        "empty": b"",
        "longer": case.data + b"\0",
        "graph": case.graph,
        "weights": case.weights,
    }
    pack, file = tmp_path / "pack.json", tmp_path / "model.onnx"
    pack.write_bytes(case.issuer.pack(case.issued).to_bytes())
    file.write_bytes(contents[bad])
    lines: list[str] = []
    assert run_verify(pack=pack, onnx=file, write=lines.append) == 1
    assert any(line.startswith("✗ 10. ") for line in lines)
    file.write_bytes(case.data)
    lines.clear()
    assert run_verify(pack=pack, onnx=file, write=lines.append) == 0
    assert any(line.startswith("✓ 10. ") for line in lines)
    file.unlink()
    assert run_verify(pack=pack, onnx=file, write=lines.append) == 2
    assert "ONNX file: cannot read" in lines[-1]


def test_a_certificate_of_a_draw_that_was_destroyed_has_no_onnx_file():
    case = plain("softmax")
    issuer = Issuer(KEY, family="softmax", shape=(10, 99))
    issuer.issue("discarded-proved")
    assert failed_lines(verify(issuer.pack(), onnx=case.data)) == [3, 10]

"""The training-free representation: shapes, reproducible bytes, rows that do not influence each other."""

import hashlib
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from examples.wavelet_representation import build, feature_count, main

SIZES = [
    {},
    {"height": 8, "width": 8, "stride": 2},
    {"height": 9, "width": 13, "directions": 5, "scales": 1, "stride": 3},
    {"height": 32, "width": 32, "scales": 3, "stride": 8},
]


def _run(graph: bytes, images: NDArray[np.float32]) -> NDArray[np.float32]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["features"], {"image": images})[0])


def _images(count: int, height: int, width: int) -> NDArray[np.float32]:
    return np.random.default_rng(7).random((count, 1, height, width), dtype=np.float32)


@pytest.mark.parametrize("size", SIZES)
def test_features_have_the_declared_width(size: dict[str, int]) -> None:
    images = _images(3, size.get("height", 28), size.get("width", 28))
    features = _run(build(**size), images)
    assert features.shape == (3, feature_count(**size))
    assert features.dtype == np.float32
    assert np.isfinite(features).all()


def test_bytes_are_reproducible() -> None:
    assert build() == build()
    digest = hashlib.sha256(build(8, 8, stride=2)).hexdigest()
    assert digest == "fa8d0751b5d78a235dd92441e662d34ea9f0828a348df78df4e54328bcdc9405"


def test_only_default_operators_and_a_named_batch_axis() -> None:
    model = onnx.load_from_string(build())
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 17)]
    assert {node.domain for node in model.graph.node} == {""}
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"
    assert model.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "N"


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    graph, images = build(), _images(6, 28, 28)
    features = _run(graph, images)
    others = _images(12, 28, 28)[6:]
    others[4] = images[1]
    np.testing.assert_array_equal(_run(graph, others)[4], features[1])
    np.testing.assert_array_equal(_run(graph, images[::-1].copy())[::-1], features)


def test_constants_match_their_definition_on_a_single_bright_pixel() -> None:
    """Around a bright pixel far from the edges, perpendicular wavelets give transposed averages."""
    image = np.zeros((1, 1, 28, 28), np.float32)
    image[0, 0, 12, 12] = 1  # the centre of the window in row and column 3
    channels = _run(build(), image).reshape(17, 7, 7)
    assert channels[0].argmax() == 3 * 7 + 3
    np.testing.assert_allclose(channels[1], channels[5].T, atol=1e-6)  # 0° and 90°, finest scale
    np.testing.assert_allclose(channels[9], channels[13].T, atol=1e-6)  # 0° and 90°, coarser scale


def test_a_constant_image_has_no_response_inside() -> None:
    channels = _run(build(), np.ones((1, 1, 28, 28), np.float32)).reshape(17, 7, 7)
    assert np.abs(channels[1:, 3, 3]).max() < 1e-4
    assert channels[0, 3, 3] == pytest.approx(0.5, abs=1e-4)


def test_features_separate_digits_better_than_pixels() -> None:
    digits = load_digits()
    pixels = (digits.images / 16).astype(np.float32)[:, None]
    features = _run(build(8, 8, stride=2), pixels)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    train, test = slice(0, 1200), slice(1200, None)
    scores = [
        LogisticRegression(C=c, max_iter=1000)
        .fit(rows[train], digits.target[train])
        .score(rows[test], digits.target[test])
        for rows, c in ((features, 100.0), (pixels.reshape(len(pixels), -1), 1.0))
    ]
    assert scores[0] > max(0.95, scores[1])


def test_command_line_writes_the_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "wavelets.onnx"
    main(["--out", str(path), "--height", "8", "--width", "8", "--stride", "2"])
    assert path.read_bytes() == build(8, 8, stride=2)
    assert "272 features" in capsys.readouterr().out


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        build(8, 8, stride=0)

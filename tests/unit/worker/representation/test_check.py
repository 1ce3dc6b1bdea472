"""The check of a representation finds out how to run rows, and survives graphs that misbehave."""

import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from onnx import TensorProto, helper

from tests.representations import (
    IMAGES,
    TEXTS,
    image_graph,
    mixing_graph,
    pictures,
    png,
    text_graph,
    tokenizer_json,
)
from tests.unit.worker.representation.case import SECRET, assert_clear
from tests.unit.worker.representation.vectors import (
    LIMITS,
    VECTORS,
    WIDTH,
    declare,
    open_encoder,
    tensor,
    to_bytes,
    vector_model,
    vectors,
)
from worker.representation import check
from worker.representation.check import Checked, check_representation
from worker.representation.comparison import compare_rows
from worker.representation.encoder import Encoder
from worker.representation.errors import RepresentationError
from worker.representation.limits import Limits

GRAPH = to_bytes(vector_model())


def refusal(
    graph: bytes,
    fields: dict[str, object] = VECTORS,
    tokenizer: bytes | None = None,
    *,
    limits: Limits = LIMITS,
    samples: pa.Array | None = None,
) -> str:
    """Check a graph that must be refused, and return the reasons."""
    with pytest.raises(RepresentationError) as caught:
        check_representation(declare(fields), graph, tokenizer, limits=limits, samples=samples)
    assert_clear(caught.value.reasons)
    return "; ".join(caught.value.reasons)


def mean_graph(share: float) -> bytes:
    """Return a graph that adds a share of the mean over all rows to each row."""
    return to_bytes(
        vector_model(
            [
                helper.make_node("MatMul", ["x", "matrix"], ["projected"]),
                helper.make_node("ReduceMean", ["projected"], ["mean"], axes=[0], keepdims=1),
                helper.make_node("Mul", ["mean", "share"], ["scaled"]),
                helper.make_node("Add", ["projected", "scaled"], ["features"]),
            ],
            constants={"share": np.array(share, np.float32)},
        )
    )


def large_graph(numbers: int) -> bytes:
    """Return a graph that makes a tensor of so many numbers before it uses one of them."""
    return to_bytes(
        vector_model(
            [
                helper.make_node("Shape", ["x"], ["shape"], start=1),
                helper.make_node("Mul", ["shape", "factor"], ["size"]),  # not known before it runs
                helper.make_node("ConstantOfShape", ["size"], ["zeros"]),
                helper.make_node("ReduceMean", ["zeros"], ["mean"], keepdims=1),
                helper.make_node("Add", ["x", "mean"], ["sum"]),
                helper.make_node("MatMul", ["sum", "matrix"], ["features"]),
            ],
            constants={"factor": np.array([numbers // WIDTH])},
        )
    )


def slow_graph(products: int, size: int) -> bytes:
    """Return a graph that multiplies large matrices with each other many times."""
    nodes = [
        helper.make_node("Expand", ["x", "to"], ["wide"]),
        helper.make_node("ReduceMean", ["wide"], ["mean"], axes=[0, 1], keepdims=1),
        helper.make_node("Mul", ["square", "mean"], ["p0"]),
        *(helper.make_node("MatMul", ["square", f"p{i}"], [f"p{i + 1}"]) for i in range(products)),
        helper.make_node("ReduceMean", [f"p{products}"], ["result"], keepdims=0),
        helper.make_node("Add", ["x", "result"], ["sum"]),
        helper.make_node("MatMul", ["sum", "matrix"], ["features"]),
    ]
    square = np.full((size, size), 1 / size, np.float32)
    return to_bytes(vector_model(nodes, constants={"square": square, "to": np.array([1, WIDTH])}))


# -- accepted graphs ----------------------------------------------------------------------------------------


def test_a_graph_over_images_is_accepted_with_its_batches():
    samples = pa.array([png(image) for image in pictures(12)[1]], pa.binary())
    checked = check_representation(declare(IMAGES), image_graph(), None, limits=LIMITS, samples=samples)
    assert checked == Checked(6, "batches-compared", 16, ("Flatten", "MatMul"), 2)


def test_texts_run_alone():
    checked = check_representation(
        declare(TEXTS), text_graph(), tokenizer_json(), limits=LIMITS, samples=pa.array(["red sky"])
    )
    assert checked == Checked(6, "rows-run-alone", 1, ("Gather", "ReduceMean"), 2)


def test_samples_that_cannot_be_read_say_nothing_about_the_graph():
    samples = pa.array([None, b"x", png(pictures(1)[1][0])], pa.binary())
    checked = check_representation(declare(IMAGES), image_graph(), None, limits=LIMITS, samples=samples)
    assert checked.width == 6


def test_a_difference_by_rounding_makes_rows_run_alone():
    checked = check_representation(declare(VECTORS), mean_graph(1e-6), None, limits=LIMITS)
    assert (checked.row_check, checked.batch_rows) == ("rows-run-alone", 1)


# -- rows that influence each other, in this process --------------------------------------------------------


def compare(graph: bytes) -> tuple[str, int]:
    """Return how rows of a graph have to be run."""

    def opened(batch_rows: int | None) -> Encoder:
        return open_encoder(graph, batch_rows=batch_rows)

    compared = compare_rows(opened, vectors(np.random.default_rng(4).normal(size=(9, WIDTH))))
    return compared.row_check, compared.batch_rows


def test_rows_of_a_plain_graph_run_in_batches():
    assert compare(GRAPH) == ("batches-compared", 256)


@pytest.mark.parametrize("share", [1e-7, 1e-6, 1e-5])
def test_rows_run_alone_if_others_change_them_by_rounding(share: float):
    assert compare(mean_graph(share)) == ("rows-run-alone", 1)


@pytest.mark.parametrize("share", [1e-2, 1.0, -1.0])
def test_a_graph_that_mixes_rows_is_refused(share: float):
    with pytest.raises(RepresentationError, match="the graph mixes rows") as caught:
        compare(mean_graph(share))
    assert_clear(caught.value.reasons)


def test_a_graph_that_looks_at_the_previous_row_is_refused():
    # The first row of a batch is moved to its end, so each row gets the features of its neighbour.
    nodes = [
        helper.make_node("Slice", ["x", "zero", "one", "zero"], ["first"]),
        helper.make_node("Slice", ["x", "one", "end", "zero"], ["others"]),
        helper.make_node("Concat", ["others", "first"], ["moved"], axis=0),
        helper.make_node("MatMul", ["moved", "matrix"], ["features"]),
    ]
    constants = {"zero": np.array([0]), "one": np.array([1]), "end": np.array([2**31 - 1])}
    with pytest.raises(RepresentationError, match="the graph mixes rows"):
        compare(to_bytes(vector_model(nodes, constants=constants)))


def test_a_graph_that_mixes_rows_only_if_one_of_them_is_large_is_refused():
    nodes = [
        helper.make_node("Abs", ["x"], ["sizes"]),
        helper.make_node("ReduceMax", ["sizes"], ["largest"], keepdims=0),
        helper.make_node("Greater", ["largest", "bound"], ["is_large"]),
        helper.make_node("Cast", ["is_large"], ["shift"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "matrix"], ["projected"]),
        helper.make_node("Add", ["projected", "shift"], ["features"]),
    ]
    graph = to_bytes(vector_model(nodes, constants={"bound": np.array(5, np.float32)}))
    with pytest.raises(RepresentationError, match="the graph mixes rows"):
        compare(graph)


def test_a_fixed_batch_that_depends_on_places_by_rounding_is_refused():
    place = np.zeros((6, 1), np.float32)
    place[0] = 1e-6
    graph = to_bytes(
        vector_model(
            [
                helper.make_node("MatMul", ["x", "matrix"], ["projected"]),
                helper.make_node("Add", ["projected", "place"], ["features"]),
            ],
            rows=6,
            constants={"place": place},
        )
    )
    with pytest.raises(RepresentationError, match="export the graph with a variable number of rows"):
        compare(graph)


def test_a_fixed_batch_of_one_runs_alone():
    assert compare(to_bytes(vector_model(rows=1))) == ("rows-run-alone", 1)


def test_a_graph_that_is_not_finite_for_the_probes_is_refused_with_the_row():
    outputs = [tensor("features", ["N", WIDTH])]
    graph = to_bytes(vector_model([helper.make_node("Log", ["x"], ["features"])], outputs=outputs))
    with pytest.raises(RepresentationError) as caught:
        compare(graph)
    assert_clear(caught.value.reasons)
    assert "the graph's output for a row of zeros is infinite or not a number" in caught.value.reasons


# -- graphs that misbehave, in the process of the check -----------------------------------------------------


def test_mixing_rows_is_refused():
    assert "the graph mixes rows" in refusal(mixing_graph(), IMAGES)


def test_reasons_against_graph_and_tokenizer_are_collected():
    reasons = refusal(GRAPH, TEXTS, b"{")
    assert "no input 'input_ids'" in reasons
    assert "the tokenizer is not a JSON document" in reasons


def test_a_graph_that_takes_all_memory_is_refused_and_this_process_survives():
    reasons = refusal(large_graph(10**11), limits=replace(LIMITS, memory_bytes=1 << 30))
    assert "memory" in reasons


def test_a_graph_that_needs_a_little_too_much_memory_is_refused():
    graph = large_graph(2 * 10**8)  # 800 MB
    assert "memory" in refusal(graph, limits=replace(LIMITS, memory_bytes=256 << 20))


def test_a_graph_that_is_too_slow_for_one_batch_is_refused():
    reasons = refusal(slow_graph(2000, 512), limits=replace(LIMITS, seconds_per_batch=0.2))
    assert "more than 0.2 seconds for one batch" in reasons


def test_a_check_that_takes_too_long_is_stopped():
    started = time.monotonic()
    reasons = refusal(slow_graph(4000, 1024), limits=replace(LIMITS, probe_seconds=2.0))
    assert "took longer than 2 seconds" in reasons
    assert time.monotonic() - started < 90


def test_files_that_are_too_large_are_refused_before_a_process_is_started(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(check, "_COMMAND", ("-c", "raise SystemExit(3)"))
    limits = replace(LIMITS, graph_bytes=10, tokenizer_bytes=1)
    reasons = refusal(GRAPH, TEXTS, tokenizer_json(), limits=limits)
    assert "the graph file is larger than 10 bytes" in reasons
    assert "the tokenizer is larger than 1 bytes" in reasons


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import os; os.kill(os.getpid(), 11)", "crash"),
        ("import os; os.abort()", "crash"),
        ("import os; os.kill(os.getpid(), 9)", "stopped by the operating system"),
        (f"import os; os.kill(os.getpid(), {int(signal.SIGXCPU)})", "took longer than 120 seconds"),
        ("raise SystemExit(3)", "crash"),
        ("pass", "ended without a result"),
        ("print('{')", "ended without a result"),
        ('print(\'{"checked": 3, "reasons": []}\')', "ended without a result"),
        (f"raise RuntimeError('{SECRET}')", "crash"),
    ],
)
def test_a_process_that_dies_gives_a_clear_reason(monkeypatch: pytest.MonkeyPatch, program: str, reason: str):
    monkeypatch.setattr(check, "_COMMAND", ("-c", program))
    assert reason in refusal(GRAPH)


def test_the_process_gets_no_secret_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    listing = tmp_path / "names"
    program = f"import os; open({str(listing)!r}, 'w').write('\\n'.join(os.environ))"
    monkeypatch.setenv("LETHE_DATABASE_URL", SECRET)
    monkeypatch.setattr(check, "_COMMAND", ("-c", program))
    refusal(GRAPH)
    assert not [name for name in listing.read_text().split() if name.startswith("LETHE")]


def test_a_large_request_to_a_process_that_reads_nothing_does_not_hang(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(check, "_COMMAND", ("-c", "raise SystemExit(3)"))
    assert "crash" in refusal(GRAPH + bytes(10_000_000))


def test_row_values_do_not_appear_in_the_reasons():
    tokenizer = tokenizer_json().replace(b'"blood": 9', b'"blood": 9, "Xq7Zk": 500')
    samples = pa.array([SECRET])
    assert "cannot run the operator Gather" in refusal(text_graph(), TEXTS, tokenizer, samples=samples)

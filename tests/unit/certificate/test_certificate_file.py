"""Line 3 refuses every weights file that contains anything but the certified weights."""

from __future__ import annotations

import json
import pickle
from array import array
from typing import Any

import pytest

from lethe.certificate.verify import VerificationReport
from lethe.certificate.weights_file import header_metadata
from tests.unit.certificate.certificate_cases import Issuer, safetensors, weights
from tests.unit.certificate.certificate_evidence_cases import DIMENSION, uuid7
from tests.unit.certificate.certificate_reports import KEY, refused, report_on

STEP = Issuer(KEY).issue().predicate.noise.grid_step
NAMES = header_metadata(certificate_id=uuid7(1), model="credit-scoring", version=1)


def report_for(model: bytes) -> VerificationReport:
    """Return the report on a certificate issued for exactly this file."""
    issuer = Issuer(KEY)
    issuer.issue(weights=model)
    return report_on(issuer)


def one(values: array[float], metadata: dict[str, str] | None = None, **header: Any) -> bytes:
    return safetensors({"w": values}, NAMES if metadata is None else metadata, **header)


def test_a_file_of_exactly_these_weights_is_accepted_in_single_and_double_precision():
    for values in (weights(STEP), array("d", weights(STEP))):
        report = report_for(one(values))
        assert report.verified, report
        assert f"{DIMENSION} weights" in report.lines[2].detail


def entry(first: int, last: int, **more: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [(last - first) // 4], "data_offsets": [first, last]} | more


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (pickle.dumps({"w": [1.0]}), "not safetensors"),
        (b"", "not safetensors"),
        (b"\xff" * 20, "not safetensors"),
        ((5).to_bytes(8, "little") + b"{", "not safetensors"),
        ((60_000).to_bytes(8, "little") + b"[" * 60_000, "not safetensors"),
        (one(weights(STEP)) + b"\0", "the file ends at"),
        (one(weights(STEP))[:-4], "the file ends at"),
        (one(weights(STEP, DIMENSION - 1)), "holds 999 weights"),
        (safetensors({"w": weights(STEP), "extra": weights(STEP, 1)}, NAMES), "holds 1001 weights"),
        (safetensors({"w": weights(STEP, 999), "b": array("d", [STEP])}, NAMES), "must all be F32"),
        (one(weights(STEP), w=entry(0, 4 * DIMENSION, dtype="I32")), "must all be F32"),
        (one(weights(STEP), w=entry(0, 4 * DIMENSION, shape=[7])), "malformed"),
        (one(weights(STEP), w=entry(0, 4 * DIMENSION, note="free text")), "malformed"),
        (one(weights(STEP), w=entry(0, 4 * DIMENSION, shape=[-1, -DIMENSION])), "malformed"),
        (one(weights(STEP), w=entry(4, 4 * DIMENSION)), "gap or overlap"),
        (one(weights(STEP), v=entry(0, 4 * DIMENSION)), "gap or overlap"),
        (one(weights(STEP), {}), "header says"),
        (one(weights(STEP), __metadata__=None), "names no certificate"),
        (one(weights(STEP), NAMES | {"lethe.certificate_id": uuid7(2)}), "lethe.certificate_id"),
        (one(weights(STEP), NAMES | {"lethe.version": "2"}), "lethe.version"),
        (one(weights(STEP), NAMES | {"lethe.model": "other"}), "lethe.model"),
        (one(weights(STEP), NAMES | {"note": "hidden"}), "must not have"),
        (safetensors({}, NAMES), "no tensor"),
    ],
)
def test_any_other_file_is_refused(model, words):
    refused(report_for(model), 3, words)


@pytest.mark.parametrize("place", [0, 500, DIMENSION - 1])
@pytest.mark.parametrize("typecode", ["f", "d"])
@pytest.mark.parametrize(
    ("value", "words"),
    [
        (STEP / 2, "not a multiple"),
        (STEP * 1.5, "not a multiple"),
        (float("nan"), "not a multiple"),
        (float("inf"), "not a multiple"),
        (-float("inf"), "not a multiple"),
        (1e-40, "not a multiple"),
        (-0.0, "negative zero"),
    ],
)
def test_a_weight_off_the_grid_is_refused_wherever_it_stands(place, typecode, value, words):
    values = array(typecode, weights(STEP))
    values[place] = value
    refused(report_for(one(values)), 3, words)


def test_a_key_that_occurs_twice_in_the_header_is_refused():
    model = one(weights(STEP))
    length = int.from_bytes(model[:8], "little")
    header = model[8 : 8 + length].rstrip()
    doubled = header[:-1] + b',"w":' + json.dumps(entry(0, 4 * DIMENSION)).encode() + b"}"
    refused(
        report_for(len(doubled).to_bytes(8, "little") + doubled + model[8 + length :]), 3, "not safetensors"
    )


def test_a_file_of_many_pieces_is_read_to_its_end(tmp_path):
    count = 600_001  # over several reads
    values = weights(STEP, count)
    issuer = Issuer(KEY)
    issued = issuer.issue(weights=one(values), edit={"objective": {"dimension": count}})
    path = tmp_path / "model.safetensors"
    path.write_bytes(one(values))
    assert report_on(issuer, issued, weights=path, evidence=None).verified
    values[count - 1] = STEP / 4
    issuer = Issuer(KEY)
    issued = issuer.issue(weights=one(values), edit={"objective": {"dimension": count}})
    refused(report_on(issuer, issued, evidence=None), 3, "not a multiple")

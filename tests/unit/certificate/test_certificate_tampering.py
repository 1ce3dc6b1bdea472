"""Thousands of random changes: no altered document verifies, and no malformed one ends in a traceback."""

from __future__ import annotations

import base64
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lethe.certificate.cli import run_verify
from lethe.certificate.envelope import parse
from lethe.certificate.errors import SignatureInvalid, UnusableInput
from lethe.certificate.verify import VerificationReport, verify
from tests.unit.certificate.certificate_cases import Issuer

ISSUER = Issuer(strangers=6, family="softmax")
ISSUER.issue("tr-heuristic")
ISSUED = ISSUER.issue("tr-proved")
PACK = ISSUER.pack()
HONEST = json.loads(PACK.to_bytes())
assert ISSUED.weights is not None
MODEL: bytes = ISSUED.weights

many = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))


def flipped(data: bytes, place: int, flip: int) -> bytes:
    changed = bytearray(data)
    changed[place % len(data)] ^= flip
    return bytes(changed)


def judge(document: dict[str, Any], **inputs: Any) -> VerificationReport:
    return verify(json.dumps(document).encode(), **({"weights": MODEL} | inputs))


def judge_or_refuse(**inputs: Any) -> VerificationReport | None:
    """Return None if a document cannot be read, which also refuses it."""
    try:
        return judge(HONEST, **inputs)
    except UnusableInput:
        return None


def places(data: bytes) -> st.SearchStrategy[int]:
    return st.integers(0, len(data) - 1)


flips = st.integers(1, 255)


def test_the_honest_pack_verifies():
    assert judge(HONEST, evidence=ISSUED.evidence).verified


@many
@given(places(ISSUED.envelope.raw), flips)
def test_a_changed_byte_of_the_envelope_is_refused(place, flip):
    raw = flipped(ISSUED.envelope.raw, place, flip)
    report = judge(HONEST | {"envelope": base64.b64encode(raw).decode()})
    assert {line.number for line in report.failed} & {1, 7}


@many
@given(places(ISSUED.envelope.payload), flips)
def test_a_changed_byte_of_the_statement_is_refused_by_the_signature(place, flip):
    envelope = json.loads(ISSUED.envelope.raw)
    envelope["payload"] = base64.b64encode(flipped(ISSUED.envelope.payload, place, flip)).decode()
    raw = json.dumps(envelope, separators=(",", ":"), sort_keys=True).encode()
    report = judge(HONEST | {"envelope": base64.b64encode(raw).decode()})
    assert [line.number for line in report.failed] == [1], "one cause, one failure"
    assert "did not sign" in report.failed[0].detail
    assert report.headline.startswith("TAMPERED WITH: the signature does not match")
    assert {line.ok for line in report.lines[1:]} == {None}


@many
@given(places(MODEL), flips)
def test_a_changed_byte_of_the_weights_file_is_refused(place, flip):
    report = judge(HONEST, weights=flipped(MODEL, place, flip))
    assert [line.number for line in report.failed] == [3]


@many
@given(st.data())
def test_a_changed_proof_is_refused(data):
    log = dict(HONEST["log"])
    what = data.draw(st.sampled_from(["path", "index", "tree_head", "drop", "add", "swap"]))
    if what == "path":
        step = data.draw(st.integers(0, len(log["path"]) - 1))
        changed = flipped(bytes.fromhex(log["path"][step]), data.draw(st.integers(0, 31)), data.draw(flips))
        log["path"] = [*log["path"][:step], changed.hex(), *log["path"][step + 1 :]]
    elif what == "index":
        log["index"] = data.draw(st.integers(0, 2**53 - 1).filter(lambda index: index != ISSUED.index))
    elif what == "tree_head":
        signed = log["tree_head"].encode()
        log["tree_head"] = flipped(signed, data.draw(places(signed)), data.draw(flips)).decode(
            errors="replace"
        )
    elif what == "drop":
        log["path"] = log["path"][:-1]
    elif what == "add":
        log["path"] = [*log["path"], data.draw(st.binary(min_size=32, max_size=32)).hex()]
    else:
        log["path"] = log["path"][::-1]
    report = judge(HONEST | {"log": log})
    assert [line.number for line in report.failed] == [7]


@many
@given(places(ISSUED.receipts[0].to_bytes()), flips)
def test_a_changed_byte_of_the_receipt_is_refused(place, flip):
    changed = flipped(ISSUED.receipts[0].to_bytes(), place, flip)
    report = judge_or_refuse(receipt=changed)
    assert report is None or [line.number for line in report.failed] == [9]


@many
@given(places(ISSUED.evidence.to_bytes()), flips)
def test_changed_evidence_is_refused_unless_it_says_the_same(place, flip):
    changed = flipped(ISSUED.evidence.to_bytes(), place, flip)
    report = judge_or_refuse(evidence=changed)
    if report is not None:
        same = json.loads(changed) == json.loads(ISSUED.evidence.to_bytes())
        assert [line.number for line in report.failed] == ([] if same else [8])


def paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    return [here, *(path for key, child in children for path in paths(child, (*here, key)))]


PATHS = paths(HONEST)[1:]
junk = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20),
    st.sampled_from([[], {}, "", 0, -1, 1e308, 2**64, "\ud800", "0" * 64, "\x1b[31m"]),
    st.lists(st.integers(), max_size=3), st.dictionaries(st.text(max_size=4), st.integers(), max_size=3),
)  # fmt: skip


@many
@given(st.sampled_from(PATHS), junk, st.booleans())
def test_a_pack_with_any_part_replaced_or_removed_gives_a_verdict(path, value, remove):
    document = json.loads(PACK.to_bytes())
    holder = document
    for part in path[:-1]:
        holder = holder[part]
    if remove:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    try:
        report = judge(document)
    except UnusableInput:
        return
    # Harmless changes: proofs that were not requested, and the range of places of the key.
    harmless = path[0] == "consistency" or path[-1] in ("valid_until", "valid_from", "algorithm")
    harmless = harmless or document == HONEST or (remove and path[-1] in ("format", "evidence", "receipt"))
    assert harmless or not report.verified, path


@many
@given(
    st.one_of(
        places(PACK.to_bytes()).flatmap(lambda p: st.tuples(st.just(p), flips)), st.binary(max_size=200)
    )
)
def test_the_command_gives_a_status_for_any_bytes(tmp_path_factory, change):
    folder = tmp_path_factory.getbasetemp()
    data = change if isinstance(change, bytes) else flipped(PACK.to_bytes(), *change)
    (folder / "pack.json").write_bytes(data)
    (folder / "model").write_bytes(MODEL)
    lines: list[str] = []
    status = run_verify(pack=folder / "pack.json", model=folder / "model", write=lines.append)
    assert status in (0, 1, 2)
    assert lines
    assert all(line.isprintable() for line in lines)


@many
@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_no_envelope(data):
    try:
        parse(data)
    except SignatureInvalid:
        return
    raise AssertionError(data)

"""Receipts lead to the certificate, open with the person's identifier, and bind every field."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lethe.certificate.commitment import SubjectCommitment, commit_subject, deletion_root, subject_digest
from lethe.certificate.envelope import Envelope, sign
from lethe.certificate.errors import ReceiptInvalid, UnusableInput
from lethe.certificate.keys import KeySet, PublicKey, SigningKey
from lethe.certificate.receipt import (
    NO_DATA_PAYLOAD,
    NoDataHeldV1,
    Receipt,
    is_no_data_held,
    issue_receipts,
    verify_no_data_held,
    verify_receipt,
)
from lethe.certificate.verify import verify
from tests.unit.certificate.certificate_cases import Issuer
from tests.unit.certificate.certificate_evidence_cases import uuid7
from tests.unit.certificate.certificate_reports import refused

ISSUER = Issuer()
ISSUED = ISSUER.issue()
DIGEST, SET = ISSUED.envelope.digest, ISSUED.statement.predicate.deletion_set
SALT = "5a" * 16


def no_data_of_the_first_format(subject: str) -> Envelope:
    statement = NoDataHeldV1(
        request_id="r-1",
        model=ISSUER.model,
        model_id=ISSUER.model_id,
        salt=SALT,
        commitment=subject_digest(salt=SALT, subject_id=subject),
        log_size=4,
        issued_at=datetime(2025, 1, 1, tzinfo=UTC),
    )
    return sign(statement.to_bytes(), ISSUER.key, NO_DATA_PAYLOAD)


NO_DATA = no_data_of_the_first_format("nobody@example.org")
COMPOSED, DECOMPOSED = "Zo\u00eb", "Zoe\u0308"


def test_every_subject_of_the_batch_holds_a_receipt_that_leads_to_the_certificate():
    assert len(ISSUED.receipts) == 20
    for number, receipt in enumerate(ISSUED.receipts):
        verify_receipt(receipt, certificate_digest=DIGEST, deletion_set=SET, subject_id=f"subject-{number}")
        verify_receipt(receipt, certificate_digest=DIGEST, deletion_set=SET)
        with pytest.raises(ReceiptInvalid, match="not about this subject"):
            verify_receipt(receipt, certificate_digest=DIGEST, deletion_set=SET, subject_id="someone else")


def test_receipt_holds_no_identifier():
    assert b"subject-" not in ISSUED.receipts[0].to_bytes()


@given(st.data())
def test_any_changed_byte_of_a_receipt_is_refused_even_without_the_subject(data):
    receipt = data.draw(st.sampled_from(ISSUED.receipts)).to_bytes()
    place = data.draw(st.integers(0, len(receipt) - 1))
    changed = bytearray(receipt)
    changed[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises((ReceiptInvalid, UnusableInput)):
        verify_receipt(Receipt.read(bytes(changed), "receipt"), certificate_digest=DIGEST, deletion_set=SET)


def test_equal_identifiers_give_unlinkable_commitments():
    one, two = (commit_subject(request_id="r", subject_id="same") for _ in range(2))
    assert one.salt != two.salt
    assert one.commitment != two.commitment


def test_order_of_arrival_does_not_show_in_the_root():
    batch = [commit_subject(request_id=f"r{k}", subject_id=f"s{k}") for k in range(9)]
    assert deletion_root(batch) == deletion_root(batch[::-1])
    receipts = issue_receipts(batch, certificate_digest=DIGEST)
    assert [receipt.request_id for receipt in receipts] == [f"r{k}" for k in range(9)]


def test_a_receipt_made_from_the_leaves_alone_is_the_one_made_with_everyones_salts():
    batch = [commit_subject(request_id=f"r{k}", subject_id=f"s{k}") for k in range(7)]
    leaves = [entry.leaf() for entry in batch]
    whole = issue_receipts(batch, certificate_digest=DIGEST)
    for number, entry in enumerate(batch):
        assert issue_receipts([entry], certificate_digest=DIGEST, leaves=leaves) == [whole[number]]
    with pytest.raises(ValueError, match="not in the deletion set"):
        issue_receipts(batch, certificate_digest=DIGEST, leaves=leaves[1:])


def test_request_and_subject_cannot_be_shifted_into_each_other():
    salt = "00" * 16
    one = commit_subject(request_id="ab", subject_id="c", salt=salt)
    two = commit_subject(request_id="a", subject_id="bc", salt=salt)
    assert one.leaf() != two.leaf()


def test_a_receipt_states_its_rule_and_opens_in_any_normal_form():
    entry = commit_subject(request_id="r", subject_id=DECOMPOSED)
    assert entry.commitment == subject_digest(salt=entry.salt, subject_id=COMPOSED)
    (receipt,) = issue_receipts([entry], certificate_digest=DIGEST)
    assert (receipt.format, receipt.identifier_rule) == ("urn:lethe:receipt:v2", "nfc-exact-v1")
    alone = SET.model_copy(update={"commitments": 1, "root": deletion_root([entry])})
    for subject in (COMPOSED, DECOMPOSED):
        verify_receipt(receipt, certificate_digest=DIGEST, deletion_set=alone, subject_id=subject)
    for other in ("zo\u00eb", "Zo\u00eb ", "Zoe"):
        with pytest.raises(ReceiptInvalid, match="not about this subject"):
            verify_receipt(receipt, certificate_digest=DIGEST, deletion_set=alone, subject_id=other)


def test_a_receipt_of_the_first_format_opens_with_the_identifier_as_it_was_sent():
    entry = SubjectCommitment("r", SALT, subject_digest(salt=SALT, subject_id=DECOMPOSED), None)
    (receipt,) = issue_receipts([entry], certificate_digest=DIGEST)
    assert b"identifier_rule" not in receipt.to_bytes()
    read = Receipt.read(receipt.to_bytes(), "receipt")
    assert (read, read.format) == (receipt, "urn:lethe:receipt:v1")
    alone = SET.model_copy(update={"commitments": 1, "root": deletion_root([entry])})
    verify_receipt(read, certificate_digest=DIGEST, deletion_set=alone, subject_id=DECOMPOSED)
    with pytest.raises(ReceiptInvalid, match="not about this subject"):
        verify_receipt(read, certificate_digest=DIGEST, deletion_set=alone, subject_id=COMPOSED)


@pytest.mark.parametrize("change", [{"format": "urn:lethe:receipt:v1"}, {"identifier_rule": None}])
def test_a_receipt_without_its_formats_rule_is_refused(change):
    document = json.dumps(ISSUED.receipts[0].document() | change)
    with pytest.raises(UnusableInput, match="identifier rule"):
        Receipt.read(document.encode(), "receipt")


def test_no_data_held_is_signed_and_opens_with_the_identifier():
    assert is_no_data_held(NO_DATA.raw)
    held = verify_no_data_held(NO_DATA.raw, ISSUER.keys, subject_id="nobody@example.org")
    assert isinstance(held, NoDataHeldV1)
    assert (held.request_id, held.model, held.model_id, held.log_size) == (
        "r-1",
        ISSUER.model,
        ISSUER.model_id,
        4,
    )
    with pytest.raises(ReceiptInvalid, match="not about this subject"):
        verify_no_data_held(NO_DATA.raw, ISSUER.keys, subject_id="other")
    assert b"nobody" not in NO_DATA.payload


def test_no_data_held_of_the_first_format_is_about_the_identifier_as_it_was_sent():
    signed = no_data_of_the_first_format(DECOMPOSED).raw
    assert verify_no_data_held(signed, ISSUER.keys, subject_id=DECOMPOSED)
    with pytest.raises(ReceiptInvalid, match="not about this subject"):
        verify_no_data_held(signed, ISSUER.keys, subject_id=COMPOSED)


def test_no_data_held_needs_a_key_of_its_time():
    with pytest.raises(ReceiptInvalid, match="unknown key"):
        verify_no_data_held(NO_DATA.raw, KeySet(keys=(PublicKey.of(SigningKey.generate()),)))
    expired = KeySet(keys=(PublicKey.of(ISSUER.key, valid_until=4),))
    with pytest.raises(ReceiptInvalid, match="valid for places"):
        verify_no_data_held(NO_DATA.raw, expired)


@given(st.integers(0, len(NO_DATA.raw) - 1), st.integers(1, 255))
def test_any_changed_byte_of_no_data_held_is_refused(place, flip):
    changed = bytearray(NO_DATA.raw)
    changed[place] ^= flip
    with pytest.raises(ReceiptInvalid):
        verify_no_data_held(bytes(changed), ISSUER.keys)


def test_a_certificate_is_not_a_receipt():
    with pytest.raises(ReceiptInvalid):
        verify_no_data_held(ISSUED.envelope.raw, ISSUER.keys)
    assert not is_no_data_held(json.dumps({"payloadType": "other"}).encode())


def test_no_data_held_about_a_namesake_of_another_owner_is_refused():
    issuer = Issuer(ISSUER.key, model_id=uuid7(8))
    issued = issuer.issue()
    assert issued.statement.predicate.model == ISSUER.model
    refused(verify(issuer.pack(), weights=issued.weights, receipt=NO_DATA.raw), 9, "another model")
    assert verify(ISSUER.pack(), weights=ISSUED.weights, receipt=NO_DATA.raw).verified

"""Receipts: they lead to the certificate, open with the subject's identifier, and bind every field."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from certificate_cases import Issuer
from certificate_evidence_cases import uuid7
from certificate_reports import refused
from hypothesis import given
from hypothesis import strategies as st

from certificate.commitment import commit_subject, deletion_root
from certificate.errors import ReceiptInvalid, UnusableInput
from certificate.keys import KeySet, PublicKey, SigningKey
from certificate.receipt import (
    Receipt,
    is_no_data_held,
    issue_no_data_held,
    issue_receipts,
    verify_no_data_held,
    verify_receipt,
)
from certificate.verify import verify

ISSUER = Issuer()
ISSUED = ISSUER.issue()
DIGEST, SET = ISSUED.envelope.digest, ISSUED.statement.predicate.deletion_set
NO_DATA = issue_no_data_held(
    request_id="r-1",
    subject_id="nobody@example.org",
    model=ISSUER.model,
    model_id=ISSUER.model_id,
    log_size=4,
    issued_at=datetime(2025, 1, 1, tzinfo=UTC),
    signer=ISSUER.key,
)


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


def test_no_data_held_is_signed_and_opens_with_the_identifier():
    assert is_no_data_held(NO_DATA.raw)
    held = verify_no_data_held(NO_DATA.raw, ISSUER.keys, subject_id="nobody@example.org")
    assert (held.request_id, held.model, held.model_id, held.log_size) == (
        "r-1",
        ISSUER.model,
        ISSUER.model_id,
        4,
    )
    with pytest.raises(ReceiptInvalid, match="not about this subject"):
        verify_no_data_held(NO_DATA.raw, ISSUER.keys, subject_id="other")
    assert b"nobody" not in NO_DATA.payload


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
    refused(verify(issuer.pack(), model=issued.model, receipt=NO_DATA.raw), 9, "another model")
    assert verify(ISSUER.pack(), model=ISSUED.model, receipt=NO_DATA.raw).verified

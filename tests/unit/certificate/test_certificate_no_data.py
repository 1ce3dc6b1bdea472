"""Logged "no data held" statements are signed at their place, in the log, and about one identifier."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lethe.certificate.commitment import IDENTIFIER_RULE_IN_WORDS
from lethe.certificate.envelope import Envelope, sign
from lethe.certificate.errors import ReceiptInvalid
from lethe.certificate.keys import KeySet, PublicKey, SigningKey
from lethe.certificate.merkle import MemoryTree, leaf_hash
from lethe.certificate.receipt import (
    NO_DATA_PAYLOAD,
    NoDataHeldV1,
    build_no_data_receipt,
    describe_no_data_held,
    is_no_data_held,
    issue_no_data_held,
    verify_no_data_held,
    verify_no_data_receipt,
)
from lethe.certificate.tree_head import TreeHead, sign_tree_head
from lethe.certificate.verify import verify
from tests.unit.certificate.certificate_cases import ORIGIN, Issuer
from tests.unit.certificate.certificate_reports import refused

ISSUER = Issuer()
ISSUED = ISSUER.issue()
PERSON = "Zoe\u0308"


@dataclass
class Log:
    """A log whose tree heads are signed by `key`."""

    key: SigningKey
    tree: MemoryTree

    @classmethod
    def of(cls, key: SigningKey, strangers: int = 5) -> Log:
        return cls(key, MemoryTree([leaf_hash(bytes([number])) for number in range(strangers)]))

    def append(self, envelope: Envelope) -> int:
        return self.tree.append(leaf_hash(bytes.fromhex(envelope.digest)))

    def receipt(self, envelope: Envelope, index: int, keys: KeySet) -> bytes:
        head = sign_tree_head(TreeHead(ORIGIN, self.tree.size, self.tree.root()), self.key)
        path = [step.hex() for step in self.tree.inclusion_proof(index)]
        return build_no_data_receipt(envelope, tree_head=head, index=index, path=path, keys=keys).to_bytes()


def statement(signer: SigningKey, subject: str = PERSON) -> Envelope:
    return issue_no_data_held(
        request_id="r-1",
        subject_id=subject,
        model=ISSUER.model,
        model_id=ISSUER.model_id,
        issued_at=datetime(2025, 1, 1, tzinfo=UTC),
        signer=signer,
    )


LOG = Log.of(ISSUER.key)
STATEMENT = statement(ISSUER.key)
PLACE = LOG.append(STATEMENT)
LOG.append(statement(ISSUER.key, "another"))
DOCUMENT = LOG.receipt(STATEMENT, PLACE, ISSUER.keys)


def test_the_receipt_proves_that_the_statement_was_signed_and_logged():
    held = verify_no_data_receipt(DOCUMENT, ISSUER.keys)
    assert (held.request_id, held.model, held.identifier_rule) == ("r-1", ISSUER.model, "nfc-exact-v1")
    assert is_no_data_held(DOCUMENT)
    assert verify_no_data_held(DOCUMENT, ISSUER.keys) == held
    for name in (PERSON, "Zo\u00eb"):
        assert name.encode() not in DOCUMENT + STATEMENT.payload


def test_it_opens_with_any_normal_form_of_the_identifier_and_with_nothing_else():
    for subject in (PERSON, "Zo\u00eb"):
        verify_no_data_receipt(DOCUMENT, ISSUER.keys, subject_id=subject)
    for other in ("Zoe", "zo\u00eb", " Zo\u00eb"):
        with pytest.raises(ReceiptInvalid, match="not about this subject"):
            verify_no_data_receipt(DOCUMENT, ISSUER.keys, subject_id=other)


def test_the_rule_is_said_in_words():
    assert IDENTIFIER_RULE_IN_WORDS in describe_no_data_held(verify_no_data_receipt(DOCUMENT, ISSUER.keys))
    report = verify(ISSUER.pack(), weights=ISSUED.weights, receipt=DOCUMENT, subject=PERSON)
    assert report.verified
    assert IDENTIFIER_RULE_IN_WORDS in report.lines[-1].detail
    refused(verify(ISSUER.pack(), weights=ISSUED.weights, receipt=DOCUMENT, subject="x"), 9, "not about")


@given(st.integers(0, len(DOCUMENT) - 1), st.integers(1, 255))
def test_any_changed_byte_is_refused(place, flip):
    """Bytes of the included keys are skipped, because a verifier does not use them."""
    start, end = DOCUMENT.index(b'"keys":'), DOCUMENT.index(b'"log":')
    if start <= place < end:
        return
    changed = bytearray(DOCUMENT)
    changed[place] ^= flip
    with pytest.raises(ReceiptInvalid):
        verify_no_data_receipt(bytes(changed), ISSUER.keys)


def test_a_statement_that_was_never_logged_is_refused():
    unlogged = statement(ISSUER.key)
    document = LOG.receipt(unlogged, PLACE, ISSUER.keys)
    with pytest.raises(ReceiptInvalid, match="not in the log"):
        verify_no_data_receipt(document, ISSUER.keys)
    with pytest.raises(ReceiptInvalid, match="without its place in the log"):
        verify_no_data_held(unlogged.raw, ISSUER.keys)


def test_a_retired_key_signs_no_statement_at_a_later_place():
    """A thief can sign with the old key and even get it logged, but its place shows the forgery."""
    old, new = SigningKey.generate(), SigningKey.generate()
    log = Log.of(new, strangers=8)
    keys = KeySet(keys=(PublicKey.of(old, valid_until=6), PublicKey.of(new, valid_from=6)))
    forged = statement(old)
    document = log.receipt(forged, log.append(forged), keys)
    with pytest.raises(ReceiptInvalid, match=r"valid for places \[0, 6\)"):
        verify_no_data_receipt(document, keys)


def test_a_statement_outlives_its_key_under_a_head_of_the_next():
    old, new = SigningKey.generate(), SigningKey.generate()
    log = Log.of(new, strangers=3)
    signed = statement(old)
    place = log.append(signed)
    for number in range(4):
        log.tree.append(leaf_hash(bytes([100 + number])))
    keys = KeySet(keys=(PublicKey.of(old, valid_until=6), PublicKey.of(new, valid_from=6)))
    assert verify_no_data_receipt(log.receipt(signed, place, keys), keys, subject_id=PERSON)


def test_a_receipt_from_before_a_rotation_verifies_with_a_later_head_and_not_without():
    old, new = SigningKey.generate(), SigningKey.generate()
    log = Log.of(old)
    signed = statement(old)
    place = log.append(signed)
    document, size = log.receipt(signed, place, KeySet(keys=(PublicKey.of(old),))), log.tree.size
    keys = KeySet(keys=(PublicKey.of(old, valid_until=size + 1), PublicKey.of(new, valid_from=size)))
    for number in range(3):
        log.append(statement(new, f"person-{number}"))
    head = sign_tree_head(TreeHead(ORIGIN, log.tree.size, log.tree.root()), new)
    path = [step.hex() for step in log.tree.consistency_proof(size)]
    assert verify_no_data_receipt(document, keys, later=(head, path)).request_id == "r-1"
    with pytest.raises(ReceiptInvalid, match="retired"):
        verify_no_data_receipt(document, keys)
    with pytest.raises(ReceiptInvalid, match="does not extend"):
        verify_no_data_receipt(document, keys, later=(head, path[:-1]))
    forged = sign_tree_head(TreeHead(ORIGIN, log.tree.size, log.tree.root()), old)
    with pytest.raises(ReceiptInvalid, match=r"valid for places|retired"):
        verify_no_data_receipt(document, keys, later=(forged, path))


def test_the_keys_inside_the_document_are_not_trusted():
    stranger = SigningKey.generate()
    log, own = Log.of(stranger), KeySet(keys=(PublicKey.of(stranger),))
    signed = statement(stranger)
    document = log.receipt(signed, log.append(signed), own)
    assert verify_no_data_receipt(document, own)
    with pytest.raises(ReceiptInvalid, match="known key"):
        verify_no_data_receipt(document, ISSUER.keys)


def test_a_certificate_or_a_statement_of_the_first_format_in_the_log_is_no_such_statement():
    certificate = ISSUED.envelope
    first = NoDataHeldV1(
        request_id="r-1",
        model=ISSUER.model,
        model_id=ISSUER.model_id,
        salt="00" * 16,
        commitment="00" * 32,
        log_size=0,
        issued_at=datetime(2025, 1, 1, tzinfo=UTC),
    )
    for envelope in (certificate, sign(first.to_bytes(), ISSUER.key, NO_DATA_PAYLOAD)):
        log = Log.of(ISSUER.key)
        with pytest.raises(ReceiptInvalid, match=r"payload|format"):
            verify_no_data_receipt(log.receipt(envelope, log.append(envelope), ISSUER.keys), ISSUER.keys)


@pytest.mark.parametrize("field", ["envelope", "log", "keys"])
def test_an_incomplete_document_is_refused_with_the_fields_name(field):
    document = json.loads(DOCUMENT)
    del document[field]
    with pytest.raises(ReceiptInvalid, match=field):
        verify_no_data_receipt(json.dumps(document).encode(), ISSUER.keys)


def test_what_is_logged_is_the_exact_envelope():
    inside = base64.b64decode(json.loads(DOCUMENT)["envelope"])
    assert inside == STATEMENT.raw
    assert LOG.tree.node(0, PLACE) == leaf_hash(bytes.fromhex(STATEMENT.digest))

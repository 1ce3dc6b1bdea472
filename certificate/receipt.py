"""What a data subject receives: a receipt that leads to the certificate, or a signed "no data held".

A receipt holds no identifier. Its holder knows theirs and can open the commitment with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import AwareDatetime

from certificate.commitment import SubjectCommitment, commit_subject, subject_digest, tree_of_leaves
from certificate.envelope import Envelope, check_signature, parse, sign
from certificate.errors import ReceiptInvalid, UnusableInput, VerificationError
from certificate.keys import KeySet, Signer
from certificate.merkle import verify_inclusion
from certificate.predicate import DeletionSet
from certificate.predicate_v1 import DeletionSetV1
from certificate.records import Count, ProofPath, Record, Salt, Sha256, Text, Uuid7, read_object

NO_DATA_PAYLOAD = "application/vnd.lethe.no-data-held+json"


class Receipt(Record):
    """The way from one subject's commitment to the root in the certificate with this digest."""

    format: Literal["urn:lethe:receipt:v1"] = "urn:lethe:receipt:v1"
    request_id: Text
    salt: Salt
    commitment: Sha256
    leaf_index: Count
    path: ProofPath
    certificate_digest: Sha256


class NoDataHeld(Record):
    """The issuer found no record of this subject in this model's data. `log_size` dates it."""

    format: Literal["urn:lethe:no-data-held:v1"] = "urn:lethe:no-data-held:v1"
    request_id: Text
    model: Text
    model_id: Uuid7
    salt: Salt
    commitment: Sha256
    log_size: Count
    issued_at: AwareDatetime


def issue_receipts(
    commitments: Sequence[SubjectCommitment],
    *,
    certificate_digest: str,
    leaves: Iterable[bytes] | None = None,
) -> list[Receipt]:
    """One receipt per commitment, in the order given.

    `leaves` are the leaf hashes of the whole deletion set, where commitments are only some of it: the others'
    salts may be destroyed already.
    """
    own = [entry.leaf() for entry in commitments]
    tree, places = tree_of_leaves(own if leaves is None else leaves)
    if not places.keys() >= set(own):
        raise ValueError("a commitment is not in the deletion set of these leaves")
    return [
        Receipt(
            request_id=entry.request_id,
            salt=entry.salt,
            commitment=entry.commitment,
            leaf_index=places[leaf],
            path=tuple(step.hex() for step in tree.inclusion_proof(places[leaf])),
            certificate_digest=certificate_digest,
        )
        for entry, leaf in zip(commitments, own, strict=True)
    ]


def verify_receipt(
    receipt: Receipt,
    *,
    certificate_digest: str,
    deletion_set: DeletionSet | DeletionSetV1,
    subject_id: str | None = None,
) -> None:
    """Raise unless the receipt leads to this certificate and, when `subject_id` is given, is about it."""
    if receipt.certificate_digest != certificate_digest:
        raise ReceiptInvalid("the receipt is for another certificate")
    entry = SubjectCommitment(receipt.request_id, receipt.salt, receipt.commitment)
    path = [bytes.fromhex(step) for step in receipt.path]
    expected_root = bytes.fromhex(deletion_set.root)
    if not verify_inclusion(entry.leaf(), receipt.leaf_index, deletion_set.commitments, path, expected_root):
        raise ReceiptInvalid("the receipt's path does not lead to the deletion set's root")
    _check_subject(receipt.salt, receipt.commitment, subject_id)


def issue_no_data_held(
    *,
    request_id: str,
    subject_id: str,
    model: str,
    model_id: str,
    log_size: int,
    issued_at: AwareDatetime,
    signer: Signer,
    salt: str | None = None,
) -> Envelope:
    entry = commit_subject(request_id=request_id, subject_id=subject_id, salt=salt)
    receipt = NoDataHeld(
        request_id=request_id,
        model=model,
        model_id=model_id,
        salt=entry.salt,
        commitment=entry.commitment,
        log_size=log_size,
        issued_at=issued_at,
    )
    return sign(receipt.to_bytes(), signer, NO_DATA_PAYLOAD)


def verify_no_data_held(envelope: bytes, keys: KeySet, *, subject_id: str | None = None) -> NoDataHeld:
    """The signed receipt, by a key valid at the log size it names (the next place to be signed)."""
    try:
        parsed = parse(envelope)
        receipt = NoDataHeld.read(parsed.payload, "receipt")
        check_signature(parsed, keys, position=receipt.log_size, payload_type=NO_DATA_PAYLOAD)
    except (VerificationError, UnusableInput) as error:
        raise ReceiptInvalid(str(error)) from None
    _check_subject(receipt.salt, receipt.commitment, subject_id)
    return receipt


def is_no_data_held(data: bytes) -> bool:
    """Whether a receipt file is the signed kind (a DSSE envelope)."""
    return read_object(data, "receipt").get("payloadType") == NO_DATA_PAYLOAD


def _check_subject(salt: str, commitment: str, subject_id: str | None) -> None:
    if subject_id is not None and subject_digest(salt=salt, subject_id=subject_id) != commitment:
        raise ReceiptInvalid("the receipt is not about this subject")

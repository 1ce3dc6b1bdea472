"""Receipts for the people who asked for erasure: proof of erasure, or a signed "no data held" statement.

Neither document contains an identifier. Its holder knows their own and can open the commitment with it.
Documents of the second format state the rule by which identifiers were compared. Documents of the first
format still verify.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, Field, model_validator

from lethe.certificate.commitment import (
    IDENTIFIER_RULE,
    IDENTIFIER_RULE_IN_WORDS,
    IdentifierRule,
    SubjectCommitment,
    build_deletion_tree,
    commit_subject,
    normalise_identifier,
    subject_digest,
)
from lethe.certificate.envelope import Envelope, check_signature, from_base64, parse, sign
from lethe.certificate.errors import LogProofInvalid, ReceiptInvalid, UnusableInput, VerificationError
from lethe.certificate.keys import KeySet, Signer
from lethe.certificate.merkle import leaf_hash, verify_consistency, verify_inclusion
from lethe.certificate.predicate import DeletionSet
from lethe.certificate.predicate_v1 import DeletionSetV1
from lethe.certificate.records import (
    Count,
    ProofPath,
    Record,
    Salt,
    Sha256,
    Text,
    Uuid7,
    canonical_json,
    printable,
    read_object,
)
from lethe.certificate.tree_head import RETIRED_KEY, TreeHead, verify_signatures, verify_tree_head

NO_DATA_PAYLOAD = "application/vnd.lethe.no-data-held+json"
NO_DATA_RECEIPT = "urn:lethe:no-data-receipt:v2"

LaterHead = tuple[str, Sequence[str]]
"""A signed tree head, and the proof that it extends an earlier one."""

_UNDATED = (
    "The statement is of the first format. It is not in the log, so only its signer vouches for its date."
)


class _ReceiptFields(Record):
    """Fields of both formats."""

    request_id: Text
    salt: Salt
    commitment: Sha256
    leaf_index: Count
    path: ProofPath
    certificate_digest: Sha256


class ReceiptV1(_ReceiptFields):
    """Proves that one person's commitment is in the deletion set of the certificate with this digest."""

    format: Literal["urn:lethe:receipt:v1"] = "urn:lethe:receipt:v1"


class Receipt(_ReceiptFields):
    """Proves that one person's commitment is in the deletion set of the certificate with this digest.

    This class reads both formats. Only the second has an `identifier_rule`; its commitment is over the normal
    form of the identifier.
    """

    format: Literal["urn:lethe:receipt:v1", "urn:lethe:receipt:v2"] = "urn:lethe:receipt:v2"
    identifier_rule: IdentifierRule | None = None

    @model_validator(mode="after")
    def _rule_of_this_format(self) -> Self:
        if (self.format == "urn:lethe:receipt:v2") != (self.identifier_rule is not None):
            raise ValueError(
                "a receipt of the second format must state its identifier rule, and one of the first must not"
            )
        return self

    def document(self) -> dict[str, Any]:
        """Return the receipt as JSON values. In the first format there is no field for the rule."""
        exclude = {"identifier_rule"} if self.identifier_rule is None else None
        return self.model_dump(mode="json", exclude=exclude)

    def to_bytes(self) -> bytes:
        """Return the receipt's only serialisation."""
        return canonical_json(self.document())


class NoDataHeldV1(Record):
    """States that this model's data contains no record of this person. `log_size` dates the statement."""

    format: Literal["urn:lethe:no-data-held:v1"] = "urn:lethe:no-data-held:v1"
    request_id: Text
    model: Text
    model_id: Uuid7
    salt: Salt
    commitment: Sha256
    log_size: Count
    issued_at: AwareDatetime


class NoDataHeld(Record):
    """States that this model's data contains no record of this person. Its place in the log dates it."""

    format: Literal["urn:lethe:no-data-held:v2"] = "urn:lethe:no-data-held:v2"
    request_id: Text
    model: Text
    model_id: Uuid7
    salt: Salt
    commitment: Sha256
    identifier_rule: IdentifierRule
    issued_at: AwareDatetime


class LogPlace(Record):
    """The place of a statement in the log. `checkpoint` is the signed tree head, `path` leads to its root."""

    checkpoint: str
    index: Count
    path: ProofPath


class NoDataReceipt(Record):
    """A signed "no data held" statement, the proof that it is in the log, and the issuer's keys.

    `envelope` is the base64 of the exact bytes whose SHA-256 is the leaf.
    """

    format: Literal["urn:lethe:no-data-receipt:v2"] = "urn:lethe:no-data-receipt:v2"
    envelope: Annotated[str, Field(max_length=2**16)]
    log: LogPlace
    keys: KeySet


def issue_receipts(
    commitments: Sequence[SubjectCommitment],
    *,
    certificate_digest: str,
    leaves: Iterable[bytes] | None = None,
) -> list[Receipt]:
    """Return one receipt per commitment, in the same order.

    If `commitments` is only part of the deletion set, pass the leaf hashes of the whole set as `leaves`. The
    salts of the others may already be destroyed.
    """
    own = [entry.leaf() for entry in commitments]
    tree, places = build_deletion_tree(own if leaves is None else leaves)
    if not places.keys() >= set(own):
        raise ValueError("a commitment is not in the deletion set of these leaves")
    return [
        Receipt(
            format="urn:lethe:receipt:v1" if entry.identifier_rule is None else "urn:lethe:receipt:v2",
            request_id=entry.request_id,
            salt=entry.salt,
            commitment=entry.commitment,
            leaf_index=places[leaf],
            path=tuple(step.hex() for step in tree.inclusion_proof(places[leaf])),
            certificate_digest=certificate_digest,
            identifier_rule=entry.identifier_rule,
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
    """Raise `ReceiptInvalid` unless the receipt leads to this certificate.

    If you pass `subject_id`, the receipt must also be about that identifier.
    """
    if receipt.certificate_digest != certificate_digest:
        raise ReceiptInvalid("the receipt is for another certificate")
    entry = SubjectCommitment(receipt.request_id, receipt.salt, receipt.commitment)
    path = [bytes.fromhex(step) for step in receipt.path]
    expected_root = bytes.fromhex(deletion_set.root)
    if not verify_inclusion(entry.leaf(), receipt.leaf_index, deletion_set.commitments, path, expected_root):
        raise ReceiptInvalid("the receipt's path does not lead to the deletion set's root")
    _check_subject(receipt.salt, receipt.commitment, subject_id, receipt.identifier_rule)


def issue_no_data_held(
    *,
    request_id: str,
    subject_id: str,
    model: str,
    model_id: str,
    issued_at: AwareDatetime,
    signer: Signer,
    salt: str | None = None,
) -> Envelope:
    """Sign that no data is held about one person of one request. It is valid once its digest is logged."""
    entry = commit_subject(request_id=request_id, subject_id=subject_id, salt=salt)
    statement = NoDataHeld(
        request_id=request_id,
        model=model,
        model_id=model_id,
        salt=entry.salt,
        commitment=entry.commitment,
        identifier_rule=IDENTIFIER_RULE,
        issued_at=issued_at,
    )
    return sign(statement.to_bytes(), signer, NO_DATA_PAYLOAD)


def build_no_data_receipt(
    envelope: Envelope, *, tree_head: str, index: int, path: Sequence[str], keys: KeySet
) -> NoDataReceipt:
    """Build the receipt of a logged "no data held" statement, with its inclusion proof and the keys."""
    return NoDataReceipt(
        envelope=base64.b64encode(envelope.raw).decode(),
        log=LogPlace(checkpoint=tree_head, index=index, path=tuple(path)),
        keys=keys,
    )


def verify_no_data_receipt(
    document: bytes, keys: KeySet, *, subject_id: str | None = None, later: LaterHead | None = None
) -> NoDataHeld:
    """Return the statement of a receipt after checking that it is signed, logged and about `subject_id`.

    `keys` must be keys that the verifier trusts. Those inside the document prove nothing about their owner. A
    receipt from before a key rotation also needs `later`: a newer signed tree head and the proof that it
    extends the receipt's. `GET /v1/log/consistency` returns both.
    """
    try:
        receipt = NoDataReceipt.read(document, "receipt")
        envelope = parse(from_base64(receipt.envelope))
        head = _verify_head(receipt.log.checkpoint, keys, later)
        leaf, path = leaf_hash(bytes.fromhex(envelope.digest)), [bytes.fromhex(s) for s in receipt.log.path]
        if not verify_inclusion(leaf, receipt.log.index, head.size, path, head.root):
            raise ReceiptInvalid(
                f"the statement is not in the log: the proof does not lead from place {receipt.log.index} "
                f"to the root of the tree of {head.size} leaves"
            )
        check_signature(envelope, keys, position=receipt.log.index, payload_type=NO_DATA_PAYLOAD)
        statement = NoDataHeld.read(envelope.payload, "statement")
    except (VerificationError, UnusableInput) as error:
        raise ReceiptInvalid(str(error)) from None
    _check_subject(statement.salt, statement.commitment, subject_id, statement.identifier_rule)
    return statement


def _verify_head(signed: str, keys: KeySet, later: LaterHead | None) -> TreeHead:
    """Return the tree head in `signed` if a key in use signed it, or signed a later head that extends it."""
    verified = verify_signatures(signed, keys)
    if verified.retired:
        if later is None:
            raise LogProofInvalid(RETIRED_KEY)
        newer, path = verify_tree_head(later[0], keys), [bytes.fromhex(step) for step in later[1]]
        older = verified.head
        same_log = newer.origin == older.origin
        if not same_log or not verify_consistency(older.size, newer.size, path, older.root, newer.root):
            raise LogProofInvalid("the later tree head does not extend the receipt's tree head")
    return verified.head


def verify_no_data_held(
    document: bytes, keys: KeySet, *, subject_id: str | None = None, later: LaterHead | None = None
) -> NoDataHeld | NoDataHeldV1:
    """Return the verified "no data held" statement of either format.

    A statement of the first format is a bare envelope, signed by a key valid at the log size that it names.
    """
    if _field(document, "format") == NO_DATA_RECEIPT:
        return verify_no_data_receipt(document, keys, subject_id=subject_id, later=later)
    try:
        parsed = parse(document)
        if _field(parsed.payload, "format") == NoDataHeld.model_fields["format"].default:
            raise ReceiptInvalid(
                "the statement comes without its place in the log. Use the complete receipt that was issued"
            )
        statement = NoDataHeldV1.read(parsed.payload, "receipt")
        check_signature(parsed, keys, position=statement.log_size, payload_type=NO_DATA_PAYLOAD)
    except (VerificationError, UnusableInput) as error:
        raise ReceiptInvalid(str(error)) from None
    _check_subject(statement.salt, statement.commitment, subject_id, None)
    return statement


def describe_no_data_held(statement: NoDataHeld | NoDataHeldV1) -> str:
    """Describe a verified statement in words, including the rule by which identifiers were compared."""
    summary = (
        f"no data is held in the model {printable(statement.model)} "
        f"(signed {statement.issued_at:%Y-%m-%d %H:%M %Z} for request {printable(statement.request_id)})"
    )
    return f"{summary}. {IDENTIFIER_RULE_IN_WORDS if isinstance(statement, NoDataHeld) else _UNDATED}"


def is_no_data_held(data: bytes) -> bool:
    """Return whether a receipt file is a "no data held" statement of either format."""
    document = read_object(data, "receipt")
    return document.get("payloadType") == NO_DATA_PAYLOAD or document.get("format") == NO_DATA_RECEIPT


def _field(data: bytes, name: str) -> object:
    try:
        return read_object(data, "receipt").get(name)
    except UnusableInput as error:
        raise ReceiptInvalid(str(error)) from None


def _check_subject(salt: str, commitment: str, subject_id: str | None, rule: IdentifierRule | None) -> None:
    if subject_id is None:
        return
    identifier = subject_id if rule is None else normalise_identifier(subject_id)
    if subject_digest(salt=salt, subject_id=identifier) != commitment:
        raise ReceiptInvalid("the receipt is not about this subject")

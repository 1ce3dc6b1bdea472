"""The audit log of a tenant, for verification offline: its hash chain and its signed heads.

Each entry is hashed together with the hash of the entry before it, so an entry cannot be changed, removed or
inserted without changing every later hash. From time to time a worker signs the newest hash and appends the
signed statement to the certificate log. Whoever then rewrites the whole chain contradicts that statement.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field

from lethe.certificate.envelope import Envelope, check_signature, from_base64, parse, sign
from lethe.certificate.errors import UnusableInput, VerificationError
from lethe.certificate.keys import KeySet, Signer
from lethe.certificate.merkle import leaf_hash, verify_inclusion
from lethe.certificate.receipt import LogPlace
from lethe.certificate.records import Count, Record, Sha256, Text
from lethe.certificate.tree_head import verify_tree_head

HEAD_PAYLOAD = "application/vnd.lethe.audit-log-head+json"
_FIRST = b"lethe audit log v1\0"
_ENTRY = b"lethe audit log entry v1\0"

LogId = Annotated[str, Field(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]


class AuditLogInvalid(VerificationError):
    """The entries are not the audit log that was signed. The message names the first entry that is wrong."""

    title = "The audit log is complete and unchanged"


class Actor(Record):
    """Who did something.

    `id` is the id of an API key, the keyed pseudonym of a person, the name of an account on the server, or
    the name of a program.
    """

    kind: Literal["api-key", "person", "operator", "system"]
    id: Text
    name: str = Field(max_length=200)


class Entry(Record):
    """One entry: who did what to which object, and when. It contains no identifier of an erased person."""

    sequence: Count
    at: AwareDatetime
    actor: Actor
    action: Text
    target: Text
    details: dict[str, Any]


class ExportedEntry(Entry):
    """An entry with its hash, as one line of an exported audit log."""

    hash: Sha256

    @property
    def entry(self) -> Entry:
        """Return the part that is hashed."""
        return Entry(**{name: getattr(self, name) for name in Entry.model_fields})


class AuditLogHead(Record):
    """States which hash the audit log of a tenant had when it had `size` entries."""

    format: Literal["urn:lethe:audit-log-head:v1"] = "urn:lethe:audit-log-head:v1"
    log_id: LogId
    size: Count
    head: Sha256
    issued_at: AwareDatetime


class LoggedHead(Record):
    """A signed head, as the base64 of its exact bytes, and its place in the certificate log."""

    envelope: Annotated[str, Field(max_length=2**16)]
    log: LogPlace


class AuditLogHeads(Record):
    """The signed heads of one audit log, and the issuer's keys."""

    format: Literal["urn:lethe:audit-log-heads:v1"] = "urn:lethe:audit-log-heads:v1"
    log_id: LogId
    heads: tuple[LoggedHead, ...]
    keys: KeySet


@dataclass(frozen=True)
class AuditLogReport:
    """The result of a verification: how many entries there are, and how many of them a signed head covers."""

    entries: int
    covered: int
    heads: int


def first_hash(log_id: str) -> bytes:
    """Return the hash that the first entry of an audit log is chained to."""
    return hashlib.sha256(_FIRST + log_id.encode()).digest()


def entry_hash(previous: bytes, entry: bytes) -> bytes:
    """Return the hash of an entry, given the hash of the previous one and the entry's canonical JSON."""
    return hashlib.sha256(_ENTRY + previous + entry).digest()


def sign_head(*, log_id: str, size: int, head: bytes, issued_at: AwareDatetime, signer: Signer) -> Envelope:
    """Sign the head of an audit log. The statement counts once its digest is in the certificate log."""
    statement = AuditLogHead(log_id=log_id, size=size, head=head.hex(), issued_at=issued_at)
    return sign(statement.to_bytes(), signer, HEAD_PAYLOAD)


def logged_head(envelope: Envelope, place: LogPlace) -> LoggedHead:
    """Return a signed head with the proof that it is in the certificate log."""
    return LoggedHead(envelope=base64.b64encode(envelope.raw).decode(), log=place)


def read_entries(lines: Iterable[bytes]) -> Iterator[ExportedEntry]:
    """Parse the lines of an exported audit log. Raise `UnusableInput` with the number of a bad line."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield ExportedEntry.read(line, f"line {number}")


def verify_audit_log(
    entries: Iterable[ExportedEntry], heads: AuditLogHeads, keys: KeySet | None = None
) -> AuditLogReport:
    """Check that the entries form one chain from the first on, and that every signed head lies on it.

    `keys` are keys that the verifier trusts. Without them, those in `heads` are used, which come from the
    same source as the entries. Raises `AuditLogInvalid`.
    """
    trusted = heads.keys if keys is None else keys
    signed = {statement.size: statement for statement in _verified_heads(heads, trusted)}
    previous, count = first_hash(heads.log_id), 0
    for exported in entries:
        if exported.sequence != count:
            raise AuditLogInvalid(f"entry {count} is missing: entry {exported.sequence} comes in its place")
        previous = entry_hash(previous, exported.entry.to_bytes())
        count += 1
        if previous.hex() != exported.hash:
            raise AuditLogInvalid(f"entry {exported.sequence} was changed: its hash does not match")
        statement = signed.get(count)
        if statement is not None and statement.head != previous.hex():
            raise AuditLogInvalid(
                f"the entries up to {exported.sequence} are not those whose head was signed on "
                f"{statement.issued_at:%Y-%m-%d %H:%M %Z}"
            )
    covered = max(signed, default=0)
    if covered > count:
        raise AuditLogInvalid(f"a signed head covers {covered} entries, but the log ends after {count}")
    return AuditLogReport(entries=count, covered=covered, heads=len(signed))


def _verified_heads(heads: AuditLogHeads, keys: KeySet) -> Sequence[AuditLogHead]:
    try:
        return [_verified_head(head, heads.log_id, keys) for head in heads.heads]
    except AuditLogInvalid:
        raise
    except (VerificationError, UnusableInput) as error:
        raise AuditLogInvalid(f"a signed head cannot be verified: {error}") from None


def _verified_head(logged: LoggedHead, log_id: str, keys: KeySet) -> AuditLogHead:
    envelope, place = parse(from_base64(logged.envelope)), logged.log
    tree = verify_tree_head(place.checkpoint, keys)
    leaf, path = leaf_hash(bytes.fromhex(envelope.digest)), [bytes.fromhex(step) for step in place.path]
    if not verify_inclusion(leaf, place.index, tree.size, path, tree.root):
        raise AuditLogInvalid(f"the signed head at place {place.index} is not in the certificate log")
    check_signature(envelope, keys, position=place.index, payload_type=HEAD_PAYLOAD)
    statement = AuditLogHead.read(envelope.payload, "signed head")
    if statement.log_id != log_id:
        raise AuditLogInvalid("a signed head belongs to the audit log of another tenant")
    return statement

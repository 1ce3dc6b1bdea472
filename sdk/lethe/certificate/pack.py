"""The pack (`pack.json`): everything that offline verification needs, in one file."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from lethe.certificate.envelope import Envelope
from lethe.certificate.errors import UnusableInput
from lethe.certificate.evidence import EvidenceRecord
from lethe.certificate.keys import KeySet
from lethe.certificate.receipt import Receipt
from lethe.certificate.records import Count, ProofPath, Record, at_most, printable, read_object

Base64 = Annotated[str, Field(max_length=2**24)]
FORMAT_V1 = "urn:lethe:pack:v1"
FORMAT = "urn:lethe:pack:v2"


@dataclass(frozen=True)
class LoggedEnvelope:
    """An envelope, its place in the log, and the path from there to the root of the pack's tree head."""

    envelope: Envelope
    index: int
    path: Sequence[bytes]


class Predecessor(Record):
    """An earlier certificate of the model: the exact bytes of its envelope, and its place in the log."""

    envelope: Base64
    index: Count
    path: ProofPath

    @classmethod
    def of(cls, logged: LoggedEnvelope) -> Self:
        """Return the entry of a pack for a logged envelope."""
        return cls(
            envelope=base64.b64encode(logged.envelope.raw).decode(),
            index=logged.index,
            path=tuple(step.hex() for step in logged.path),
        )


class PredecessorV1(Record):
    """An earlier certificate of the model in a pack of format 1, without its place in the log."""

    envelope: Base64
    summary: None = None  # the first packs could carry a summary instead of an envelope; it must be null now


class LogEntry(Record):
    """The place of the certificate in the log, the path from there to the root, and the signed tree head."""

    tree_head: str
    index: Count
    path: ProofPath


class LogEntryV1(Record):
    """A log entry as packs of format 1 spell it: `checkpoint` is the signed tree head."""

    checkpoint: str
    index: Count
    path: ProofPath

    @property
    def tree_head(self) -> str:
        """The signed tree head, under its name in format 2."""
        return self.checkpoint


class Consistency(Record):
    """Proves that the tree of `old_size` leaves is a prefix of the tree of the pack's tree head."""

    old_size: Count
    path: ProofPath


class EarlierHead(Record):
    """A signed tree head that someone kept (`checkpoint`), and the proof between it and the pack's.

    This is the JSON form of a `--since` file.
    """

    checkpoint: str
    path: ProofPath = ()


class LogConsistency(Record):
    """The response of `GET /v1/log/consistency`.

    `checkpoint` is the newest signed tree head, and `path` proves that it extends the tree of `old_size`
    leaves.
    """

    old_size: Count
    new_size: Count
    path: ProofPath
    checkpoint: str


class Pack(Record):
    """Everything that offline verification of one certificate needs.

    `predecessors` are the earlier certificates in order, from the last retrain or the first certificate on.
    """

    format: Literal["urn:lethe:pack:v2"] = "urn:lethe:pack:v2"
    envelope: Base64
    predecessors: Annotated[tuple[Predecessor, ...], at_most(10_000)] = ()
    log: LogEntry
    keys: KeySet
    consistency: Annotated[tuple[Consistency, ...], at_most(64)] = ()
    evidence: EvidenceRecord | None = None
    receipt: Receipt | None = None


class PackV1(Record):
    """A pack of format 1, which lacks the places of the predecessors in the log. It is no longer issued."""

    format: Literal["urn:lethe:pack:v1"] = "urn:lethe:pack:v1"
    envelope: Base64
    predecessors: Annotated[tuple[PredecessorV1, ...], at_most(10_000)] = ()
    log: LogEntryV1
    keys: KeySet
    consistency: Annotated[tuple[Consistency, ...], at_most(64)] = ()
    evidence: EvidenceRecord | None = None
    receipt: Receipt | None = None


AnyPack = Pack | PackV1


def read_pack(data: bytes) -> AnyPack:
    """Read a pack of either format. A pack that names no format is of format 1."""
    document = read_object(data, "pack")
    named = document.get("format", FORMAT_V1)
    if named == FORMAT:
        return Pack.read(data, "pack")
    if named == FORMAT_V1:
        return PackV1.read(data, "pack")
    raise UnusableInput(f"pack: this verifier does not know the format {printable(named)!r}")


def build_pack(
    *,
    envelope: Envelope,
    tree_head: str,
    index: int,
    path: Sequence[bytes],
    keys: KeySet,
    predecessors: Sequence[LoggedEnvelope] = (),
    **optional: Any,
) -> Pack:
    """Build a pack from its parts. `optional` may contain `consistency`, `evidence` and `receipt`."""
    return Pack(
        envelope=base64.b64encode(envelope.raw).decode(),
        predecessors=tuple(Predecessor.of(link) for link in predecessors),
        log=LogEntry(tree_head=tree_head, index=index, path=tuple(step.hex() for step in path)),
        keys=keys,
        **optional,
    )

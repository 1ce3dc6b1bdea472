"""`pack.json`: everything offline verification needs, in one file."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from certificate.envelope import Envelope
from certificate.errors import UnusableInput
from certificate.evidence import EvidenceRecord
from certificate.keys import KeySet
from certificate.receipt import Receipt
from certificate.records import Count, ProofPath, Record, at_most, printable, read_object

Base64 = Annotated[str, Field(max_length=2**24)]
FORMAT_V1 = "urn:lethe:pack:v1"
FORMAT = "urn:lethe:pack:v2"


@dataclass(frozen=True)
class LoggedEnvelope:
    """An envelope with its place in the log and the path from there to the root of the pack's tree head."""

    envelope: Envelope
    index: int
    path: Sequence[bytes]


class Predecessor(Record):
    """An earlier certificate of the model: its envelope's exact bytes, and its place in the log."""

    envelope: Base64
    index: Count
    path: ProofPath

    @classmethod
    def of(cls, logged: LoggedEnvelope) -> Self:
        """Wrap an envelope and its place for a pack."""
        return cls(
            envelope=base64.b64encode(logged.envelope.raw).decode(),
            index=logged.index,
            path=tuple(step.hex() for step in logged.path),
        )


class PredecessorV1(Record):
    """An earlier certificate of the model, without its place in the log."""

    envelope: Base64
    summary: None = None  # the first packs could hold one in place of an envelope; none is accepted any more


class LogEntry(Record):
    """Where the certificate stands in the log: its place, the path to the root, and the signed tree head."""

    tree_head: str
    index: Count
    path: ProofPath


class LogEntryV1(Record):
    """A log entry as packs of format 1 spell it."""

    checkpoint: str
    index: Count
    path: ProofPath

    @property
    def tree_head(self) -> str:
        """The signed tree head under its newer name."""
        return self.checkpoint


class Consistency(Record):
    """Proof that the tree of `old_size` leaves is a prefix of the pack's tree head."""

    old_size: Count
    path: ProofPath


class EarlierHead(Record):
    """A signed tree head someone kept, with the proof between it and the pack's: a `--since` file."""

    checkpoint: str
    path: ProofPath = ()


class LogConsistency(Record):
    """What `GET /v1/log/consistency` answers: the newest tree head, and the proof from `old_size` to it."""

    old_size: Count
    new_size: Count
    path: ProofPath
    checkpoint: str


class Pack(Record):
    """`predecessors` run from the last retrain, or the first certificate, to the previous one."""

    format: Literal["urn:lethe:pack:v2"] = "urn:lethe:pack:v2"
    envelope: Base64
    predecessors: Annotated[tuple[Predecessor, ...], at_most(10_000)] = ()
    log: LogEntry
    keys: KeySet
    consistency: Annotated[tuple[Consistency, ...], at_most(64)] = ()
    evidence: EvidenceRecord | None = None
    receipt: Receipt | None = None


class PackV1(Record):
    """A pack of format 1: it does not say where the predecessors stand in the log. None is made any more."""

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
    """Read a pack of either format. One that names no format is of format 1."""
    document = read_object(data, "pack")
    named = document.get("format", FORMAT_V1)
    if named == FORMAT:
        return Pack.read(data, "pack")
    if named == FORMAT_V1:
        return PackV1.read(data, "pack")
    raise UnusableInput(f"pack: the format {printable(named)!r} is not known to this verifier")


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
    """Return a pack from its parts; `optional` takes `consistency`, `evidence` and `receipt`."""
    return Pack(
        envelope=base64.b64encode(envelope.raw).decode(),
        predecessors=tuple(Predecessor.of(link) for link in predecessors),
        log=LogEntry(tree_head=tree_head, index=index, path=tuple(step.hex() for step in path)),
        keys=keys,
        **optional,
    )

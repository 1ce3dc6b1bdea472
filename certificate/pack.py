"""`pack.json`: everything offline verification needs, in one file."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from certificate.envelope import Envelope
from certificate.evidence import EvidenceRecord
from certificate.keys import KeySet
from certificate.receipt import Receipt
from certificate.records import Count, ProofPath, Record, at_most

Base64 = Annotated[str, Field(max_length=2**24)]


class Predecessor(Record):
    """An earlier certificate of the model: its envelope's exact bytes."""

    envelope: Base64
    summary: None = None  # packs of format 1 could hold one

    @classmethod
    def of(cls, envelope: Envelope) -> Self:
        """Wrap an envelope for a pack."""
        return cls(envelope=base64.b64encode(envelope.raw).decode())


class LogEntry(Record):
    """Where the certificate stands in the log: its place, the path to the root, and the signed tree head."""

    checkpoint: str
    index: Count
    path: ProofPath


class Consistency(Record):
    """Proof that the tree of `old_size` leaves is a prefix of the pack's tree head."""

    old_size: Count
    path: ProofPath


class EarlierHead(Record):
    """A signed tree head someone kept, with the proof that leads from it to the pack's: a `--since` file."""

    checkpoint: str
    path: ProofPath = ()


class Pack(Record):
    """`predecessors` run from the last retrain, or the first certificate, to the previous one."""

    format: Literal["urn:lethe:pack:v1"] = "urn:lethe:pack:v1"
    envelope: Base64
    predecessors: Annotated[tuple[Predecessor, ...], at_most(10_000)] = ()
    log: LogEntry
    keys: KeySet
    consistency: Annotated[tuple[Consistency, ...], at_most(64)] = ()
    evidence: EvidenceRecord | None = None
    receipt: Receipt | None = None


def build_pack(
    *,
    envelope: Envelope,
    checkpoint: str,
    index: int,
    path: Sequence[bytes],
    keys: KeySet,
    predecessors: Sequence[Envelope] = (),
    **optional: Any,
) -> Pack:
    """A pack from parts; `optional` takes `consistency`, `evidence` and `receipt`."""
    return Pack(
        envelope=base64.b64encode(envelope.raw).decode(),
        predecessors=tuple(Predecessor.of(link) for link in predecessors),
        log=LogEntry(checkpoint=checkpoint, index=index, path=tuple(step.hex() for step in path)),
        keys=keys,
        **optional,
    )

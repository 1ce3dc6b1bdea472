"""An issuer in memory: signs, logs and packs certificates of every mechanism and tier, honest or not."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from certificate_evidence_cases import DELTA, EPSILON, FAILURE, KINDS, LAMBDA, TARGET, evidence_for, uuid7

from certificate.assurance import guarantee_for, inequalities_of
from certificate.chain import extend_lifetime
from certificate.checkpoint import header_metadata
from certificate.commitment import SubjectCommitment, commit_retained, commit_subject, deletion_root
from certificate.envelope import Envelope, sign
from certificate.evidence import (
    EvidenceRecord,
    commit,
)
from certificate.keys import KeySet, PublicKey, SigningKey
from certificate.merkle import MemoryTree, leaf_hash
from certificate.note import Checkpoint, sign_checkpoint
from certificate.pack import Consistency, Pack, build_pack
from certificate.privacy import classical_sigma, sigma_for
from certificate.receipt import Receipt, issue_receipts
from certificate.statement import (
    Bound,
    DeletionSet,
    EvidenceCommitment,
    Lifetime,
    Noise,
    Objective,
    Origins,
    Parent,
    Predicate,
    Runtime,
    Statement,
    serialise,
    statement_for,
)

ORIGIN = "lethe.example/log"


@dataclass
class Issued:
    statement: Statement
    envelope: Envelope
    index: int
    model: bytes | None
    evidence: EvidenceRecord
    receipts: list[Receipt]
    earlier: list[Envelope] = field(default_factory=list)


def tiny_checkpoint(certificate_id: str, model: str, version: int, seed: int = 0) -> bytes:
    """A safetensors file with one tensor of four numbers."""
    data = struct.pack("<4f", *(math.sin(seed + k) for k in range(4)))
    header = {
        "__metadata__": header_metadata(certificate_id=certificate_id, model=model, version=version),
        "w": {"dtype": "F32", "shape": [4], "data_offsets": [0, len(data)]},
    }
    text = json.dumps(header, sort_keys=True).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def needed_sigma(calibration: str, *, epsilon: float, delta: float, distance: float) -> float:
    function = classical_sigma if calibration == "classical" else sigma_for
    return function(epsilon=epsilon, delta=delta, distance=distance)


def objective(family: str) -> Objective:
    return Objective(
        family=family,
        loss="cross-entropy",
        regularisation=LAMBDA,
        anchor_sha256=None,
        origins=Origins(features="as recorded", constants="none", anchor="zero"),
        dimension=1000,
        retained_data_commitment=commit_retained(key=b"k" * 32, part_digests=["00" * 32, "11" * 32]),
    )


def deletion_set(commitments: list[SubjectCommitment]) -> DeletionSet:
    return DeletionSet(
        requests=len(commitments),
        subjects=len(commitments),
        records=25,
        root=deletion_root(commitments),
        class_histogram={"0": 20, "1": 5},
        kl_retained_original=0.009,
        kl_original_retained=0.0091,
    )


class Issuer:
    """One model's chain in one log. `noise` before any certificate are other leaves of the log."""

    def __init__(
        self,
        key: SigningKey | None = None,
        *,
        strangers: int = 3,
        model: str = "credit-scoring",
        model_id: str = uuid7(9),
    ) -> None:
        self.key = key or SigningKey.generate()
        self.model, self.model_id = model, model_id
        self.log = MemoryTree([leaf_hash(bytes([k]) * 32) for k in range(strangers)])
        self.keys = KeySet(keys=(PublicKey.of(self.key),))
        self.chain: list[Issued] = []
        self.published = (0, hashlib.sha256(b"version 0").hexdigest())

    def predicate(
        self, kind: str, *, evidence: EvidenceRecord, commitments: list[SubjectCommitment]
    ) -> Predicate:
        mechanism, rule, assurance, family, calibration = KINDS[kind]
        failure = FAILURE if rule == "B2" else 0.0
        retrain = rule == "retrain"
        epsilon, delta, target = (0.0, 0.0, 0.0) if retrain else (EPSILON, DELTA, TARGET)
        sigma = needed_sigma(calibration, epsilon=EPSILON, delta=DELTA - failure, distance=TARGET)
        lifetime = self.lifetime(kind, shift=target / sigma, failure=failure)
        return Predicate(
            certificate_id=evidence.certificate_id,
            model=self.model,
            model_id=self.model_id,
            version=self.published[0] + 1,
            parent=Parent(version=self.published[0], checkpoint_sha256=self.published[1]),
            mechanism=mechanism,
            objective=objective(family),
            deletion_set=deletion_set(commitments),
            guarantee=guarantee_for(rule=rule, assurance=assurance, epsilon=epsilon, delta=delta),
            bound=Bound(
                distance_target=target,
                rule=rule,
                failure_probability=failure,
                inequalities=inequalities_of(rule),
            ),
            noise=Noise(
                sigma=sigma,
                calibration=calibration,
                data_independent=assurance != "as-published",
            ),
            lifetime=lifetime,
            evidence=EvidenceCommitment(commitment=commit(evidence)),
            runtime=Runtime(
                torch="2.7.0",
                lethe="0.1.0",
                device="cpu",
                world_size=1,
                deterministic=True,
                flags=("torch.use_deterministic_algorithms",),
            ),
            issued_at=datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC),
        )

    def lifetime(self, kind: str, *, shift: float, failure: float) -> Lifetime:
        mechanism, _, assurance, _, _ = KINDS[kind]
        previous = self.chain[-1] if self.chain else None
        return extend_lifetime(
            previous.statement.predicate.lifetime if previous else None,
            previous.envelope.digest if previous else None,
            mechanism=mechanism,
            shift=shift,
            failure_probability=failure,
            assurance=assurance,
            delta=DELTA,
            cap=20.0,
        )

    def issue(
        self,
        kind: str = "tr-proved",
        *,
        edit: dict[str, dict[str, Any]] | None = None,
        evidence_edit: dict[str, Any] | None = None,
        model: bytes | None = None,
        log_it: bool = True,
    ) -> Issued:
        """A certificate of `kind`; `edit` changes parts of its predicate, like {"noise": {"sigma": 1e-9}}."""
        number = len(self.chain) + 1
        evidence = evidence_for(kind, uuid7(number)).model_copy(update=evidence_edit or {})
        commitments = [
            commit_subject(request_id=uuid7(1000 * number + k), subject_id=f"subject-{k}", salt=f"{k:032x}")
            for k in range(20)
        ]
        predicate = edited(self.predicate(kind, evidence=evidence, commitments=commitments), edit or {})
        if model is None:
            model = tiny_checkpoint(predicate.certificate_id, self.model, predicate.version, seed=number)
        sha256 = hashlib.sha256(model).hexdigest()
        statement = statement_for(
            file_name="model.safetensors", checkpoint_sha256=sha256, predicate=predicate
        )
        envelope = sign(serialise(statement), self.key)
        issued = Issued(
            statement=statement,
            envelope=envelope,
            index=self.log.append(leaf_hash(bytes.fromhex(envelope.digest))) if log_it else self.log.size,
            model=None if predicate.mechanism == "discarded" else model,
            evidence=evidence,
            receipts=issue_receipts(commitments, certificate_digest=envelope.digest),
            earlier=[entry.envelope for entry in self.chain],
        )
        self.chain.append(issued)
        if predicate.mechanism != "discarded":
            self.published = (predicate.version, sha256)
        return issued

    def head(self, size: int | None = None) -> str:
        size = self.log.size if size is None else size
        return sign_checkpoint(Checkpoint(ORIGIN, size, self.log.root(size)), self.key)

    def pack(self, issued: Issued | None = None, **overrides: Any) -> Pack:
        issued = issued or self.chain[-1]
        parts: dict[str, Any] = {
            "envelope": issued.envelope,
            "checkpoint": self.head(),
            "index": issued.index,
            "path": self.log.inclusion_proof(issued.index),
            "keys": self.keys,
            "predecessors": issued.earlier,
            "consistency": tuple(
                Consistency(
                    old_size=size, path=tuple(step.hex() for step in self.log.consistency_proof(size))
                )
                for size in range(max(0, self.log.size - 64), self.log.size)
            ),
        }
        return build_pack(**(parts | overrides))


def edited(predicate: Predicate, edit: dict[str, dict[str, Any]]) -> Predicate:
    """The predicate with parts replaced and not validated: a dishonest issuer validates nothing."""
    return predicate.model_copy(
        update={
            name: getattr(predicate, name).model_copy(update=change) if isinstance(change, dict) else change
            for name, change in edit.items()
        }
    )

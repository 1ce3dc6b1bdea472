"""An issuer in memory: signs, logs and packs certificates of every mechanism and tier, honest or not."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from certificate.assurance import guarantee_for, inequalities_of
from certificate.chain import extend_lifetime
from certificate.checkpoint import header_metadata
from certificate.commitment import SubjectCommitment, commit_retained, commit_subject, deletion_root
from certificate.envelope import Envelope, sign
from certificate.evidence import (
    Curvature,
    EvidenceRecord,
    LanczosRun,
    Shift,
    TraceStep,
    Utility,
    commit,
)
from certificate.evidence_check import curvature_floor, distance_b1, distance_b2
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
TARGET, EPSILON, DELTA = 1e-4, 0.8, 1e-5
LAMBDA, FAILURE = 0.01, 1e-9

# kind -> (mechanism, rule, assurance, family, calibration)
KINDS: dict[str, tuple[Any, Any, Any, str, Any]] = {
    "tr-proved": ("tr", "B1", "proved", "softmax", "analytic"),
    "tr-proved-classical": ("tr", "B1", "proved", "logistic", "classical"),
    "tr-conditional": ("tr", "B2", "conditional", "mlp", "analytic"),
    "tr-heuristic": ("tr", "B2", "heuristic", "resnet18", "analytic"),
    "retrain-proved": ("retrain", "retrain", "proved", "mlp", "analytic"),
    "tr-paper-as-published": ("tr-paper", "tr-paper", "as-published", "mlp", "classical"),
    "guo2020-as-published": ("guo2020", "guo2020", "as-published", "softmax", "analytic"),
    "zhang2024-as-published": ("zhang2024", "zhang2024", "as-published", "allcnn", "analytic"),
    "discarded-proved": ("discarded", "B1", "proved", "softmax", "analytic"),
    "discarded-conditional": ("discarded", "B2", "conditional", "mlp", "analytic"),
}


@dataclass
class Issued:
    statement: Statement
    envelope: Envelope
    index: int
    model: bytes | None
    evidence: EvidenceRecord
    receipts: list[Receipt]
    earlier: list[Envelope] = field(default_factory=list)


def uuid7(number: int) -> str:
    return f"018f0000-0000-7000-8000-{number:012x}"


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


def lanczos(target_floor: float = 0.05) -> Curvature:
    run = LanczosRun(
        route="direct",
        steps=400,
        failure_probability=FAILURE / 2,
        ritz_min=target_floor,
        ritz_max=1.0,
        ritz_values=(target_floor, 0.5, 1.0),
        rounding_slack=1e-12,
    )
    split = run.model_copy(update={"route": "split", "steps": 40, "failure_probability": FAILURE / 4})
    floor = curvature_floor(run, 1000)
    assert floor is not None
    gradient = 1e-7
    return Curvature(
        floor=floor,
        runs=(run, split.model_copy(update={"ritz_min": -0.9, "ritz_values": ()})),
        hessian_lipschitz=100.0,
        hessian_lipschitz_source="analytic",
        hessian_lipschitz_derivation="recursion over layers",
        ball_radius=3 * gradient / floor,
        kantorovich=100.0 * gradient / floor**2 * 1.001,
    )


def evidence_for(
    kind: str, certificate_id: str, *, gradient_norm: float = 5e-7, salt: str = "ab" * 16
) -> EvidenceRecord:
    _, rule, assurance, _, _ = KINDS[kind]
    curvature, distance = None, TARGET * 0.9
    if rule == "B1":
        distance = distance_b1(gradient_norm, 1e-12, LAMBDA)
    elif rule == "B2":
        gradient_norm = 1e-7
        curvature = lanczos()
        if assurance == "heuristic":
            curvature = curvature.model_copy(update={"hessian_lipschitz_source": "sampled"})
        distance = distance_b2(gradient_norm, 1e-12, curvature.floor, curvature.hessian_lipschitz)
    elif rule == "retrain":
        distance = 0.0
    return EvidenceRecord(
        certificate_id=certificate_id,
        rule=rule,
        gradient_norm=gradient_norm,
        rounding_error=1e-12,
        distance=distance,
        curvature=curvature,
        paper_distance=97.7 if rule == "tr-paper" else None,
        method={"lipschitz": 12.5} if rule == "tr-paper" else {},
        trace=(
            TraceStep(gradient_norm=0.3, radius=1.0, ratio=0.98, accepted=True, passes=7.0, seconds=0.2),
            TraceStep(gradient_norm=5e-7, radius=2.0, ratio=None, accepted=True, passes=9.0, seconds=0.3),
        ),
        shift=Shift(
            original={"0": 60, "1": 40},
            erased={"0": 20, "1": 5},
            retained={"0": 40, "1": 35},
            kl_retained_original=0.009,
            kl_original_retained=0.0091,
        ),
        utility=Utility(f1_before=0.91, f1_after=0.9, loss_before=0.3, loss_after=0.31),
        solver={"eta1": 0.1, "max_steps": 50, "preconditioned": False, "subproblem": "cg"},
        salt=salt,
    )


def needed_sigma(calibration: str, *, epsilon: float, delta: float, distance: float) -> float:
    function = classical_sigma if calibration == "classical" else sigma_for
    return function(epsilon=epsilon, delta=delta, distance=distance)


class Issuer:
    """One model's chain in one log. `noise` before any certificate are other leaves of the log."""

    def __init__(
        self, key: SigningKey | None = None, *, strangers: int = 3, model: str = "credit-scoring"
    ) -> None:
        self.key = key or SigningKey.generate()
        self.model = model
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
        previous = self.chain[-1] if self.chain else None
        lifetime = extend_lifetime(
            previous.statement.predicate.lifetime if previous else None,
            previous.envelope.digest if previous else None,
            mechanism=mechanism,
            shift=target / sigma,
            failure_probability=failure,
            assurance=assurance,
            delta=DELTA,
            cap=20.0,
        )
        return Predicate(
            certificate_id=evidence.certificate_id,
            model=self.model,
            version=self.published[0] + 1,
            parent=Parent(version=self.published[0], checkpoint_sha256=self.published[1]),
            mechanism=mechanism,
            objective=Objective(
                family=family,
                loss="cross-entropy",
                regularisation=LAMBDA,
                anchor_sha256=None,
                origins=Origins(features="as recorded", constants="none", anchor="zero"),
                dimension=1000,
                retained_data_commitment=commit_retained(key=b"k" * 32, part_digests=["00" * 32, "11" * 32]),
            ),
            deletion_set=DeletionSet(
                requests=len(commitments),
                subjects=len(commitments),
                records=25,
                root=deletion_root(commitments),
                class_histogram={"0": 20, "1": 5},
                kl_retained_original=0.009,
                kl_original_retained=0.0091,
            ),
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
            for k in range(5)
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
                for size in range(self.log.size)
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

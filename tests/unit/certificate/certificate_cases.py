"""An issuer in memory that signs, logs and packs certificates of every kind, honest or not."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from lethe.certificate.assurance import (
    LOSS_OF_FAMILY,
    assumptions_for,
    guarantee_for,
    inequalities_of,
    linearisation_of,
    loss_of,
)
from lethe.certificate.chain import Link, extend_lifetime, since_last_retrain
from lethe.certificate.commitment import SubjectCommitment, commit_retained, commit_subject, deletion_root
from lethe.certificate.envelope import Envelope, sign
from lethe.certificate.evidence import EvidenceRecord, ParentOpening, commit, commit_parent
from lethe.certificate.keys import KeySet, PublicKey, SigningKey
from lethe.certificate.merkle import MemoryTree, leaf_hash
from lethe.certificate.pack import Consistency, LoggedEnvelope, Pack, build_pack
from lethe.certificate.predicate import (
    Bound,
    DeletionSet,
    EvidenceCommitment,
    Lifetime,
    Linearisation,
    Noise,
    Objective,
    Origins,
    Parent,
    Predicate,
    Runtime,
)
from lethe.certificate.privacy import NOISE_RESIDUAL, classical_sigma, delta_left, grid_step, sigma_for
from lethe.certificate.receipt import Receipt, issue_receipts
from lethe.certificate.representation import CertifiedRepresentation
from lethe.certificate.statement import AnyStatement, Statement, serialise, statement_for, weights_file_name
from lethe.certificate.tree_head import TreeHead, sign_tree_head
from lethe.certificate.weights_file import header_metadata
from tests.unit.certificate.certificate_evidence_cases import (
    DELTA,
    DIMENSION,
    EPSILON,
    FAILURE,
    KINDS,
    LAMBDA,
    TARGET,
    evidence_for,
    uuid7,
)

ORIGIN = "lethe.example/log"
VERSION_0 = ParentOpening(sha256=hashlib.sha256(b"version 0").hexdigest(), salt="cd" * 16)
BEGUN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@dataclass
class Issued:
    statement: AnyStatement
    envelope: Envelope
    index: int
    weights: bytes | None
    evidence: EvidenceRecord
    receipts: list[Receipt]
    earlier: list[Issued] = field(default_factory=list)

    @property
    def predicate(self) -> Predicate:
        predicate = self.statement.predicate
        assert isinstance(predicate, Predicate)
        return predicate


def safetensors(tensors: dict[str, array[float]], metadata: dict[str, str], **more: Any) -> bytes:
    """Return a safetensors file of these tensors. `more` replaces header entries."""
    header: dict[str, Any] = {"__metadata__": metadata}
    data = b""
    for name, values in tensors.items():
        dtype = {"f": "F32", "d": "F64"}[values.typecode]
        end = len(data) + len(values) * values.itemsize
        header[name] = {"dtype": dtype, "shape": [len(values)], "data_offsets": [len(data), end]}
        data += values.tobytes()
    text = json.dumps(header | more, sort_keys=True).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def weights(step: float, count: int = DIMENSION, seed: int = 0) -> array[float]:
    return array("f", [step * ((seed + 7 * k) % 201 - 100) for k in range(count)])


def weights_file(predicate: Predicate, seed: int = 0) -> bytes:
    """Return the file of a release: two tensors with all weights on the grid."""
    values = weights(predicate.noise.grid_step, predicate.objective.dimension, seed)
    metadata = header_metadata(
        certificate_id=predicate.certificate_id, model=predicate.model, version=predicate.version
    )
    return safetensors({"weight": values[:-1], "bias": values[-1:]}, metadata)


def needed_sigma(
    calibration: str,
    *,
    epsilon: float = EPSILON,
    delta: float = DELTA,
    distance: float = TARGET,
    failure: float = 0.0,
) -> float:
    function = classical_sigma if calibration == "classical" else sigma_for
    left = delta_left(delta=delta, failure_probability=failure, residual=NOISE_RESIDUAL, epsilon=epsilon)
    return function(epsilon=epsilon, delta=left, distance=distance)


def linear_weights_file(predicate: Predicate, shape: tuple[int, int], seed: int = 0) -> bytes:
    """Return the file of a linear model as the worker writes it: a matrix, a bias, F64."""
    outputs, width = shape
    values = array("d", weights(predicate.noise.grid_step, outputs * (width + 1), seed))
    metadata = header_metadata(
        certificate_id=predicate.certificate_id, model=predicate.model, version=predicate.version
    )
    bias = {"dtype": "F64", "shape": [outputs], "data_offsets": [0, 8 * outputs]}
    weight = {"dtype": "F64", "shape": [outputs, width], "data_offsets": [8 * outputs, 8 * len(values)]}
    return safetensors(
        {"bias": values[:outputs], "weight": values[outputs:]}, metadata, bias=bias, weight=weight
    )


def objective(
    family: str,
    number: int,
    representation: CertifiedRepresentation | None = None,
    linearisation: Linearisation | None = None,
) -> Objective:
    linearised = linearisation is not None
    return Objective(
        family=family,
        loss="cross-entropy" if linearised and family not in LOSS_OF_FAMILY else loss_of(family),
        regularisation=LAMBDA,
        anchor_sha256="a5" * 32 if linearised else None,
        origins=Origins(
            features="as recorded", constants="none", anchor="public rows" if linearised else "zero"
        ),
        linearisation=linearisation,
        dimension=DIMENSION,
        retained_data_commitment=commit_retained(key=b"k" * 32, part_digests=["00" * 32, f"{number:064x}"]),
        representation=representation,
    )


def deletion_set(commitments: list[SubjectCommitment]) -> DeletionSet:
    return DeletionSet(
        requests=len(commitments),
        people=len(commitments),
        commitments=len(commitments),
        records=25 if len(commitments) >= 20 else None,
        root=deletion_root(commitments),
    )


class Issuer:
    """The chain of one model in one log. `strangers` is the number of other leaves before it.

    A chain keeps its objective, so `family` defaults to that of the first certificate. `shape` is that of the
    weight matrix of a linear model, (outputs, width). `layers` are the trained layers of a linearised
    network, and empty for all of them.
    """

    def __init__(
        self,
        key: SigningKey | None = None,
        *,
        strangers: int = 3,
        model: str = "credit-scoring",
        model_id: str = uuid7(9),
        family: str | None = None,
        representation: CertifiedRepresentation | None = None,
        shape: tuple[int, int] | None = None,
        layers: tuple[str, ...] | None = None,
    ) -> None:
        self.key = key or SigningKey.generate()
        self.model, self.model_id, self.family = model, model_id, family
        self.representation, self.shape, self.layers = representation, shape, layers
        self.log = MemoryTree([leaf_hash(bytes([k]) * 32) for k in range(strangers)])
        self.keys = KeySet(keys=(PublicKey.of(self.key),))
        self.chain: list[Issued] = []
        self.published: tuple[int, str | None] = (0, None)

    def parent(self) -> Parent:
        version, sha256 = self.published
        return Parent(
            version=version,
            weights_sha256=sha256,
            commitment=commit_parent(VERSION_0) if sha256 is None else None,
        )

    def predicate(
        self, kind: str, *, evidence: EvidenceRecord, commitments: list[SubjectCommitment]
    ) -> Predicate:
        mechanism, rule, assurance, family, calibration = KINDS[kind]
        number = len(self.chain) + 1
        self.family = self.family or family
        failure = FAILURE if rule == "B2" else 0.0
        retrain = rule == "retrain"
        epsilon, delta, target = (0.0, 0.0, 0.0) if retrain else (EPSILON, DELTA, TARGET)
        sigma = needed_sigma(calibration, failure=failure)
        linearisation = None if self.layers is None else linearisation_of(self.family, self.layers)
        return Predicate(
            certificate_id=evidence.certificate_id,
            model=self.model,
            model_id=self.model_id,
            version=self.published[0] + 1,
            parent=self.parent(),
            mechanism=mechanism,
            objective=objective(self.family, number, self.representation, linearisation),
            deletion_set=deletion_set(commitments),
            guarantee=guarantee_for(
                rule=rule,
                assurance=assurance,
                epsilon=epsilon,
                delta=delta,
                assumptions=assumptions_for(
                    rule,
                    assurance,
                    sums_floating_point_noise=self.sums_floating_point_noise(mechanism),
                    represented=self.representation is not None,
                    linearisation=linearisation,
                ),
                represented=self.representation is not None,
            ),
            bound=Bound(
                distance_target=target,
                rule=rule,
                failure_probability=failure,
                inequalities=inequalities_of(rule),
            ),
            noise=Noise(
                sigma=sigma,
                grid_step=grid_step(sigma),
                residual=NOISE_RESIDUAL,
                calibration=calibration,
                data_independent=assurance != "as-published",
            ),
            lifetime=self.lifetime(kind, shift=target / sigma, failure=failure),
            evidence=EvidenceCommitment(commitment=commit(evidence)),
            runtime=Runtime(
                torch="2.7.0+cpu",
                lethe="0.1.0",
                device="cpu",
                world_size=1,
                deterministic=True,
                flags=("torch.use_deterministic_algorithms=True", "torch.num_threads=2"),
            ),
            issued_at=BEGUN + timedelta(minutes=number),
        )

    def sums_floating_point_noise(self, mechanism: str) -> bool:
        links = since_last_retrain([Link(entry.envelope.digest, entry.statement) for entry in self.chain])
        return mechanism != "retrain" and any(link.predicate.format_version == 1 for link in links)

    def lifetime(self, kind: str, *, shift: float, failure: float) -> Lifetime:
        mechanism, rule, assurance, _, _ = KINDS[kind]
        previous = self.chain[-1] if self.chain else None
        return extend_lifetime(
            previous.statement.predicate.lifetime if previous else None,
            previous.envelope.digest if previous else None,
            mechanism=mechanism,
            shift=shift,
            failure_probability=failure,
            residual=0.0 if rule == "retrain" else NOISE_RESIDUAL,
            assurance=assurance,
            delta=DELTA,
            cap=20.0,
        )

    def issue(
        self,
        kind: str = "tr-proved",
        *,
        edit: dict[str, Any] | None = None,
        evidence_edit: dict[str, Any] | None = None,
        weights: bytes | None = None,
        people: int = 20,
        log_it: bool = True,
    ) -> Issued:
        """Issue a certificate of `kind`. `edit` changes its predicate, like {"noise": {"sigma": 1e-9}}."""
        number = len(self.chain) + 1
        evidence = evidence_for(kind, uuid7(number))
        opening = VERSION_0 if self.published[1] is None else None
        evidence = evidence.model_copy(update={"parent": opening})
        if people < 20:
            evidence = evidence.model_copy(update={"shift": None})
        evidence = evidence.model_copy(update=evidence_edit or {})
        commitments = [
            commit_subject(request_id=uuid7(1000 * number + k), subject_id=f"subject-{k}", salt=f"{k:032x}")
            for k in range(people)
        ]
        predicate = edited(self.predicate(kind, evidence=evidence, commitments=commitments), edit or {})
        if weights is None and self.shape is not None:
            weights = linear_weights_file(predicate, self.shape, seed=number)
        if weights is None:
            weights = weights_file(predicate, seed=number)
        statement = statement_for(
            file_name=weights_file_name(predicate.model, predicate.version),
            weights_sha256=hashlib.sha256(weights).hexdigest(),
            predicate=predicate,
        )
        issued = self.add(statement, weights=weights, evidence=evidence, log_it=log_it)
        issued.receipts = issue_receipts(commitments, certificate_digest=issued.envelope.digest)
        return issued

    def add(
        self,
        statement: AnyStatement,
        *,
        weights: bytes,
        evidence: EvidenceRecord,
        log_it: bool = True,
        payload: bytes | None = None,
    ) -> Issued:
        """Sign and log a statement, or `payload` in its place, as the next of the chain."""
        if payload is None:
            payload = serialise(statement) if isinstance(statement, Statement) else statement.to_bytes()
        envelope = sign(payload, self.key)
        discarded = statement.predicate.mechanism == "discarded"
        issued = Issued(
            statement=statement,
            envelope=envelope,
            index=self.log.append(leaf_hash(bytes.fromhex(envelope.digest))) if log_it else self.log.size,
            weights=None if discarded else weights,
            evidence=evidence,
            receipts=[],
            earlier=list(self.chain),
        )
        self.chain.append(issued)
        if not discarded:
            self.published = (statement.predicate.version, hashlib.sha256(weights).hexdigest())
        return issued

    def head(self, size: int | None = None) -> str:
        size = self.log.size if size is None else size
        return sign_tree_head(TreeHead(ORIGIN, size, self.log.root(size)), self.key)

    def logged(self, issued: Issued) -> LoggedEnvelope:
        return LoggedEnvelope(issued.envelope, issued.index, self.log.inclusion_proof(issued.index))

    def pack(
        self, issued: Issued | None = None, predecessors: Sequence[Issued] | None = None, **overrides: Any
    ) -> Pack:
        issued = issued or self.chain[-1]
        earlier = issued.earlier if predecessors is None else predecessors
        parts: dict[str, Any] = {
            "envelope": issued.envelope,
            "tree_head": self.head(),
            "index": issued.index,
            "path": self.log.inclusion_proof(issued.index),
            "keys": self.keys,
            "predecessors": [self.logged(entry) for entry in earlier],
            "consistency": tuple(
                Consistency(
                    old_size=size, path=tuple(step.hex() for step in self.log.consistency_proof(size))
                )
                for size in range(max(0, self.log.size - 64), self.log.size)
            ),
        }
        return build_pack(**(parts | overrides))


def edited(predicate: Predicate, edit: dict[str, Any]) -> Predicate:
    """Return the predicate with parts replaced but not validated, as a dishonest issuer would."""
    return predicate.model_copy(
        update={
            name: getattr(predicate, name).model_copy(update=change) if isinstance(change, dict) else change
            for name, change in edit.items()
        }
    )

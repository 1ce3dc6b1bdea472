"""Certificates and packs of format 1 as they were issued, for chains that begin with them."""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime

from lethe.certificate.chain import RunningSum, total_epsilon
from lethe.certificate.commitment import commit_subject
from lethe.certificate.evidence import commit
from lethe.certificate.merkle import leaf_hash
from lethe.certificate.pack import Consistency, LogEntryV1, PackV1, PredecessorV1
from lethe.certificate.predicate import Bound, EvidenceCommitment
from lethe.certificate.predicate_v1 import (
    Assumption,
    DeletionSetV1,
    GuaranteeV1,
    LifetimeV1,
    NoiseV1,
    ObjectiveV1,
    OriginsV1,
    ParentV1,
    PredicateV1,
    RuntimeV1,
)
from lethe.certificate.privacy import compose, sigma_for
from lethe.certificate.statement import Digest, StatementV1, Subject
from tests.unit.certificate.certificate_cases import Issued, Issuer, deletion_set
from tests.unit.certificate.certificate_evidence_cases import (
    DELTA,
    DIMENSION,
    EPSILON,
    LAMBDA,
    TARGET,
    evidence_for,
    uuid7,
)


def issue_v1(issuer: Issuer) -> Issued:
    """Issue a certificate of format 1, proved by B1, as the next of the issuer's chain."""
    number = len(issuer.chain) + 1
    issuer.family = issuer.family or "softmax"
    evidence = evidence_for("tr-proved", uuid7(number))
    commitments = [
        commit_subject(request_id=uuid7(1000 * number + k), subject_id=f"subject-{k}", salt=f"{k:032x}")
        for k in range(20)
    ]
    version, sha256 = issuer.published
    weights = b"weights of format 1, drawn in floating point: " + str(number).encode()
    sigma = sigma_for(epsilon=EPSILON, delta=DELTA, distance=TARGET)
    predicate = PredicateV1(
        certificate_id=uuid7(number),
        model=issuer.model,
        model_id=issuer.model_id,
        version=version + 1,
        parent=ParentV1(
            version=version, checkpoint_sha256=sha256 or hashlib.sha256(b"version 0").hexdigest()
        ),
        mechanism="tr",
        objective=ObjectiveV1(
            family=issuer.family,
            loss="mean cross-entropy, as format 1 worded it",
            regularisation=LAMBDA,
            anchor_sha256=None,
            origins=OriginsV1(features="as recorded", constants="none", anchor="zero"),
            dimension=DIMENSION,
            retained_data_commitment=hashlib.sha256(str(number).encode()).hexdigest(),
        ),
        deletion_set=DeletionSetV1(requests=20, subjects=20, records=25, root=deletion_set(commitments).root),
        guarantee=GuaranteeV1(
            epsilon=EPSILON,
            delta=DELTA,
            assurance="proved",
            reference="retraining, in the issuer's own words",
            assumptions=(
                Assumption(name="declared-origins", basis="declared"),
                Assumption(name="floating-point-noise", basis="as is"),
            ),
            not_covered=("earlier versions",),
        ),
        bound=Bound(
            distance_target=TARGET,
            rule="B1",
            failure_probability=0.0,
            inequalities=("distance <= target", "rounding / lambda < target"),
        ),
        noise=NoiseV1(sigma=sigma, calibration="analytic", data_independent=True),
        lifetime=_lifetime(issuer, TARGET / sigma),
        evidence=EvidenceCommitment(commitment=commit(evidence)),
        runtime=RuntimeV1(torch="2.7.0", lethe="0.1.0", device="cpu", world_size=1, deterministic=True),
        issued_at=datetime(2025, 1, 2, tzinfo=UTC),
    )
    subject = Subject(name="model.safetensors", digest=Digest(sha256=hashlib.sha256(weights).hexdigest()))
    return issuer.add(
        StatementV1(subject=(subject,), predicate=predicate), weights=weights, evidence=evidence
    )


def _lifetime(issuer: Issuer, shift: float) -> LifetimeV1:
    previous = issuer.chain[-1] if issuer.chain else None
    before = previous.statement.predicate.lifetime if previous else None
    running = shift if before is None else compose([before.running_shift, shift])
    return LifetimeV1(
        release_shift=shift,
        running_shift=running,
        running_failure_probability=0.0,
        epsilon_total=total_epsilon(RunningSum(running, 0.0, 0.0, "proved"), delta=DELTA),
        delta=DELTA,
        cap=20.0,
        assurance="proved",
        index=0 if before is None else before.index + 1,
        previous_certificate_digest=previous.envelope.digest if previous else None,
    )


def pack_v1(issuer: Issuer, issued: Issued | None = None) -> PackV1:
    """Return a pack of format 1, whose predecessors have no places in the log."""
    issued = issued or issuer.chain[-1]
    assert issuer.log.node(0, issued.index) == leaf_hash(bytes.fromhex(issued.envelope.digest))
    return PackV1(
        envelope=base64.b64encode(issued.envelope.raw).decode(),
        predecessors=tuple(
            PredecessorV1(envelope=base64.b64encode(entry.envelope.raw).decode()) for entry in issued.earlier
        ),
        log=LogEntryV1(
            checkpoint=issuer.head(),
            index=issued.index,
            path=tuple(step.hex() for step in issuer.log.inclusion_proof(issued.index)),
        ),
        keys=issuer.keys,
        consistency=(Consistency(old_size=1, path=()),),
    )

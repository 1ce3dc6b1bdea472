"""Stage 4, release: draw the noise once, and write the weights, the evidence and the statement to sign."""

import math
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

import torch
from torch import Tensor

from app.core.clock import new_id, now
from app.core.storage import Stored
from app.core.version import VERSION
from app.db.manifest import Manifest
from app.db.states import FileKind
from app.db.tables import Version
from lethe.certificate import assurance, predicate
from lethe.certificate.chain import date_after
from lethe.certificate.commitment import build_deletion_tree, commit_retained
from lethe.certificate.evidence import (
    ClassDrift,
    EvidenceRecord,
    ParentOpening,
    TraceStep,
    Utility,
    commit,
    commit_parent,
)
from lethe.certificate.predicate import SMALLEST_DESCRIBED_SET, Lifetime, Predicate
from lethe.certificate.privacy import NOISE_RESIDUAL, grid_step
from lethe.certificate.records import new_salt
from lethe.certificate.statement import parse_current, serialise, statement_for, weights_file_name
from lethe.certificate.vocabulary import Loss
from lethe.certificate.weights_file import header_metadata
from lethe.policy import Method
from worker import devices
from worker.batch.certify import Claim
from worker.batch.lifetime import previous_predicate, sums_floating_point_noise
from worker.batch.resolve import PartChanges, Resolution
from worker.batch.solve import Candidate
from worker.context import JobContext
from worker.data import weights
from worker.data.families import Family, family_of
from worker.distributed.rank0 import ranks_of
from worker.engine import noise
from worker.engine.trust_region import Step
from worker.evaluation.direction import project_parent
from worker.fitting import published_weights


@dataclass(frozen=True)
class Draft:
    """A release that is written but not signed: the file of noisy weights, and the exact bytes to sign."""

    certificate_id: UUID
    version: int
    parent_id: UUID
    stored: Stored
    file_name: str
    mechanism: str
    chain_index: int
    payload: bytes
    evidence: bytes


@dataclass(frozen=True)
class Draw:
    """One noise sample and the release made from it, with the part changes that are published with it."""

    draft: Draft
    changes: PartChanges


def noised(w: Tensor, sigma: float) -> Tensor:
    """Return w + N(0, σ²I) rounded to the public grid, and overwrite `w` so that nothing can store it."""
    step = grid_step(sigma)
    released = noise.on_grid(noise.noised(w, sigma=sigma, step=step), step)
    w.zero_()
    return released


def write_draft(
    context: JobContext, resolution: Resolution, candidate: Candidate, claim: Claim, lifetime: Lifetime
) -> Draft:
    """Draw the noise once and write the release. Whatever can fail without the draw comes before it."""
    parent = context.current_version()
    certificate_id, version = new_id(), parent.number + 1
    opening = None if parent.number else ParentOpening(sha256=parent.sha256, salt=new_salt())
    evidence = _evidence(context, certificate_id, resolution, candidate, claim, opening)
    stated = Predicate(
        certificate_id=str(certificate_id),
        model=context.model.name,
        model_id=str(context.model.id),
        version=version,
        parent=_parent(parent, opening),
        mechanism=candidate.mechanism,
        objective=_objective(context, resolution),
        deletion_set=_deletion_set(resolution),
        guarantee=_guarantee(context, claim, candidate.mechanism),
        bound=_bound(claim),
        noise=_noise(context, claim),
        lifetime=lifetime,
        evidence=predicate.EvidenceCommitment(commitment=commit(evidence)),
        runtime=_runtime(candidate),
        issued_at=_issue_date(context),
    )
    file_name = weights_file_name(context.model.name, version)
    stored = _draw_and_write(context, candidate, claim, certificate_id, version)
    statement = statement_for(file_name=file_name, weights_sha256=stored.sha256, predicate=stated)
    return Draft(
        certificate_id=certificate_id,
        version=version,
        parent_id=parent.id,
        stored=stored,
        file_name=file_name,
        mechanism=candidate.mechanism,
        chain_index=lifetime.index,
        payload=serialise(statement),
        evidence=evidence.to_bytes(),
    )


def _draw_and_write(
    context: JobContext, candidate: Candidate, claim: Claim, certificate_id: UUID, version: int
) -> Stored:
    """Draw the noise, and write the noisy weights to this attempt's folder."""
    context.team.forget()  # no other rank may hold the point once it is noised
    released = noised(candidate.w, claim.sigma)
    return weights.write(
        context.services.storage,
        context.path("model.safetensors"),
        candidate.objective.unflatten(released),
        header_metadata(certificate_id=str(certificate_id), model=context.model.name, version=version),
    )


def _issue_date(context: JobContext) -> datetime:
    """Return the current time, or the previous certificate's if that is later."""
    previous = previous_predicate(context)
    return date_after(None if previous is None else previous.issued_at, now())


def _parent(parent: Version, opening: ParentOpening | None) -> predicate.Parent:
    if opening is None:
        return predicate.Parent(version=parent.number, weights_sha256=parent.sha256)
    return predicate.Parent(version=parent.number, commitment=commit_parent(opening))


def _guarantee(context: JobContext, claim: Claim, mechanism: Method) -> predicate.Guarantee:
    """State the guarantee. A retrained release is its own reference, so its ε and δ are zero."""
    policy, terms, caveats = context.manifest.policy, claim.terms, context.caveats
    retrained, represented = terms.rule == "retrain", context.manifest.representation is not None
    return assurance.guarantee_for(
        rule=terms.rule,
        assurance=terms.assurance,
        epsilon=0.0 if retrained else policy.epsilon,
        delta=0.0 if retrained else policy.delta,
        assumptions=assurance.assumptions_for(
            terms.rule,
            terms.assurance,
            changed_after_refusal=caveats.changed_after_refusal,
            warnings=caveats.warnings,
            sums_floating_point_noise=sums_floating_point_noise(context, mechanism),
            represented=represented,
            linearisation=context.manifest.linearisation,
        ),
        represented=represented,
    )


def _bound(claim: Claim) -> predicate.Bound:
    return predicate.Bound(
        distance_target=claim.stated,
        rule=claim.terms.rule,
        failure_probability=claim.terms.failure_probability,
        inequalities=assurance.inequalities_of(claim.terms.rule),
    )


def _noise(context: JobContext, claim: Claim) -> predicate.Noise:
    noise_last = claim.terms.assurance == "as-published"  # σ follows from the distance the run achieved
    return predicate.Noise(
        sigma=claim.sigma,
        grid_step=grid_step(claim.sigma),
        residual=NOISE_RESIDUAL,
        calibration=context.manifest.calibration if noise_last else "analytic",
        data_independent=not (noise_last or context.caveats.changed_after_refusal),
    )


def _objective(context: JobContext, resolution: Resolution) -> predicate.Objective:
    manifest, anchor = context.manifest, context.file(FileKind.ANCHOR)
    family = family_of(manifest)
    key = context.services.vault.keyed_hash(str(context.model.id), purpose="retained data commitment")
    return predicate.Objective(
        family=manifest.family,
        loss=_loss(manifest, family),
        regularisation=manifest.lam,
        anchor_sha256=None if anchor is None else anchor.sha256,
        origins=predicate.Origins(
            features=manifest.origins.declared_features,
            constants=manifest.origins.constants,
            anchor=manifest.origins.anchor,
        ),
        warnings=context.caveats.warnings,
        dimension=family.dimension(manifest),
        retained_data_commitment=commit_retained(key=key, part_digests=resolution.digests),
        representation=context.certified_representation(),
        linearisation=manifest.linearisation,
    )


def _loss(manifest: Manifest, family: Family) -> Loss:
    """Return the loss in the certificate's vocabulary. A linearised plug-in states its convex loss."""
    if manifest.linearisation is None or manifest.family in assurance.LOSS_OF_FAMILY:
        return assurance.loss_of(manifest.family)
    return "half squared error" if family.classes(manifest) is None else "cross-entropy"


def _deletion_set(resolution: Resolution) -> predicate.DeletionSet:
    """State counts and a commitment. The number of records of a small set is left out."""
    describable = resolution.people >= SMALLEST_DESCRIBED_SET
    return predicate.DeletionSet(
        requests=resolution.requests,
        people=resolution.people,
        commitments=len(set(resolution.leaves)),
        records=resolution.records if describable else None,
        root=build_deletion_tree(resolution.leaves)[0].root().hex(),
    )


def with_utility(draft: Draft, utility: Utility | None) -> Draft:
    """Return the same draw with its holdout scores in the evidence, and a statement that commits to them."""
    evidence = EvidenceRecord.read(draft.evidence, "evidence").model_copy(update={"utility": utility})
    statement = parse_current(draft.payload)
    committed = predicate.EvidenceCommitment(commitment=commit(evidence))
    stated = statement.predicate.model_copy(update={"evidence": committed})
    payload = serialise(statement.model_copy(update={"predicate": stated}))
    return replace(draft, payload=payload, evidence=evidence.to_bytes())


def _evidence(
    context: JobContext,
    certificate_id: UUID,
    resolution: Resolution,
    candidate: Candidate,
    claim: Claim,
    parent: ParentOpening | None,
) -> EvidenceRecord:
    return EvidenceRecord(
        certificate_id=str(certificate_id),
        rule=claim.terms.rule,
        gradient_norm=candidate.gradient_norm,
        rounding_error=candidate.rounding,
        distance=claim.distance,
        curvature=claim.curvature,
        paper_distance=claim.distance if claim.terms.assurance == "as-published" else None,
        posterior_distance=claim.posterior,
        method=claim.method,
        trace=tuple(_trace_step(step) for step in candidate.steps),
        shift=_class_drift(resolution),
        utility=None,
        solver={"outcome": candidate.outcome, "passes": candidate.passes},
        seconds_total=candidate.seconds,
        replay=project_parent(
            certificate_id=str(certificate_id),
            parent=published_weights(context, candidate.objective),
            sigma=claim.sigma,
        ),
        salt=new_salt(),
        parent=parent,
    )


def _trace_step(step: Step) -> TraceStep:
    return TraceStep(
        gradient_norm=step.gradient_norm,
        radius=_finite(step.radius),
        ratio=_finite(step.rho),
        accepted=step.accepted,
        passes=step.passes,
        seconds=step.seconds,
    )


def _class_drift(resolution: Resolution) -> ClassDrift | None:
    """Describe the class drift, unless so few people were erased that it would reveal someone's class."""
    if not resolution.describes_a_crowd:
        return None
    drift = resolution.drift
    return ClassDrift(
        original=dict(drift.original),
        erased=dict(drift.erased),
        retained=dict(drift.retained),
        kl_retained_original=drift.kl_retained_original,
        kl_original_retained=drift.kl_original_retained,
    )


def _finite(value: float) -> float | None:
    """Return None instead of NaN or infinity: ρ is NaN where rounding hides the decrease it divides by."""
    return value if math.isfinite(value) else None


def _runtime(candidate: Candidate) -> predicate.Runtime:
    """Describe the device that the objective was on, and the number of ranks."""
    device = candidate.objective.anchor.device
    return predicate.Runtime(
        torch=str(torch.__version__),
        lethe=VERSION,
        device=devices.describe(device),
        world_size=ranks_of(candidate.objective),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        flags=devices.flags(device),
    )

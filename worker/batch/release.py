"""Stage 4, release: one draw of noise, the checkpoint, the evidence, and the statement to be signed."""

import math
from dataclasses import dataclass, replace
from uuid import UUID

import torch
from torch import Tensor

from app.clock import new_id, now
from app.db.policy import Method
from app.db.states import FileKind
from app.db.tables import Version
from app.storage import Stored
from app.version import VERSION
from certificate import assurance, predicate
from certificate.chain import date_after
from certificate.checkpoint import header_metadata
from certificate.commitment import commit_retained, deletion_root
from certificate.evidence import (
    EvidenceRecord,
    ParentOpening,
    Shift,
    TraceStep,
    Utility,
    commit,
    commit_parent,
)
from certificate.predicate import SMALLEST_DESCRIBED_SET, Lifetime, Predicate
from certificate.privacy import NOISE_RESIDUAL, grid_step
from certificate.records import new_salt
from certificate.statement import parse_current, serialise, statement_for, weights_file_name
from worker import devices
from worker.distributed import current
from worker.distributed.leading import ranks_of
from worker.engine import noise
from worker.evaluation.direction import direction_for
from worker.loading import checkpoints
from worker.loading.families import family_of
from worker.pipeline.certify import previous_predicate, sums_floating_point_noise
from worker.pipeline.claim import Claim
from worker.pipeline.context import Context
from worker.pipeline.resolve import Resolved
from worker.pipeline.solve import Solved, published_weights


@dataclass(frozen=True)
class Draft:
    """A release that is written and not yet signed: the noised file, and the exact bytes to sign about it."""

    certificate_id: UUID
    version: int
    parent_id: UUID
    stored: Stored
    file_name: str
    mechanism: str
    chain_index: int
    payload: bytes
    evidence: bytes


def noised(w: Tensor, sigma: float) -> Tensor:
    """Return w + N(0, σ²I) rounded to the public grid, and overwrite w, so that nothing can write it."""
    step = grid_step(sigma)
    released = noise.on_grid(noise.noised(w, sigma=sigma, step=step), step)
    w.zero_()
    return released


def write_draft(
    context: Context,
    resolved: Resolved,
    solved: Solved,
    claim: Claim,
    lifetime: Lifetime,
) -> Draft:
    """Everything that can fail without the draw comes before it; the draw is made and written in one go."""
    parent = context.current_version()
    certificate_id, version = new_id(), parent.number + 1
    previous = previous_predicate(context)
    opening = None if parent.number else ParentOpening(sha256=parent.sha256, salt=new_salt())
    evidence = _evidence(context, certificate_id, resolved, solved, claim, opening)
    objective, deletion_set = _objective(context, resolved), _deletion_set(resolved)
    guarantee, runtime = _guarantee(context, claim, solved.mechanism), _runtime(solved)
    current.team(context.services.settings).forget()  # no other rank holds the point when it is noised
    released = noised(solved.w, claim.sigma)
    stored = checkpoints.write(
        context.services.storage,
        context.path("model.safetensors"),
        solved.objective.unflatten(released),
        header_metadata(certificate_id=str(certificate_id), model=context.model.name, version=version),
    )
    file_name = weights_file_name(context.model.name, version)
    said = Predicate(
        certificate_id=str(certificate_id),
        model=context.model.name,
        model_id=str(context.model.id),
        version=version,
        parent=_parent(parent, opening),
        mechanism=solved.mechanism,
        objective=objective,
        deletion_set=deletion_set,
        guarantee=guarantee,
        bound=_bound(claim),
        noise=_noise(context, claim),
        lifetime=lifetime,
        evidence=predicate.EvidenceCommitment(commitment=commit(evidence)),
        runtime=runtime,
        issued_at=date_after(None if previous is None else previous.issued_at, now()),
    )
    statement = statement_for(file_name=file_name, weights_sha256=stored.sha256, predicate=said)
    return Draft(
        certificate_id=certificate_id,
        version=version,
        parent_id=parent.id,
        stored=stored,
        file_name=file_name,
        mechanism=solved.mechanism,
        chain_index=lifetime.index,
        payload=serialise(statement),
        evidence=evidence.to_bytes(),
    )


def _parent(parent: Version, opening: ParentOpening | None) -> predicate.Parent:
    if opening is None:
        return predicate.Parent(version=parent.number, weights_sha256=parent.sha256)
    return predicate.Parent(version=parent.number, commitment=commit_parent(opening))


def _guarantee(context: Context, claim: Claim, mechanism: Method) -> predicate.Guarantee:
    """A retrained release is its own reference: it is indistinguishable from it with ε = δ = 0."""
    policy, terms, choices = context.manifest.policy, claim.terms, context.choices
    own = terms.rule == "retrain"
    return assurance.guarantee_for(
        rule=terms.rule,
        assurance=terms.assurance,
        epsilon=0.0 if own else policy.epsilon,
        delta=0.0 if own else policy.delta,
        assumptions=assurance.assumptions_for(
            terms.rule,
            terms.assurance,
            changed_after_refusal=choices.changed_after_refusal,
            warnings=choices.warnings,
            sums_floating_point_noise=sums_floating_point_noise(context, mechanism),
        ),
    )


def _bound(claim: Claim) -> predicate.Bound:
    return predicate.Bound(
        distance_target=claim.stated,
        rule=claim.terms.rule,
        failure_probability=claim.terms.failure_probability,
        inequalities=assurance.inequalities_of(claim.terms.rule),
    )


def _noise(context: Context, claim: Claim) -> predicate.Noise:
    last = claim.terms.assurance == "as-published"  # σ follows from the distance the run achieved
    return predicate.Noise(
        sigma=claim.sigma,
        grid_step=grid_step(claim.sigma),
        residual=NOISE_RESIDUAL,
        calibration=context.manifest.calibration if last else "analytic",
        data_independent=not (last or context.choices.changed_after_refusal),
    )


def _objective(context: Context, resolved: Resolved) -> predicate.Objective:
    manifest, anchor = context.manifest, context.file(FileKind.ANCHOR)
    family = family_of(manifest)
    key = context.services.vault.keyed_hash(str(context.model.id), purpose="retained data commitment")
    return predicate.Objective(
        family=manifest.family,
        loss=assurance.loss_of(manifest.family),
        regularisation=manifest.lam,
        anchor_sha256=None if anchor is None else anchor.sha256,
        origins=predicate.Origins(
            features=manifest.origins.declared_features,
            constants=manifest.origins.constants,
            anchor=manifest.origins.anchor,
        ),
        warnings=context.choices.warnings,
        dimension=family.dimension(manifest),
        retained_data_commitment=commit_retained(key=key, part_digests=resolved.digests),
    )


def _deletion_set(resolved: Resolved) -> predicate.DeletionSet:
    """Counts and a commitment; how many records a handful of people had is not said."""
    many = resolved.people >= SMALLEST_DESCRIBED_SET
    return predicate.DeletionSet(
        requests=resolved.requests,
        people=resolved.people,
        commitments=len(set(resolved.commitments)),
        records=resolved.records if many else None,
        root=deletion_root(resolved.commitments),
    )


def with_utility(draft: Draft, utility: Utility | None) -> Draft:
    """The same draw with what it is worth in its evidence, and a statement that commits to that."""
    evidence = EvidenceRecord.read(draft.evidence, "evidence").model_copy(update={"utility": utility})
    statement = parse_current(draft.payload)
    committed = predicate.EvidenceCommitment(commitment=commit(evidence))
    said = statement.predicate.model_copy(update={"evidence": committed})
    payload = serialise(statement.model_copy(update={"predicate": said}))
    return replace(draft, payload=payload, evidence=evidence.to_bytes())


def _evidence(
    context: Context,
    certificate_id: UUID,
    resolved: Resolved,
    solved: Solved,
    claim: Claim,
    parent: ParentOpening | None,
) -> EvidenceRecord:
    return EvidenceRecord(
        certificate_id=str(certificate_id),
        rule=claim.terms.rule,
        gradient_norm=solved.gradient_norm,
        rounding_error=solved.rounding,
        distance=claim.distance,
        curvature=claim.curvature,
        paper_distance=claim.distance if claim.terms.assurance == "as-published" else None,
        posterior_distance=claim.posterior,
        method=claim.method,
        trace=tuple(
            TraceStep(
                gradient_norm=step.gradient_norm,
                radius=_finite(step.radius),
                ratio=_finite(step.rho),
                accepted=step.accepted,
                passes=step.passes,
                seconds=step.seconds,
            )
            for step in solved.steps
        ),
        shift=_shift(resolved),
        utility=None,
        solver={"outcome": solved.outcome, "passes": solved.passes},
        seconds_total=solved.seconds,
        replay=direction_for(
            certificate_id=str(certificate_id),
            parent=published_weights(context, solved.objective),
            sigma=claim.sigma,
        ),
        salt=new_salt(),
        parent=parent,
    )


def _shift(resolved: Resolved) -> Shift | None:
    """Even auditors do not need to know what class one person was of."""
    if not resolved.is_a_crowd:
        return None
    found = resolved.shift
    return Shift(
        original=dict(found.original),
        erased=dict(found.erased),
        retained=dict(found.retained),
        kl_retained_original=found.kl_retained_original,
        kl_original_retained=found.kl_original_retained,
    )


def rounded(divergence: float | None) -> float | None:
    """Three digits tell the shift; seventeen would tell the counts."""
    return None if divergence is None else float(f"{divergence:.2e}")


def _finite(value: float) -> float | None:
    """ρ is NaN where rounding hides the drop it divides."""
    return value if math.isfinite(value) else None


def _runtime(solved: Solved) -> predicate.Runtime:
    """Where the objective was, and over how many ranks its sums were made."""
    device = solved.objective.anchor.device
    return predicate.Runtime(
        torch=str(torch.__version__),
        lethe=VERSION,
        device=devices.describe(device),
        world_size=ranks_of(solved.objective),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        flags=devices.flags(device),
    )

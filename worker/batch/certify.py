"""Stage 3, certify: decide what may be claimed for the point that the solve reached, or why nothing may.

Everything here is a pure function of the manifest and the candidate's figures. The point does not move. A
refusal is a value; `run` decides what follows from it.
"""

import math
from dataclasses import asdict, dataclass, field

from app.db.manifest import Manifest
from app.db.states import HeldReason
from lethe.certificate import evidence
from lethe.certificate.assurance import lower_assurance
from lethe.certificate.evidence import Curvature, Setting
from lethe.certificate.predicate import Assurance
from lethe.certificate.privacy import NOISE_RESIDUAL
from lethe.policy import Method
from worker.batch.lifetime import Terms
from worker.batch.solve import Candidate
from worker.context import Caveats, Refusal
from worker.engine.baselines.result import BaselineResult
from worker.engine.networks.certify_rounds import ACCEPTED
from worker.engine.networks.kantorovich import KantorovichResult
from worker.fitting import noise_problem


@dataclass(frozen=True)
class Claim:
    """What a certificate claims: the rule, the distance to the retrained model, and the noise.

    The manifest fixes all of it before the data is read, except `distance`, the evidence, and the `stated`
    distance of a baseline.
    """

    terms: Terms
    stated: float
    """Δ on the certificate: the policy's Δ*, or what a baseline claims after its run."""
    sigma: float
    distance: float
    """Δ as computed. It goes into the evidence only."""
    posterior: float | None = None
    """B1 at the output of a method that is bounded by another rule."""
    curvature: Curvature | None = None
    method: dict[str, Setting] = field(default_factory=dict)


def terms_of(manifest: Manifest, mechanism: Method, caveats: Caveats) -> Terms:
    """Return the terms of a release by this mechanism.

    A retrained model is a function of the retained rows alone, so it adds nothing to the privacy loss.
    """
    if mechanism == "retrain":
        return Terms("retrain", _lowered("proved", caveats), 0.0, 0.0, 0.0)
    return Terms(
        manifest.rule,
        _lowered(manifest.assurance, caveats),
        manifest.release_shift,
        manifest.failure_probability,
        NOISE_RESIDUAL,
    )


def _lowered(assurance: Assurance, caveats: Caveats) -> Assurance:
    return lower_assurance(
        assurance, changed_after_refusal=caveats.changed_after_refusal, warnings=caveats.warnings
    )


def certify(manifest: Manifest, caveats: Caveats, candidate: Candidate) -> Claim | Refusal:
    """Return what may be claimed for the candidate, or why it cannot be released."""
    if not candidate.converged:
        return _not_converged(candidate.outcome, candidate.distance, manifest.policy.target_distance)
    claim = _claim(manifest, terms_of(manifest, candidate.mechanism, caveats), candidate)
    if isinstance(claim, Refusal):
        return claim
    if problem := noise_problem(candidate.w, claim.sigma):
        return Refusal(HeldReason.NOT_CERTIFIABLE, problem)
    return claim


def _claim(manifest: Manifest, terms: Terms, candidate: Candidate) -> Claim | Refusal:
    if candidate.baseline is not None:
        return _baseline_claim(manifest, candidate.baseline, terms)
    if terms.rule == "retrain":  # it is its own reference; the distance to the optimum is a second figure
        posterior = candidate.distance if math.isfinite(candidate.distance) else None
        return Claim(terms, stated=0.0, sigma=manifest.sigma, distance=0.0, posterior=posterior)
    stated, sigma = manifest.policy.target_distance, manifest.sigma
    if terms.rule == "B1":
        return Claim(terms, stated=stated, sigma=sigma, distance=candidate.distance)
    measured = candidate.curvature
    assert measured is not None  # `approach` measured it for rule B2
    if measured.verdict not in ACCEPTED:
        return _not_curved(measured)
    return Claim(
        terms,
        stated=stated,
        sigma=sigma,
        distance=measured.distance,
        curvature=curvature_evidence(measured),
    )


def _baseline_claim(manifest: Manifest, result: BaselineResult, terms: Terms) -> Claim:
    """Claim what the baseline's run achieved, to two digits. Its noise follows from that distance."""
    stated = _rounded_up(result.distance)
    return Claim(
        terms,
        stated=stated,
        sigma=manifest.sigma_for(stated),
        distance=result.distance,
        posterior=result.posterior,
        method=dict(result.constants),
    )


def curvature_evidence(measured: KantorovichResult) -> evidence.Curvature:
    """Return the measurement as evidence.

    A verifier recomputes μ₀ from the Ritz values, and Δ from μ₀ and M.
    """
    assert measured.curvature is not None
    return evidence.Curvature(
        floor=measured.floor,
        runs=tuple(evidence.LanczosRun(**asdict(run)) for run in measured.curvature.runs),
        hessian_lipschitz=measured.lipschitz,
        hessian_lipschitz_source=measured.source,
        hessian_lipschitz_derivation=measured.derivation,
        ball_radius=measured.radius,
        kantorovich=measured.h,
    )


def _rounded_up(distance: float) -> float:
    """Round up to two digits. More would reveal more about the rows and tell the reader nothing.

    >>> _rounded_up(0.0121), _rounded_up(97.0)
    (0.013, 97.0)
    """
    unit = 10.0 ** (math.floor(math.log10(distance)) - 1)
    rounded = float(f"{distance:.1e}")
    return rounded if rounded >= distance else float(f"{rounded + unit:.1e}")


def _not_converged(outcome: str, distance: float, target: float) -> Refusal:
    """Say by which power of ten the target was missed. More would let a policy be fitted to the data."""
    excess = distance / target
    far = f"within a factor of 1e{math.ceil(math.log10(excess))}" if 1 < excess < math.inf else "not"
    return Refusal(HeldReason.NOT_CERTIFIABLE, f"{outcome}: the target distance was {far} reached")


def _not_curved(measured: KantorovichResult) -> Refusal:
    """Say which condition failed and by which power of ten. The figures themselves depend on the rows."""
    shortfalls = [
        f"{name} {_power_of_ten(actual / required)} of what it must be"
        for name, actual, required in (
            ("the curvature floor is", measured.floor, measured.needed),
            ("h is", measured.h, 0.5),
            ("the distance is", measured.distance, measured.target),
        )
        if required > 0 and 0 < actual < math.inf and math.isfinite(required)
    ]
    return Refusal(HeldReason.NOT_CERTIFIABLE, "; ".join([str(measured.verdict), *shortfalls]))


def _power_of_ten(ratio: float) -> str:
    """Describe a ratio by its power of ten.

    >>> _power_of_ten(0.03), _power_of_ten(40.0)
    ('about 1e-2', 'about 1e1')
    """
    return f"about 1e{math.floor(math.log10(ratio))}"

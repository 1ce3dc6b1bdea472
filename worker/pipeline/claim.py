"""What is claimed for a solution: by which rule, how far from the retrained model, with how much noise.

Everything but `distance`, `evidence` and the published methods' `stated` is fixed by the manifest before the
data is looked at.
"""

from dataclasses import dataclass, field

from app.db.manifest import Manifest
from app.db.policy import Method
from certificate.assurance import lowered
from certificate.evidence import Curvature, Setting
from certificate.predicate import Assurance, Rule
from certificate.privacy import NOISE_RESIDUAL
from certificate.vocabulary import RegistrationWarning


@dataclass(frozen=True)
class Terms:
    """What a release by one mechanism adds to the model's lifetime; known before it is made."""

    rule: Rule
    assurance: Assurance
    shift: float
    failure_probability: float
    residual: float


@dataclass(frozen=True)
class Choices:
    """What is known about how the policy and the features came about, beyond the owner's declaration."""

    changed_after_refusal: bool = False
    warnings: tuple[RegistrationWarning, ...] = ()


@dataclass(frozen=True)
class Claim:
    terms: Terms
    stated: float
    """Δ on the certificate: the policy's Δ*, or what a published method claims after its run."""
    sigma: float
    distance: float
    """Δ as computed; for the evidence alone."""
    posterior: float | None = None
    """B1 or B2 at the output of a method that is bounded by another rule."""
    curvature: Curvature | None = None
    method: dict[str, Setting] = field(default_factory=dict)


def terms_of(manifest: Manifest, mechanism: Method, choices: Choices) -> Terms:
    """Return the terms of a release. A retrain is a function of the retained rows alone: it adds nothing."""
    if mechanism == "retrain":
        return Terms("retrain", _tier("proved", choices), 0.0, 0.0, 0.0)
    return Terms(
        manifest.rule,
        _tier(manifest.assurance, choices),
        manifest.release_shift,
        manifest.failure_probability,
        NOISE_RESIDUAL,
    )


def _tier(assurance: Assurance, choices: Choices) -> Assurance:
    return lowered(assurance, changed_after_refusal=choices.changed_after_refusal, warnings=choices.warnings)

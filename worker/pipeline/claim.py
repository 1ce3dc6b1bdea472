"""What is claimed for a solution: by which rule, how far from the retrained model, with how much noise.

Everything but `distance`, `evidence` and the published methods' `stated` is fixed by the manifest before the
data is looked at.
"""

from dataclasses import dataclass, field

from app.db.manifest import Manifest
from app.db.policy import Method
from certificate.evidence import Curvature, Setting
from certificate.predicate import Assurance, Rule


@dataclass(frozen=True)
class Terms:
    """What a release by one mechanism adds to the model's lifetime; known before it is made."""

    rule: Rule
    assurance: Assurance
    shift: float
    failure_probability: float


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


def terms_of(manifest: Manifest, mechanism: Method) -> Terms:
    """A retraining is a function of the retained rows alone: it adds nothing."""
    if mechanism == "retrain":
        return Terms("retrain", "proved", 0.0, 0.0)
    return Terms(manifest.rule, manifest.assurance, manifest.release_shift, manifest.failure_probability)

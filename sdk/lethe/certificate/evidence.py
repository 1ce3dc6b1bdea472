"""The evidence record: the exact values behind a certificate, without noise.

Access to it is restricted, because (ε, δ) covers none of it. The certificate commits to the record, so an
auditor who may read it can check that it is the right record and that it supports the bound.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from lethe.certificate.predicate import Rule
from lethe.certificate.records import (
    Count,
    NonNegative,
    Positive,
    Record,
    Salt,
    Sha256,
    Text,
    Uuid7,
    at_most,
    canonical_json,
)

_DOMAIN = b"urn:lethe:evidence:v1\x00"
_PARENT_DOMAIN = b"urn:lethe:parent:v1\x00"
# Fields added later. They are omitted while empty, so that old records keep their bytes and commitments.
_LATER_FIELDS = frozenset({"parent", "replay"})

Setting = bool | Annotated[int, Field(gt=-(2**53), lt=2**53)] | float | Text | None
Settings = Annotated[dict[Text, Setting], Field(max_length=1000)]


class TraceStep(Record):
    """One step of the solver. `ratio` is ρ, or null where it was not computed."""

    gradient_norm: NonNegative
    radius: NonNegative | None
    ratio: float | None
    accepted: bool
    passes: NonNegative
    seconds: NonNegative


class LanczosRun(Record):
    """One run of `steps` (k) Lanczos steps, which spends its failure probability p_j even if it fails.

    On the `split` route the Ritz values are those of S in ∇²f = GGN + S + λI.
    """

    route: Literal["direct", "split"]
    steps: Annotated[int, Field(ge=1, lt=2**31)]
    failure_probability: Annotated[float, Field(gt=0, lt=1)]
    ritz_min: float
    ritz_max: float
    ritz_values: Annotated[tuple[float, ...], at_most(100_000)] = ()
    rounding_slack: NonNegative


class Curvature(Record):
    """The curvature that rule B2 needs at the final point.

    `floor` is μ₀, a lower bound on the Hessian's eigenvalues. `hessian_lipschitz` is M, a Lipschitz bound of
    the Hessian on a ball of `ball_radius`. `kantorovich` is h = M·G/μ₀².
    """

    floor: float
    runs: Annotated[tuple[LanczosRun, ...], at_most(1000)]
    hessian_lipschitz: NonNegative
    hessian_lipschitz_source: Literal["analytic", "sampled"]
    hessian_lipschitz_derivation: Text
    ball_radius: NonNegative
    kantorovich: NonNegative


class ClassDrift(Record):
    """The class drift: class counts in the original, erased and retained data (D, F and R).

    `kl_original_retained`, which is KL(P_D‖P_R), is null when a class vanished.
    """

    original: dict[Text, Count]
    erased: dict[Text, Count]
    retained: dict[Text, Count]
    kl_retained_original: NonNegative
    kl_original_retained: NonNegative | None


class Utility(Record):
    """F1 and loss on the holdout before the job and after it, with the noise included."""

    f1_before: float | None
    f1_after: float | None
    loss_before: float | None
    loss_after: float | None


class ParentOpening(Record):
    """Opens the certificate's commitment to version 0, whose digest is not public."""

    sha256: Sha256
    salt: Salt


class ReplayDirection(Record):
    """A noised projection of the parent's weights on a few public directions, for the replay audit.

    Coordinate i of the parent belongs to bucket i mod k, with a sign that SHAKE-256 derives from the
    certificate's id. For each of the k buckets, `values` holds the signed sum divided by the square root of
    the bucket's size, plus Gaussian noise of standard deviation `noise`, in units of `step`.
    """

    dimension: Annotated[int, Field(ge=1, lt=2**53)]
    noise: Positive
    step: Positive
    values: Annotated[tuple[Annotated[int, Field(gt=-(2**53), lt=2**53)], ...], at_most(10_000)]


class EvidenceRecord(Record):
    """The exact values behind one certificate.

    `distance` is the certified Δ. `posterior_distance` is the distance by B1 or B2 at the output of a
    baseline. `method` holds further figures of a baseline: its own bounds and the constants in them. `replay`
    lets the replay audit compare directions with the parent, whose weights are deleted. Older records have
    none.
    """

    size_factor: ClassVar[int] = 8

    format: Literal["urn:lethe:evidence:v1"] = "urn:lethe:evidence:v1"
    certificate_id: Uuid7
    rule: Rule
    gradient_norm: NonNegative
    rounding_error: NonNegative
    distance: NonNegative
    curvature: Curvature | None = None
    paper_distance: NonNegative | None = None
    posterior_distance: NonNegative | None = None
    method: Settings = Field(default_factory=dict)
    trace: Annotated[tuple[TraceStep, ...], at_most(10_000)]
    shift: ClassDrift | None
    utility: Utility | None
    solver: Settings
    seconds_total: NonNegative | None = None
    replay: ReplayDirection | None = None
    salt: Salt
    parent: ParentOpening | None = None

    def to_bytes(self) -> bytes:
        """Serialise the record. Fields that older records lack are omitted while they are empty."""
        values = self.model_dump(mode="json", by_alias=True)
        return canonical_json(
            {key: value for key, value in values.items() if key not in _LATER_FIELDS or value}
        )


def commit(record: EvidenceRecord) -> str:
    """Return the commitment to a record: SHA-256 over a domain, the record's 128-bit salt and the record."""
    return hashlib.sha256(_DOMAIN + bytes.fromhex(record.salt) + record.to_bytes()).hexdigest()


def commit_parent(opening: ParentOpening) -> str:
    """Return the commitment to the digest of version 0. Testing a guess needs the 128-bit salt."""
    salt, digest = bytes.fromhex(opening.salt), bytes.fromhex(opening.sha256)
    return hashlib.sha256(_PARENT_DOMAIN + salt + digest).hexdigest()

"""What a model is and what its owner wants: the JSON kept in `models.manifest`."""

from collections.abc import Mapping
from importlib.metadata import entry_points
from math import prod
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.db.policy import Policy, Positive
from certificate import privacy
from certificate.assurance import ANALYTIC_FAMILIES, CONVEX_FAMILIES, lowered
from certificate.predicate import Assurance, Rule
from certificate.records import Text
from certificate.vocabulary import RegistrationWarning

NETWORK_FAMILIES = ("mlp", "allcnn", "resnet18")
BUILT_IN_FAMILIES = (*sorted(CONVEX_FAMILIES), *NETWORK_FAMILIES)
FAMILY_GROUP = "lethe.families"


class Origins(BaseModel):
    """Where the parts of the objective come from; none may depend on rows that can be erased.

    Printed on certificates, hence their kind of text.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    features: Text = Field(
        max_length=500,
        description="How features were made, e.g. raw pixels divided by 16.",
        examples=["raw pixels divided by 16"],
    )
    constants: Text = Field(
        max_length=500,
        description="Where λ, scaling constants, the anchor and the policy's figures come from.",
        examples=["chosen before the data was collected"],
    )
    anchor: Text = Field(
        "zero",
        max_length=500,
        description="Where the uploaded anchor comes from; `zero` when there is none.",
        examples=["fitted on a public dataset"],
    )
    standardisation: Literal["none", "public data"] | None = Field(
        None,
        description="Where the means and variances come from by which features were centred and scaled: "
        "`public data` says that none of these rows had a part in them.",
        examples=["public data"],
    )

    @property
    def declared_features(self) -> str:
        """The declaration about features as a certificate prints it."""
        said = {"none": "; not standardised", "public data": "; standardised with constants from public data"}
        return self.features + said.get(self.standardisation or "", "")


Size = Annotated[int, Field(ge=1, le=65_536)]


class Network(BaseModel):
    """The shape of a network; `hidden` for mlp, `image` and `channels` for allcnn, the rest for resnet18."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    activation: Literal["gelu", "silu", "tanh", "softplus"] = Field(
        "gelu", description="Smooth: a kink has no second derivative to bound."
    )
    hidden: tuple[Size, ...] | None = Field(
        None, min_length=1, max_length=16, description="Widths of an mlp's hidden layers."
    )
    image: tuple[Size, Size, Size] | None = Field(
        None, description="Channels, height, width of a row of an allcnn or resnet18."
    )
    channels: tuple[tuple[Size, Annotated[int, Field(ge=1, le=4)]], ...] | None = Field(
        None, min_length=1, max_length=16, description="Channels and stride of an allcnn's 3x3 layers."
    )
    base_width: Size | None = Field(None, description="Width of a resnet18's first stage.")
    groups: Size | None = Field(None, description="Groups of a resnet18's normalisation.")

    @property
    def given(self) -> frozenset[str]:
        return frozenset(self.model_dump(exclude_none=True)) - {"activation"}


_NEEDED = {
    "mlp": frozenset({"hidden"}),
    "allcnn": frozenset({"image", "channels"}),
    "resnet18": frozenset({"image", "base_width", "groups"}),
}


class Manifest(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    family: str = Field(
        pattern=r"^[a-z0-9][a-z0-9_-]{0,49}$",
        description="Kind of model: softmax, logistic, ridge, or a plug-in's name.",
        examples=["softmax"],
    )
    width: int = Field(ge=1, le=10_000_000, description="Features per row.")
    classes: int | None = Field(None, ge=2, le=100_000, description="Classes of a softmax or a network.")
    network: Network | None = Field(None, description="Shape of an mlp, allcnn or resnet18.")
    bias: bool = Field(True, description="Whether a constant feature is added.")
    lam: Positive = Field(alias="lambda", ge=1e-30, le=1e6, description="λ, on every parameter, biases too.")
    origins: Origins
    policy: Policy = Field(default_factory=Policy)

    @model_validator(mode="after")
    def _classes_fit_family(self) -> Self:
        classifier = self.family == "softmax" or self.family in NETWORK_FAMILIES
        if self.family in BUILT_IN_FAMILIES and classifier != (self.classes is not None):
            raise ValueError("classes is needed for softmax and networks, and only there")
        return self

    @model_validator(mode="after")
    def _network_fits_family(self) -> Self:
        if self.family not in NETWORK_FAMILIES:
            if self.network is not None and self.family in BUILT_IN_FAMILIES:
                raise ValueError(f"a {self.family} model has no network")
            return self
        given = frozenset() if self.network is None else self.network.given
        if given != _NEEDED[self.family]:
            needed = " and ".join(sorted(_NEEDED[self.family]))
            raise ValueError(f"the network of a {self.family} is described by {needed}, and nothing else")
        assert self.network is not None
        if self.network.image is not None and prod(self.network.image) != self.width:
            raise ValueError("width is not the number of pixels of network.image")
        if self.network.groups is not None and (self.network.base_width or 0) % self.network.groups:
            raise ValueError("network.base_width is not a multiple of network.groups")
        if not self.bias:
            raise ValueError("a network's layers have biases: bias cannot be false")
        return self

    @model_validator(mode="after")
    def _delta_outlasts_curvature(self) -> Self:
        if self.policy.delta - self.failure_probability < privacy.SMALLEST_DELTA:
            raise ValueError("delta is too small for a network: measuring its curvature would use it up")
        return self

    @model_validator(mode="after")
    def _method_fits_family(self) -> Self:
        """What a verifier knows of a family decides what may be claimed for it."""
        method, convex = self.policy.method, self.family in CONVEX_FAMILIES
        if (
            method == "tr"
            and not convex
            and self.family not in ANALYTIC_FAMILIES
            and not self.policy.heuristic
        ):
            raise ValueError(
                f"the curvature of the family {self.family} can only be sampled: set the policy's method to "
                "retrain, or heuristic to true for an estimate without a guarantee"
            )
        if method == "guo2020" and not convex:
            raise ValueError("guo2020 needs a loss convex in the weights")
        return self

    @property
    def rule(self) -> Rule:
        """By which the policy's method is bounded."""
        if self.policy.method != "tr":
            return self.policy.method
        return "B1" if self.family in CONVEX_FAMILIES else "B2"

    @property
    def assurance(self) -> Assurance:
        if self.rule in ("B1", "retrain"):
            return "proved"
        if self.rule != "B2":
            return "as-published"
        return "conditional" if self.family in ANALYTIC_FAMILIES else "heuristic"

    @property
    def failure_probability(self) -> float:
        """p: what measuring curvature may take of δ."""
        if self.rule != "B2":
            return 0.0
        return self.policy.curvature_probability or max(self.policy.delta / 1e4, privacy.SMALLEST_DELTA)

    @property
    def sigma(self) -> float:
        """Fixed before the data is looked at."""
        return self.sigma_for(self.policy.target_distance)

    @property
    def calibration(self) -> Literal["analytic", "classical"]:
        """Published methods use the classical formula, which is proved for ε < 1 and for no other."""
        return "classical" if self.assurance == "as-published" and self.policy.epsilon < 1 else "analytic"

    def sigma_for(self, distance: float) -> float:
        """A published method comes here with the distance it claims, after its run; the others with Δ*."""
        if self.calibration == "classical":
            return privacy.classical_sigma(
                epsilon=self.policy.epsilon, delta=self.policy.delta_left(0.0), distance=distance
            )
        return self.policy.sigma_after(self.failure_probability, distance)

    @property
    def release_shift(self) -> float:
        """s = Δ/σ of one release by the policy's method, whatever the distance."""
        return 0.0 if self.rule == "retrain" else self.policy.target_distance / self.sigma


_LOOK_STANDARDISED = "the features have means near 0 and variances near 1"


def unresolved_warnings(
    manifest: Manifest, report: Mapping[str, Any] | None
) -> tuple[RegistrationWarning, ...]:
    """Return what registration noticed about the objective and no declaration of the owner has answered.

    Reports from before there were codes say the same in a sentence.
    """
    if report is None or manifest.origins.standardisation == "public data":
        return ()
    old = [text for text in report.get("warnings", ()) if str(text).startswith(_LOOK_STANDARDISED)]
    codes = report.get("warning_codes", ["features-look-standardised"] if old else [])
    return tuple(code for code in get_args(RegistrationWarning) if code in codes)


def expected_assurance(
    manifest: Manifest, report: Mapping[str, Any] | None, *, changed_after_refusal: bool = False
) -> Assurance:
    """Return the tier that the next release by the policy's method can have at most."""
    return lowered(
        manifest.assurance,
        changed_after_refusal=changed_after_refusal,
        warnings=unresolved_warnings(manifest, report),
    )


def assurance_notes(
    manifest: Manifest, report: Mapping[str, Any] | None, *, changed_after_refusal: bool = False
) -> list[str]:
    """Return why the next release has a lower tier than the method gives, and what would raise it."""
    notes = []
    if "features-look-standardised" in unresolved_warnings(manifest, report):
        notes.append(
            "The features look standardised by the training rows themselves, which erasing a row would not "
            "undo. If the constants come from public data, declare origins.standardisation as public data; "
            "otherwise standardise with public constants and register the model again."
        )
    if changed_after_refusal:
        notes.append(
            "ε, δ, Δ* or λ was changed after an attempt on the same rows was refused or held, and the next "
            "certificate says so. Go back to the earlier values, with the method or the fallback retrain "
            "where they cannot be certified; or choose new ones once the next version is published."
        )
    return notes


def known_families() -> frozenset[str]:
    """Built-in names and those of installed plug-ins; a plug-in's code is not imported for its name."""
    return frozenset(BUILT_IN_FAMILIES) | {found.name for found in entry_points(group=FAMILY_GROUP)}

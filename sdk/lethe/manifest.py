"""The manifest of a model: what it is, where its objective comes from, and its policy.

The service checks manifests with these rules, and `lethe model validate` does so before anything is uploaded.
"""

import difflib
import re
from math import prod
from typing import Annotated, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

from lethe.certificate import privacy
from lethe.certificate.assurance import ANALYTIC_FAMILIES, CONVEX_FAMILIES, linearisation_of
from lethe.certificate.predicate import Assurance, Linearisation, Rule
from lethe.certificate.records import LayerName
from lethe.certificate.representation import Representation
from lethe.certificate.validation import PLAIN_TEXT
from lethe.policy import Policy, Positive

NETWORK_FAMILIES = ("mlp", "allcnn", "resnet18")
BUILT_IN_FAMILIES = (*sorted(CONVEX_FAMILIES), *NETWORK_FAMILIES)


PlainText = Annotated[str, StringConstraints(pattern=PLAIN_TEXT)]


class Origins(BaseModel):
    """Where the parts of the objective come from. None of them may depend on rows that can be erased.

    These declarations are printed on certificates, so they are limited to text that a certificate can hold.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    features: PlainText = Field(
        max_length=500,
        description="How the features were computed, such as raw pixels divided by 16.",
        examples=["raw pixels divided by 16"],
    )
    constants: PlainText = Field(
        max_length=500,
        description="Where λ, scaling constants, the anchor and the figures of the policy come from.",
        examples=["chosen before the data was collected"],
    )
    anchor: PlainText = Field(
        "zero",
        max_length=500,
        description="Where the uploaded anchor comes from. `zero` if there is none.",
        examples=["fitted on a public dataset"],
    )
    standardisation: Literal["none", "public data"] | None = Field(
        None,
        description="Where the means and variances used to centre and scale the features come from. "
        "`public data` declares that none of these rows were used to compute them.",
        examples=["public data"],
    )

    @property
    def declared_features(self) -> str:
        """The declaration about features as it is printed on a certificate."""
        suffix = {
            "none": "; not standardised",
            "public data": "; standardised with constants from public data",
        }
        return self.features + suffix.get(self.standardisation or "", "")


Size = Annotated[int, Field(ge=1, le=65_536)]


_FAMILY = re.compile(r"[a-z0-9][a-z0-9_-]{0,49}")


def _describe_families(name: str) -> str:
    """Say which families exist, and which is probably meant.

    >>> _describe_families("sofmax")
    'Did you mean softmax? The built-in families are logistic, ridge, softmax, mlp, allcnn and resnet18.'
    """
    near = difflib.get_close_matches(name.lower(), BUILT_IN_FAMILIES, n=1)
    guess = f"Did you mean {near[0]}? " if near else ""
    *others, last = BUILT_IN_FAMILIES
    return f"{guess}The built-in families are {', '.join(others)} and {last}."


def _describe_uncertain(family: str) -> str:
    """Say why a family cannot be unlearned with a guarantee as it is, and what can be done."""
    choices = (
        "set network.linearised to true (certificates are then proved, for any architecture), the policy's "
        "method to retrain, or its heuristic to true for an estimate without a guarantee"
    )
    if family in BUILT_IN_FAMILIES:
        return f"no bound is known on how fast the curvature of a {family} changes: {choices}"
    return (
        f"{family} is not a built-in family. {_describe_families(family)} A PyTorch module can be an mlp, an "
        "allcnn or a resnet18, or a plug-in on the workers. No bound is known on how fast the curvature of a "
        f"plug-in changes: for one, {choices}"
    )


def _check_family(value: object) -> object:
    if isinstance(value, str) and not _FAMILY.fullmatch(value):
        raise ValueError(
            "the name of a family has up to 50 of the characters a-z, 0-9, '_', '-'. "
            + _describe_families(value).removesuffix(".")
        )
    return value


def _check_activation(value: object) -> object:
    if isinstance(value, str) and value not in ACTIVATIONS:
        near = difflib.get_close_matches(value.lower(), ACTIVATIONS, n=1)
        guess = f"Did you mean {near[0]}? " if near else ""
        raise ValueError(
            f"there is no such activation. {guess}There are gelu, silu, tanh and softplus, which are smooth, "
            "and relu, which has a kink and needs linearised = true. A linearised plug-in can have any other"
        )
    return value


ActivationName = Annotated[
    Literal["gelu", "silu", "tanh", "softplus", "relu"], BeforeValidator(_check_activation)
]
ACTIVATIONS: tuple[str, ...] = get_args(get_args(ActivationName)[0])


class Network(BaseModel):
    """The shape of a network.

    An mlp needs `hidden`, an allcnn `image` and `channels`, a resnet18 `image`, `base_width` and `groups`.
    The network of a plug-in has no shape here, but it can be linearised like any other.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    linearised: bool = Field(
        False,
        description="Whether the network is replaced by its first-order expansion at the anchor. Its outputs "
        "are then affine in the weights, and certificates are proved by rule B1 for any architecture.",
    )
    layers: tuple[LayerName, ...] | None = Field(
        None,
        min_length=1,
        max_length=64,
        description="The layers of a linearised network that are trained. By default all are.",
        examples=[["layers.1", "head"]],
    )
    activation: ActivationName = Field(
        "gelu",
        description="The activation. ReLU has a kink and no second derivative, so a network with it must be "
        "linearised.",
    )
    hidden: tuple[Size, ...] | None = Field(
        None, min_length=1, max_length=16, description="The widths of the hidden layers of an mlp."
    )
    image: tuple[Size, Size, Size] | None = Field(
        None, description="Channels, height and width of a row of an allcnn or resnet18."
    )
    channels: tuple[tuple[Size, Annotated[int, Field(ge=1, le=4)]], ...] | None = Field(
        None, min_length=1, max_length=16, description="Channels and stride of the 3x3 layers of an allcnn."
    )
    base_width: Size | None = Field(None, description="The width of the first stage of a resnet18.")
    groups: Size | None = Field(None, description="The groups of the normalisation of a resnet18.")

    @property
    def fields_set(self) -> frozenset[str]:
        """The fields that describe the shape and have a value."""
        return frozenset(self.model_dump(exclude_none=True)) - {"activation", "linearised", "layers"}

    @model_validator(mode="after")
    def _linearised_where_needed(self) -> Self:
        if self.activation == "relu" and not self.linearised:
            raise ValueError(
                "relu has a kink, so the network has no second derivative, which training and its bounds "
                "need. Set linearised to true, which allows any activation, or choose gelu, silu, tanh or "
                "softplus"
            )
        if self.layers is not None and not self.linearised:
            raise ValueError("layers can only be chosen for a linearised network: set linearised to true")
        if self.layers is not None and len(set(self.layers)) != len(self.layers):
            raise ValueError("the same layer is named twice in layers")
        return self


_NEEDED = {
    "mlp": frozenset({"hidden"}),
    "allcnn": frozenset({"image", "channels"}),
    "resnet18": frozenset({"image", "base_width", "groups"}),
}


Annotation = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
_ANNOTATION_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
MAX_ANNOTATIONS = 1 << 18  # characters of all annotations together


class Manifest(BaseModel):
    """The manifest of a model."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    family: Annotated[str, BeforeValidator(_check_family)] = Field(
        pattern=r"^[a-z0-9][a-z0-9_-]{0,49}$",
        description="The family: softmax, logistic, ridge, mlp, allcnn, resnet18, or a plug-in's name.",
        examples=["softmax"],
    )
    width: int = Field(
        ge=1,
        le=10_000_000,
        description="The number of features per row that the model is fitted on: with a representation, the "
        "numbers that it gives for a row.",
    )
    classes: int | None = Field(
        None, ge=2, le=100_000, description="The number of classes of a softmax or a network."
    )
    network: Network | None = Field(None, description="The shape of an mlp, allcnn or resnet18.")
    representation: Representation | None = Field(
        None,
        description="The public function that turns raw rows (vectors, images or texts) into features. "
        "Without one, the column `features` is used as it is.",
    )
    bias: bool = Field(True, description="Whether a constant feature is added.")
    lam: Positive = Field(
        alias="lambda",
        ge=1e-30,
        le=1e6,
        description="λ, the strength of the regularisation of every parameter, including biases.",
    )
    origins: Origins
    policy: Policy = Field(default_factory=Policy)
    annotations: dict[str, Annotation] = Field(
        default_factory=dict,
        max_length=16,
        description="Notes for your own programs, such as the names of the classes. They are stored with the "
        "model and have no effect. They are not printed on certificates.",
        examples=[{"classes": '["benign", "malignant"]'}],
    )

    @model_validator(mode="after")
    def _annotations_are_short(self) -> Self:
        if not all(map(_ANNOTATION_NAME.fullmatch, self.annotations)):
            raise ValueError(
                "the name of an annotation has up to 63 of the characters a-z, 0-9, '.', '_', '-'"
            )
        if sum(map(len, self.annotations.values())) > MAX_ANNOTATIONS:
            raise ValueError(f"the annotations have more than {MAX_ANNOTATIONS:,} characters together")
        return self

    @model_validator(mode="after")
    def _classes_fit_family(self) -> Self:
        classifier = self.family == "softmax" or self.family in NETWORK_FAMILIES
        if self.family in BUILT_IN_FAMILIES and classifier != (self.classes is not None):
            raise ValueError("classes is needed for softmax and networks, and for no other family")
        return self

    @model_validator(mode="after")
    def _network_fits_family(self) -> Self:
        if self.family not in NETWORK_FAMILIES:
            if self.network is not None and self.family in BUILT_IN_FAMILIES:
                raise ValueError(f"a {self.family} model has no network")
            return self
        fields = frozenset() if self.network is None else self.network.fields_set
        if fields != _NEEDED[self.family]:
            *others, last = sorted(_NEEDED[self.family])
            needed = f"{', '.join(others)} and {last}" if others else last
            raise ValueError(f"the network of the family {self.family} is described by {needed} alone")
        assert self.network is not None
        if self.network.image is not None and prod(self.network.image) != self.width:
            raise ValueError("width must be the number of pixels of network.image")
        if self.network.groups is not None and (self.network.base_width or 0) % self.network.groups:
            raise ValueError("network.base_width must be a multiple of network.groups")
        if not self.bias:
            raise ValueError("the layers of a network have biases, so bias cannot be false")
        return self

    @model_validator(mode="after")
    def _delta_outlasts_curvature(self) -> Self:
        if self.policy.delta - self.failure_probability < privacy.SMALLEST_DELTA:
            raise ValueError(
                "delta is too small for a network: measuring its curvature would use it up; use a larger one"
            )
        return self

    @model_validator(mode="after")
    def _method_fits_family(self) -> Self:
        """Allow a method only if a verifier can check its claim for this family."""
        method, convex = self.policy.method, self.family in CONVEX_FAMILIES
        if self.linearised:
            if method not in ("tr", "retrain"):
                raise ValueError(f"{method} is not available for linearised networks: use tr or retrain")
            return self
        if (
            method == "tr"
            and not convex
            and self.family not in ANALYTIC_FAMILIES
            and not self.policy.heuristic
        ):
            raise ValueError(_describe_uncertain(self.family))
        if method == "guo2020" and not convex:
            raise ValueError(
                "guo2020 needs a loss that is convex in the weights; choose another method or family"
            )
        return self

    @property
    def rule(self) -> Rule:
        """The rule that bounds the distance of the policy's method."""
        if self.policy.method != "tr":
            return self.policy.method
        return "B1" if self.family in CONVEX_FAMILIES or self.linearised else "B2"

    @property
    def linearised(self) -> bool:
        """Whether the model is a network that is linearised at its anchor."""
        return self.network is not None and self.network.linearised

    @property
    def linearisation(self) -> Linearisation | None:
        """How the network is linearised, as a certificate states it, or None."""
        if self.network is None or not self.network.linearised:
            return None
        return linearisation_of(self.family, self.network.layers or ())

    @property
    def assurance(self) -> Assurance:
        """The level of assurance that the policy's method gives for this family."""
        if self.rule in ("B1", "retrain"):
            return "proved"
        if self.rule != "B2":
            return "as-published"
        return "conditional" if self.family in ANALYTIC_FAMILIES else "heuristic"

    @property
    def failure_probability(self) -> float:
        """p, the part of δ that measuring curvature may use up."""
        if self.rule != "B2":
            return 0.0
        return self.policy.curvature_probability or max(self.policy.delta / 1e4, privacy.SMALLEST_DELTA)

    @property
    def sigma(self) -> float:
        """σ, the standard deviation of the noise. It is fixed before anything is computed on the data."""
        return self.sigma_for(self.policy.target_distance)

    @property
    def calibration(self) -> Literal["analytic", "classical"]:
        """The formula for σ. Baselines use the classical one, which is proved for ε < 1 only."""
        return "classical" if self.assurance == "as-published" and self.policy.epsilon < 1 else "analytic"

    def sigma_for(self, distance: float) -> float:
        """Return σ for a distance: the one that a baseline claims after its run, or Δ* for other methods."""
        if self.calibration == "classical":
            return privacy.classical_sigma(
                epsilon=self.policy.epsilon, delta=self.policy.delta_left(0.0), distance=distance
            )
        return self.policy.sigma_after(self.failure_probability, distance)

    @property
    def release_shift(self) -> float:
        """The shift s = Δ/σ of one release by the policy's method. It does not depend on the distance."""
        return 0.0 if self.rule == "retrain" else self.policy.target_distance / self.sigma

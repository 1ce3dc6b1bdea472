"""The effect of a release's noise on a classifier, estimated before registration.

Only public figures are used: ε, δ and Δ*, λ, the size of the model, and the length of rows from which nobody
will be erased. A choice of Δ* that follows this advice therefore does not depend on anyone who can be erased.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from lethe.policy import Policy

NOTICEABLE = 0.5  # the standard deviation of the noise on a score from which predictions change often
HARMLESS = 0.1  # the standard deviation that a suggested Δ* leads to, at most
HOLDOUT = "the holdout"


class NoiseTooLarge(UserWarning):
    """The noise of a release will probably spoil the model. The message says what to change."""


class NoiseUnknown(UserWarning):
    """The policy leaves Δ* at its default, and nothing public says whether that suits the rows."""


@dataclass(frozen=True)
class PublicRows:
    """The length of feature vectors, known without looking at rows that can be erased."""

    length: float
    described: str
    """What these rows are, as in `the scores of {described}`."""


def declared_rows(length: float) -> PublicRows:
    """Return the length that the owner declared."""
    return PublicRows(length, f"rows of the length {_plain(length)}")


def rows_like(features: Any, described: str) -> PublicRows:
    """Return the root mean square of the lengths of public feature vectors. (rows, width)"""
    import numpy as np

    length = float(np.sqrt(np.mean(np.sum(np.square(np.asarray(features, np.float64)), axis=1))))
    return PublicRows(length, f"{described}, whose features have a length of about {_plain(length)},")


def warn_about_noise(manifest: Mapping[str, Any], rows: PublicRows | None, *, signed: bool = False) -> None:
    """Warn with `NoiseTooLarge` if the noise will probably spoil the classifier that a manifest describes.

    Warn with `NoiseUnknown` if that cannot be told because `rows` is None, and nobody has chosen Δ*.
    `signed` marks a ridge regression on the targets -1 and 1. Other regressions are not judged, because the
    scale of their targets is not public.
    """
    loss = _loss_at_zero(manifest, signed=signed)
    try:
        policy = Policy.model_validate(manifest["policy"])
    except ValidationError:  # the service refuses it, and says why
        return
    if loss is None:
        return
    advice = "To compare settings on a holdout before you register, use `lethe model advise`."
    message = _compare_with_scores(policy, manifest, rows) or _compare_with_weights(policy, manifest, loss)
    if message:
        warnings.warn(f"{message} {advice}", NoiseTooLarge, stacklevel=3)
    elif rows is None and "target_distance" not in manifest["policy"]:
        warnings.warn(f"{_describe_unknown(policy)} {advice}", NoiseUnknown, stacklevel=3)


def _loss_at_zero(manifest: Mapping[str, Any], *, signed: bool) -> float | None:
    """Return the mean loss of a classifier whose weights are all zero."""
    if manifest["family"] == "softmax":
        return math.log(manifest["classes"])
    if manifest["family"] == "logistic":
        return math.log(2)
    return 0.5 if signed else None


def _compare_with_scores(policy: Policy, manifest: Mapping[str, Any], rows: PublicRows | None) -> str:
    """Compare the noise with scores: for a row x, its deviation is σ·√(‖x‖² + 1), with 1 for the bias."""
    if rows is None:
        return ""
    noise = policy.sigma * math.hypot(rows.length, float(manifest.get("bias", True)))
    if noise < NOTICEABLE:
        return ""
    return (
        f"{_amount(policy)} It changes the scores of {rows.described} by about ±{noise:.2g}, which is enough "
        f"to change predictions. {_remedy(policy, noise)} Smaller features help, too."
    )


def _compare_with_weights(policy: Policy, manifest: Mapping[str, Any], loss: float) -> str:
    """Compare the noise with the weights: λ/2·‖w‖² is at most the loss at zero, whatever the rows are."""
    if "anchor" in manifest.get("origins", {}):
        return ""  # λ pulls towards the anchor, so the weights may be longer
    longest = math.sqrt(2 * loss / manifest["lambda"])
    outputs = manifest.get("classes") or 1
    noise = policy.sigma * math.sqrt(outputs * (manifest["width"] + manifest.get("bias", True))) / longest
    if noise < NOTICEABLE:
        return ""
    return (
        f"{_amount(policy)} With λ = {manifest['lambda']:.3g}, the weights are at most {longest:.3g} long, "
        f"and the noise is {noise:.2g} times as long. {_remedy(policy, noise)} A smaller λ helps, too."
    )


def _describe_unknown(policy: Policy) -> str:
    return (
        f"{_amount(policy)} Feature vectors longer than {_plain(NOTICEABLE / policy.sigma)} turn it into "
        "enough noise on scores to change predictions. How long yours are is not known here without looking "
        "at rows that can be erased. Pass row_length=, or choose policy={'target_distance': …}: the noise is "
        "proportional to it, and the guarantee stays the same."
    )


def _plain(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _amount(policy: Policy) -> str:
    return (
        f"With Δ* = {policy.target_distance:g}, ε = {policy.epsilon:g} and δ = {policy.delta:g}, the noise "
        f"on each weight has a standard deviation of {policy.sigma:.2g}."
    )


def _remedy(policy: Policy, noise: float) -> str:
    """Suggest a power of ten for Δ*. The noise is proportional to it."""
    distance = 10.0 ** math.floor(math.log10(policy.target_distance * HARMLESS / noise))
    return (
        f"For less noise under the same guarantee, pass policy={{'target_distance': {distance:g}}}. The "
        "solver then takes a few more steps."
    )

"""Per-example membership inference after unlearning (U-LiRA).

Hayes et al. 2024, after Carlini et al. 2022.

The attacker runs the whole pipeline many times with random halves of the rows under attack. For each row he
learns how the model answers when the row was learned and then unlearned, and when it was never present. If
the pipeline retrains, the mask leaves no trace and the AUC is one half. Without unlearning the attack is
plain LiRA.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from worker.evaluation import ranking
from worker.evaluation.ranking import AttackResult, Floats, Ranking

Mask: TypeAlias = NDArray[np.bool_]
Pipeline: TypeAlias = Callable[[Mask], Floats]
"""Maps the rows that are learned and then unlearned (n,) to the model's confidence in each label (n,).

The confidence should be roughly normal over runs: a margin or log p/(1 - p), not a probability."""

_PRIOR_DEGREES = 4.0  # weight of the variance common to all rows, in degrees of freedom


@dataclass(frozen=True, slots=True)
class LiraResult:
    """Result of the attack and the number of rows and models it used."""

    attack: AttackResult
    rows: int
    shadows: int
    targets: int


def u_lira(
    pipeline: Pipeline,
    *,
    rows: int,
    shadows: int,
    targets: int = 2,
    seed: int,
    replicates: int = 1000,
    confidence: float = 0.95,
) -> LiraResult:
    """Attack `targets` models with what `shadows` other models reveal. Both numbers must be even.

    Masks come in pairs: a mask and its complement put each row into exactly half of the shadows. The attacked
    models are never among the shadows. Otherwise the side that a row is on would be estimated from one run
    less than the other, and a pipeline that leaks nothing would score below one half. Intervals resample
    rows, with all their targets.
    """
    if shadows < 4 or targets < 2 or shadows % 2 or targets % 2:
        raise ValueError("shadows must be even and at least 4, targets even and at least 2")
    rng = np.random.default_rng(seed)
    shadow_masks, shadow_outputs = _run(pipeline, _masks(rng, shadows, rows))
    target_masks, target_outputs = _run(pipeline, _masks(rng, targets, rows))
    scores = log_likelihood_ratios(shadow_masks, shadow_outputs, target_outputs)
    attack = _result(scores, target_masks, seed=seed, replicates=replicates, confidence=confidence)
    return LiraResult(attack, rows, shadows, targets)


def log_likelihood_ratios(masks: NDArray[np.bool_], outputs: Floats, attacked: Floats) -> Floats:
    """Return log N(x; μ_in, v) - log N(x; μ_out, v) row by row. (s, n), (s, n), (t, n) -> (t, n)

    With few shadows the variance of a single row is poorly known, so it is shrunk towards the mean over all
    rows.
    """
    half = masks.sum(0)
    inside = (outputs * masks).sum(0) / half
    outside = (outputs * ~masks).sum(0) / (len(masks) - half)
    within = (outputs - np.where(masks, inside, outside)) ** 2
    degrees = len(masks) - 2
    own = within.sum(0) / degrees
    variance = (degrees * own + _PRIOR_DEGREES * own.mean()) / (degrees + _PRIOR_DEGREES)
    floor = np.finfo(np.float64).eps * np.maximum(
        1.0, np.abs(outputs).max(0)
    )  # for runs that agree to rounding
    return np.asarray((inside - outside) * (attacked - (inside + outside) / 2) / (variance + floor**2))


def _masks(rng: np.random.Generator, count: int, rows: int) -> NDArray[np.bool_]:
    """Return random halves, each followed by its complement. -> (count, rows)"""
    first = np.argsort(rng.random((count // 2, rows)), axis=1) < rows // 2
    return np.stack([first, ~first], axis=1).reshape(count, rows)


def _run(pipeline: Pipeline, masks: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], Floats]:
    outputs = np.stack([pipeline(mask.copy()) for mask in masks])
    if outputs.shape != masks.shape:
        raise ValueError(f"a pipeline must return one output per row, got {outputs.shape[1:]}")
    return masks, outputs


def _result(
    scores: Floats, masks: NDArray[np.bool_], *, seed: int, replicates: int, confidence: float
) -> AttackResult:
    owner = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    owners = np.concatenate([owner[masks], owner[~masks]])
    ranked = Ranking(scores[masks], scores[~masks])
    rates = ranking.measurable(int((~masks).sum()))
    draws = ranking.resamples(scores.shape[1], replicates=replicates, seed=seed)
    drawn = np.concatenate([ranked.figures(weights[:, owners], rates) for weights in draws], axis=1)
    whole = ranked.figures(np.ones((1, scores.size)), rates)[:, 0]
    return ranking.attack_result(whole, drawn, rates, confidence)

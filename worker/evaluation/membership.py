"""Membership inference on one model after unlearning (U-MIA; Hayes et al. 2024, "population" attacks).

An attacker who can query the model tries to tell erased rows from rows it never saw, of the same class mix.
Two attacks, one on the loss alone and one fitted to loss and margin, run on the unlearned and on the
retrained model with the same rows, folds and bootstrap draws. The failure of a weak attack proves nothing.
`worker.evaluation.lira` has a stronger attack, and the certificate rests on neither.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worker.engine.families import Logistic
from worker.engine.rows import ArrayRows
from worker.engine.trust_region import train
from worker.evaluation import ranking
from worker.evaluation.ranking import AttackResult, Estimate, Floats, Ranking
from worker.evaluation.utility import Holdout

_PENALTY = 1e-2  # on standardised features; three parameters need little
_ATTACK_TARGET = 1e-6  # distance to the minimiser of the attack


@dataclass(frozen=True, slots=True)
class RowOutputs:
    """What an attacker sees of a model at labelled rows."""

    labels: Floats  # (n,)
    losses: Floats  # (n,)
    margins: Floats  # (n,): z_y - max_{c≠y} z_c; ±z for one logit; -|z - y| for ridge


@dataclass(frozen=True, slots=True)
class ModelResult:
    """Results of both attacks on one model."""

    loss: AttackResult  # score = -loss; nothing fitted
    fitted: AttackResult  # cross-validated logistic regression on loss and margin


@dataclass(frozen=True, slots=True)
class MembershipReport:
    """Both attacks on both models.

    Differences are unlearned minus retrained, so positive values mean a leak.
    """

    members: int
    unseen: int
    unlearned: ModelResult
    retrained: ModelResult
    delta_auc_loss: Estimate
    delta_auc_fitted: Estimate
    confidence: float


@dataclass(frozen=True, slots=True)
class AttackSettings:
    """Cross-validation folds, bootstrap replicates and seed of the attacks."""

    folds: int = 5
    replicates: int = 1000
    confidence: float = 0.95
    seed: int = 0


def row_outputs(holdout: Holdout, w: Tensor, *, classifier: bool = True) -> RowOutputs:
    """Return loss and margin of each row under the model w (d,)."""
    labels, losses, margins = [], [], []
    for x, y in holdout.chunks():
        z = holdout.logits(w, x)
        loss, margin = _classifier(z, y) if classifier else _regressor(z, y)
        labels.append(y.to(torch.float64, copy=True))
        losses.append(loss)
        margins.append(margin)
    return RowOutputs(*(torch.cat(parts).cpu().numpy() for parts in (labels, losses, margins)))


def match_classes(
    members: NDArray[np.generic], unseen: NDArray[np.generic], *, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pick equally many rows of each class from both sides, as many as the scarcer side has.

    Returns ascending indices into both. Otherwise the attack would tell classes apart, not members.
    """
    rng = np.random.default_rng(seed)
    picks: tuple[list[NDArray[np.int64]], list[NDArray[np.int64]]] = ([], [])
    for label in np.intersect1d(members, unseen):
        places = [np.flatnonzero(side == label) for side in (members, unseen)]
        size = min(len(place) for place in places)
        for chosen, place in zip(picks, places, strict=True):
            chosen.append(rng.choice(place, size, replace=False))
    if not picks[0]:
        raise ValueError("members and unseen rows have no class in common")
    return np.sort(np.concatenate(picks[0])), np.sort(np.concatenate(picks[1]))


def membership_report(
    forget: Holdout,
    unseen: Holdout,
    *,
    unlearned: Tensor,
    retrained: Tensor,
    classifier: bool = True,
    settings: AttackSettings | None = None,
) -> MembershipReport:
    """Run both attacks on both models.

    `forget` holds the erased rows, `unseen` rows that no model was trained on.
    """
    settings = settings or AttackSettings()
    sides = [
        [row_outputs(rows, w, classifier=classifier) for rows in (forget, unseen)]
        for w in (unlearned, retrained)
    ]
    strata = [side.labels if classifier else np.zeros(len(side.labels)) for side in sides[0]]
    inside, outside = match_classes(strata[0], strata[1], seed=settings.seed)
    models = [
        _scores(_features(members)[inside], _features(others)[outside], settings) for members, others in sides
    ]
    loss, delta_loss = _results([model[0] for model in models], len(inside), settings)
    fitted, delta_fitted = _results([model[1] for model in models], len(inside), settings)
    return MembershipReport(
        members=len(inside),
        unseen=len(outside),
        unlearned=ModelResult(loss[0], fitted[0]),
        retrained=ModelResult(loss[1], fitted[1]),
        delta_auc_loss=delta_loss,
        delta_auc_fitted=delta_fitted,
        confidence=settings.confidence,
    )


def cross_validated_scores(features: Floats, members: NDArray[np.bool_], *, folds: int, seed: int) -> Floats:
    """Return each row's log-odds of membership from a classifier fitted without its fold.

    (n, k), (n,) -> (n,)

    Every fold has the same share of members, up to one row, so that pooled scores are comparable.
    """
    smallest = int(min(members.sum(), (~members).sum()))
    folds = min(folds, smallest)
    if folds < 2:
        raise ValueError("the attack needs at least two members and two unseen rows")
    rng = np.random.default_rng(seed)
    fold = np.empty(len(members), dtype=np.int64)
    for group in (members, ~members):
        places = rng.permutation(np.flatnonzero(group))
        fold[places] = np.arange(len(places)) % folds
    scores = np.empty(len(members))
    for index in range(folds):
        held = fold == index
        scores[held] = _fit_and_score(features[~held], members[~held], features[held])
    return scores


def _fit_and_score(known: Floats, members: NDArray[np.bool_], held: Floats) -> Floats:
    centre, spread = known.mean(0), known.std(0)
    spread = np.where(spread > 1e-12 * (1 + np.abs(centre)), spread, 1.0)
    objective = Logistic(ArrayRows((known - centre) / spread, members.astype(np.int64)), _PENALTY)
    w = train(objective, target=_ATTACK_TARGET).w
    return np.asarray(objective.logits(w, torch.from_numpy((held - centre) / spread))[0].numpy())


def _scores(members: Floats, unseen: Floats, settings: AttackSettings) -> tuple[Floats, Floats]:
    """Return the scores of the loss attack and of the fitted attack, members first."""
    features = np.concatenate([members, unseen])
    inside = np.arange(len(features)) < len(members)
    fitted = cross_validated_scores(features, inside, folds=settings.folds, seed=settings.seed + 1)
    return -features[:, 0], fitted


def _results(
    scores: list[Floats], members: int, settings: AttackSettings
) -> tuple[list[AttackResult], Estimate]:
    """Return the result of one attack on each of two models, and ΔAUC.

    Replicates resample the same rows for both.
    """
    rankings = [Ranking(score[:members], score[members:]) for score in scores]
    unseen = len(scores[0]) - members
    rates = ranking.measurable(unseen)

    def figures(weights: Floats) -> Floats:  # -> (models, 1 + rates, B)
        return np.stack([ranked.figures(weights, rates) for ranked in rankings])

    whole = figures(np.ones((1, members + unseen)))[..., 0]
    draws = ranking.resamples(members, unseen, replicates=settings.replicates, seed=settings.seed + 2)
    drawn = np.concatenate([figures(weights) for weights in draws], axis=-1)
    results = [
        ranking.attack_result(whole[model], drawn[model], rates, settings.confidence)
        for model in range(len(scores))
    ]
    delta = drawn[0, 0] - drawn[1, 0]
    return results, ranking.interval(float(whole[0, 0] - whole[1, 0]), delta, settings.confidence)


def _features(outputs: RowOutputs) -> Floats:  # -> (n, 2)
    return np.stack([outputs.losses, outputs.margins], axis=1)


def _classifier(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return loss and margin of each row of a classifier. (outputs, c), (c,) -> (c,), (c,)"""
    if z.shape[0] == 1:
        margin = torch.where(y > 0, z[0], -z[0])
        return torch.nn.functional.softplus(-margin), margin
    labels = y.long()[None]
    own = z.gather(0, labels)[0]
    others = z.scatter(0, labels, -torch.inf)
    # ln(1 + Σ_{c≠y} exp(z_c - z_y)) resolves the small losses of confident rows.
    return torch.nn.functional.softplus(torch.logsumexp(others, 0) - own), own - others.amax(0)


def _regressor(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return loss and margin of each row of a regression. (1, c), (c,) -> (c,), (c,)"""
    error = z[0] - y.to(z.dtype)
    return error.square() / 2, -error.abs()

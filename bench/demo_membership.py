"""The membership test of the demo: can somebody tell whether a person's images were learned?

LiRA (Carlini et al. 2022), for whole people. The attackers have the training data. They train many models
with and without each erased person, learn how a model answers in either case, and then examine the model they
are given. Their score for a person is the log-likelihood ratio, summed over the person's images. The
reference is a model that was retrained without these people and given the same kind of noise, which is what
the certificate compares a release with.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bench.demo_data import Digits, Rows, features
from worker.engine.families import Softmax
from worker.engine.rows import ArrayRows
from worker.engine.trust_region import train
from worker.evaluation import ranking
from worker.evaluation.lira import log_likelihood_ratios

SHADOW_PAIRS = 8
_SHADOW_TARGET = 0.3  # the attack needs confidences, not certificates
_SEED = 3
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Attack:
    """Scores of the erased people under one model and under a model that never saw them."""

    learned: Floats  # (people,)
    never_seen: Floats  # (people,)

    @property
    def auc(self) -> float:
        """How often a learned person gets the higher score of the two. 0.5 is guessing."""
        return ranking.auc(self.learned, self.never_seen)

    def curve(self) -> tuple[Floats, Floats]:
        """Return false and true positive rates for every threshold, from (0, 0) to (1, 1)."""
        thresholds = np.sort(np.concatenate([self.learned, self.never_seen]))[::-1]
        rates = [
            np.concatenate([[0.0], (scores[None] >= thresholds[:, None]).mean(axis=1)])
            for scores in (self.never_seen, self.learned)
        ]
        return rates[0], rates[1]


class Attacker:
    """Somebody who trained shadow models with and without each erased person."""

    def __init__(self, data: Digits, *, lam: float, classes: int) -> None:
        self._lam, self._classes = lam, classes
        self._attacked = data.train.at(data.train.of(data.erased))
        self._features = features(self._attacked.images)
        self._retained, self._retained_features = data.retained, features(data.retained.images)
        self._people = np.unique(self._attacked.writers)
        self._masks, self._confidences = self._train_shadows()

    def attack(self, model: Tensor, never_seen: Tensor) -> Attack:
        """Attack a model. `never_seen` is one that was retrained without the people. Both are flat, (d,)."""
        objective = self._objective(np.zeros(len(self._attacked.labels), bool))
        seen = np.stack([self._confidence(objective, w) for w in (model, never_seen)])
        rows = log_likelihood_ratios(self._masks, self._confidences, seen)
        people = [rows[:, self._attacked.writers == person].sum(axis=1) for person in self._people]
        scores = np.stack(people, axis=1)
        return Attack(learned=scores[0], never_seen=scores[1])

    def _train_shadows(self) -> tuple[npt.NDArray[np.bool_], Floats]:
        rng = np.random.default_rng(_SEED)
        place = np.searchsorted(self._people, self._attacked.writers)
        masks, confidences = [], []
        for _ in range(SHADOW_PAIRS):
            half = rng.permutation(len(self._people)) < len(self._people) // 2
            for people in (half, ~half):
                rows = people[place]
                objective = self._objective(rows)
                solution = train(objective, target=_SHADOW_TARGET)
                masks.append(rows)
                confidences.append(self._confidence(objective, solution.w))
        return np.stack(masks), np.stack(confidences)

    def _objective(self, rows: npt.NDArray[np.bool_]) -> Softmax:
        """Return the objective on the retained rows and these rows of the erased people."""
        inputs = np.concatenate([self._retained_features, self._features[rows]])
        labels = np.concatenate([self._retained.labels, self._attacked.labels[rows]])
        return Softmax(ArrayRows(inputs, labels), self._classes, self._lam)

    def _confidence(self, objective: Softmax, w: Tensor) -> Floats:
        """Return log p/(1 - p) of the right digit for each attacked row. -> (n,)"""
        logits = objective.logits(w, torch.from_numpy(self._features).to(torch.float64)).T
        labels = torch.from_numpy(self._attacked.labels)[:, None]
        right = logits.gather(1, labels)[:, 0]
        others = logits.scatter(1, labels, -torch.inf).logsumexp(dim=1)
        return np.asarray((right - others).numpy())


def objective_of(rows: Rows, *, lam: float, classes: int) -> Softmax:
    """Return the objective that the service minimises on these rows."""
    return Softmax(ArrayRows(features(rows.images), rows.labels), classes, lam)

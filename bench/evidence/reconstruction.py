"""How much of an erased row can be rebuilt by someone who kept the model from before the erasure.

Both versions minimise a known objective, so at the earlier one the gradients of all rows and of the
regulariser cancel: Σ_F ∇ℓ(ŵ_D; z) = -Σ_R ∇ℓ(ŵ_D; z) - nλŵ_D. An attacker with the retained rows computes the
right side. One without them estimates it from the difference of two versions, r·H·(after - before) -
mλ·before, with H from public rows. The gradient of one row is (p - e_y)·(x, 1)ᵀ, which reveals the row.

Both attackers know λ, the counts and some public rows of the same kind. One also has every retained row and
needs no later version. The other has only the two files. There are three pairs of files: both without noise;
version 0 kept and a noised release; two noised releases. Estimates from noised files are shrunk direction by
direction according to the noise (Wiener).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor

from bench.archives import DatasetUnavailable
from bench.datasets import mnist
from bench.evidence.plan import CONVEX_TARGET, DELTA, plan
from lethe.certificate.privacy import sigma_for
from worker.engine.families import Logistic, Softmax
from worker.engine.linear import LinearObjective
from worker.engine.rows import ArrayRows
from worker.engine.trust_region import minimise, train

SEED = 12
EPSILONS = (1.0, 8.0)
BATCHES = (1, 10, 100)
PUBLIC = 500  # rows of the same kind that the attackers have, in neither model
LAMBDA = 1e-3
_EXACT = 1e-7  # distance to which the bench's own minimisers are certified

Matrix = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Case:
    """Training rows, and public rows of the same kind."""

    name: str
    classes: int  # 2: logistic
    x: Matrix
    y: Labels
    public_x: Matrix
    public_y: Labels

    def objective(self, x: Matrix, y: Labels) -> LinearObjective:
        """Return the objective over the given rows."""
        rows = ArrayRows(x, y)
        return Logistic(rows, LAMBDA) if self.classes == 2 else Softmax(rows, self.classes, LAMBDA)


@dataclass(frozen=True, slots=True)
class Scene:
    """One erasure: the models trained before and after it, without noise."""

    case: Case
    erased: NDArray[np.int64]
    before: Tensor
    after: Tensor
    retained: LinearObjective

    @property
    def rows(self) -> tuple[int, int]:
        """(n, r): the number of rows before and after."""
        return len(self.case.y), self.retained.total


def measure() -> dict[str, Any]:
    """Measure every case and batch size."""
    draws = plan().reconstruction_draws
    results = [_attacked(case, batch, draws) for case in _cases() for batch in BATCHES]
    return {
        "seed": SEED,
        "delta": DELTA,
        "target_distance": CONVEX_TARGET,
        "regularisation": LAMBDA,
        "draws": draws,
        "public_rows": PUBLIC,
        "cases": results,
    }


def _cases() -> Iterator[Case]:
    digits = load_digits()
    pixels = digits.data.astype(np.float64) / 64  # no row is longer than about 1
    labels = digits.target.astype(np.int64)
    yield _split("digits, softmax", 10, pixels, labels)
    yield _split("digits, logistic (odd or even)", 2, pixels, labels % 2)
    try:
        images = mnist()
    except DatasetUnavailable as problem:
        print(f"reconstruction: MNIST left out: {problem}", flush=True)
        return
    rows = np.random.default_rng(SEED).permutation(len(images.train_labels))[: plan().reconstruction_rows]
    pixels = images.train_images[rows].astype(np.float64) / (255 * 17.25)
    yield _split("MNIST, logistic (odd or even)", 2, pixels, images.train_labels[rows].astype(np.int64) % 2)


def _split(name: str, classes: int, x: Matrix, y: Labels) -> Case:
    order = np.random.default_rng(SEED).permutation(len(y))
    public, private = order[:PUBLIC], order[PUBLIC:]
    return Case(name, classes, x[private], y[private], x[public], y[public])


def _attacked(case: Case, batch: int, draws: int) -> dict[str, Any]:
    """Every attacker on every pair of files, over the same erasures."""
    whole = case.objective(case.x, case.y)
    before = train(whole, target=_EXACT).w
    rng = np.random.default_rng(SEED + batch)
    scores: dict[str, list[dict[str, float]]] = {}
    for _ in range(draws):
        scene = _scene(case, before, rng.choice(len(case.y), batch, replace=False))
        for name, gradient in _estimates(scene, rng):
            scores.setdefault(name, []).append(_score(scene, gradient))
        scores.setdefault("no file: the mean of the class", []).append(_guess(scene))
    return {
        "data": case.name,
        "rows": len(case.y),
        "parameters": whole.dimension,
        "batch": batch,
        "attacks": {name: _summary(results) for name, results in scores.items()},
    }


def _scene(case: Case, before: Tensor, erased: NDArray[np.int64]) -> Scene:
    kept = np.setdiff1d(np.arange(len(case.y)), erased)
    retained = case.objective(case.x[kept], case.y[kept])
    return Scene(case, erased, before, minimise(retained, before, target=_EXACT).w, retained)


def _estimates(scene: Scene, rng: np.random.Generator) -> Iterator[tuple[str, Tensor]]:
    """Yield the attackers' estimates of Σ_F ∇ℓ at the earlier version, (d,)."""
    noise = [torch.from_numpy(rng.standard_normal(len(scene.before))) for _ in range(2)]
    known = Spectrum(scene, scene.retained)
    public = Spectrum(scene, scene.case.objective(scene.case.public_x, scene.case.public_y))
    yield "retained rows; version 0 kept, any release", _exact(scene, scene.before)
    yield "two files; neither noised", public.gradient(scene.before, scene.after, noise=0.0)
    for epsilon in EPSILONS:
        sigma = sigma_for(epsilon=epsilon, delta=DELTA, distance=CONVEX_TARGET)
        first, second = scene.before + sigma * noise[0], scene.after + sigma * noise[1]
        yield f"retained rows; two releases, ε = {epsilon:g}", known.gradient(first, scene.after, noise=sigma)
        yield (
            f"two files; version 0 kept, release at ε = {epsilon:g}",
            public.gradient(scene.before, second, noise=sigma),
        )
        spread = sigma * 2**0.5
        yield f"two files; two releases, ε = {epsilon:g}", public.gradient(first, second, noise=spread)


def _exact(scene: Scene, before: Tensor) -> Tensor:
    """Return -Σ_R ∇ℓ(before) - nλ·before."""
    total, kept = scene.rows
    data = scene.retained.gradient(before) - LAMBDA * before
    return -kept * data - total * LAMBDA * before


class Spectrum:
    """The Hessian known to an attacker, by eigenvectors, and the linear estimate that follows from it."""

    def __init__(self, scene: Scene, rows: LinearObjective) -> None:
        self._scene = scene
        self._rows = rows
        self.values, self.vectors = torch.linalg.eigh(_hessian(rows, scene.after))

    def gradient(self, before: Tensor, after: Tensor, *, noise: float) -> Tensor:
        """Return r·H·(after - before) - mλ·before, each direction shrunk by signal/(signal + noise)."""
        total, kept = self._scene.rows
        erased = total - kept
        stretch = kept * self.values
        along = stretch * self._along(after - before) - erased * LAMBDA * self._along(before)
        signal = erased * self._row_gradient() / len(along)
        shrunk = along * signal / (signal + (stretch * noise) ** 2)
        return self._rows.ungrouped((self.vectors @ shrunk).reshape(self._rows.outputs, -1))

    def _along(self, w: Tensor) -> Tensor:
        along: Tensor = self.vectors.T @ self._rows.grouped(w).reshape(-1)
        return along

    def _row_gradient(self) -> float:
        """Return the mean square length of one row's gradient, from public rows."""
        case = self._scene.case
        public = case.objective(case.public_x, case.public_y)
        x, y = torch.from_numpy(case.public_x), torch.from_numpy(case.public_y)
        _, q = public.residual(public.logits(self._scene.after, x), y)
        return float((q.square().sum(0) * (1 + x.square().sum(1))).mean())


def _hessian(rows: LinearObjective, w: Tensor) -> Tensor:
    """Return the dense Hessian with each output's weights and bias side by side."""
    x = torch.cat([part for part, _ in rows.chunks()])
    state, whole = rows.curvature(rows.logits(w, x)), rows.extended(x)
    blocks = []
    for c in range(rows.outputs):
        unit = torch.zeros_like(state)
        unit[c] = 1
        bent = rows.curve(state, unit)
        blocks.append(torch.cat([whole.T @ (bent[d][:, None] * whole) / len(x) for d in range(rows.outputs)]))
    dense = torch.cat(blocks, 1)
    return (dense + dense.T) / 2 + rows.lam * torch.eye(len(dense), dtype=torch.float64)


def _score(scene: Scene, gradient: Tensor) -> dict[str, float]:
    """Score how close the rebuilt row of its class comes to each erased row.

    A single erased row is also scored for its label and identity.
    """
    case = scene.case
    matrix = scene.retained.grouped(gradient).numpy()  # (outputs, width + 1)
    cosines = [_cosine(_rebuilt(matrix, int(label)), row) for row, label in _rows(scene)]
    results = {"cosine": float(np.mean(cosines))}
    if len(scene.erased) == 1:
        for rule, residual in _residuals(case, matrix).items():
            results |= _named(scene, matrix, residual, rule)
    return results


def _residuals(case: Case, matrix: Matrix) -> dict[str, Matrix]:
    """Return two estimates of a multiple of p - e_y, whose negative entry is the class.

    `bias` uses the gradient of the bias alone. `mean` uses all of it along the mean row, since pixels have
    one sign. Neither is always better.
    """
    return {"bias": matrix[:, -1], "mean": matrix @ np.append(case.public_x.mean(0), 1.0)}


def _named(scene: Scene, matrix: Matrix, residual: Matrix, rule: str) -> dict[str, float]:
    """Return whether the class is right, and whether the erased row is the one nearest to the rebuilt row."""
    case = scene.case
    (label,) = case.y[scene.erased]
    guess = int(residual[0] < 0) if case.classes == 2 else int(np.argmin(residual))
    candidates = np.concatenate([case.x, case.public_x])
    likeness = candidates @ _rebuilt(matrix, guess) / np.linalg.norm(candidates, axis=1)
    nearest = float(np.argmax(likeness) == scene.erased[0])
    return {f"label_{rule}": float(guess == label), f"named_{rule}": nearest}


def _rebuilt(matrix: Matrix, label: int) -> Matrix:
    """Return the part of a row's gradient that points at its class, -(1 - p_y)·x, up to its length."""
    if len(matrix) == 1:
        return matrix[0, :-1] if label == 0 else -matrix[0, :-1]
    return -matrix[label, :-1]


def _guess(scene: Scene) -> dict[str, float]:
    """Score the mean of the public rows of the class, which needs no model."""
    case = scene.case
    means = {label: case.public_x[case.public_y == label].mean(0) for label in range(case.classes)}
    return {"cosine": float(np.mean([_cosine(means[int(label)], row) for row, label in _rows(scene)]))}


def _rows(scene: Scene) -> Iterator[tuple[Matrix, int]]:
    for index in scene.erased:
        yield scene.case.x[index], int(scene.case.y[index])


def _cosine(a: Matrix, b: Matrix) -> float:
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / length if length > 0 else 0.0


def _summary(results: list[dict[str, float]]) -> dict[str, float]:
    keys = results[0].keys()
    figures = {key: float(np.mean([entry[key] for entry in results])) for key in keys}
    cosines = [entry["cosine"] for entry in results]
    return figures | {"cosine_low": float(min(cosines)), "cosine_high": float(max(cosines))}

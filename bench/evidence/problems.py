"""Problems to unlearn from: a trained model, its rows, and how such a model is solved and certified.

Linear models, networks and linearised networks differ in three methods only, which are abstract here. The
model is trained once and every method starts from it, as in the paper.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import jacrev, vmap

from bench import linearised_cases, networks
from bench.datasets import cifar10, mnist
from bench.engine import CLASSES, LAMBDA, Data
from bench.evidence import features
from bench.evidence.clock import Clock, clocked
from bench.evidence.plan import CONVEX_TARGET, DELTA, Plan
from bench.linearised_cases import Case as LinearisedCase
from bench.networks import Case
from worker.engine.baselines.lipschitz import SOFTMAX
from worker.engine.baselines.zhang2024 import Lipschitz
from worker.engine.families import Softmax
from worker.engine.linearised.automatic import AutomaticNetwork
from worker.engine.linearised.objective import LinearisedObjective
from worker.engine.networks.architectures import Mlp, ResNet18, dimension
from worker.engine.networks.certify_rounds import certify_in_rounds
from worker.engine.networks.kantorovich import Verdict
from worker.engine.networks.objective import NetworkObjective
from worker.engine.objective import Objective
from worker.engine.rows import ArrayRows
from worker.engine.trust_region import Solution, SolverSettings, minimise
from worker.evaluation.utility import Holdout, NetworkHoldout

Rows = NDArray[np.int64]
LAMBDAS = {"CIFAR-10": 1e-5}  # of linear models whose features need another λ than the engine's
_ANCHOR_STEPS = 25
_JACOBIAN_ROWS = 25  # rows whose whole Jacobian fits into memory


@dataclass(frozen=True, slots=True)
class Certified:
    """What could be certified.

    `distance` is None if nothing could, and `floor` is the certified curvature.
    """

    distance: float | None
    reason: str
    floor: float | None
    clock: Clock
    passes: float


class Problem(ABC):
    """A trained model and the rows it was trained on."""

    name: str
    tier: str
    model: str
    sees: str  # what the model sees
    lam: float
    target: float  # Δ*
    delta: float  # the part of δ left for the noise
    labels: NDArray[np.int64]
    start: Tensor
    dimension: int
    lipschitz: Lipschitz | None = None  # constants for `zhang2024`, where the engine knows none

    @abstractmethod
    def objective(self, rows: Rows | None = None) -> Objective:
        """Return a fresh objective over the given training rows, or all.

        No method inherits another's caches.
        """

    @abstractmethod
    def scored(self, rows: Rows | None = None) -> Holdout:
        """Return the given training rows, or the test rows, as a holdout."""

    @abstractmethod
    def certify(self, objective: Objective, solution: Solution) -> tuple[Tensor, Certified]:
        """Return the point to release, which may be closer than the solution, and what is certified there."""

    def kept(self, erased: Rows) -> Rows:
        """Return the indices of all other rows."""
        return np.setdiff1d(np.arange(len(self.labels)), erased)

    def solve(
        self, objective: Objective, start: Tensor, *, target: float | None = None, seed: int = 0
    ) -> Solution:
        """Minimise the objective from `start`."""
        return minimise(
            objective,
            start,
            target=target or self.target,
            settings=SolverSettings(max_steps=400, seed=seed),
            working_floor=self.lam / 4,
        )


class Linear(Problem):
    """Softmax regression, the proved tier."""

    tier, model, target, delta = "proved", "softmax regression", CONVEX_TARGET, DELTA

    def __init__(self, name: str, *, rows: int, loaded: tuple[Data, Data] | None = None) -> None:
        train, self._test = loaded or features.load(name, rows)
        self._train = Data(train.features[:rows], train.labels[:rows])
        self.lam = LAMBDAS.get(name, LAMBDA)
        self.name, self.sees, self.labels = name, features.described(name), self._train.labels
        whole = self.objective()
        self.dimension = whole.dimension
        self.start = self.solve(whole, whole.anchor).w

    def objective(self, rows: Rows | None = None) -> Objective:
        """Return a fresh objective over the given training rows, or all."""
        return self._softmax(self._part(rows))

    def scored(self, rows: Rows | None = None) -> Holdout:
        """Return the given training rows, or the test rows, as a holdout."""
        return self._softmax(self._test if rows is None else self._part(rows))

    def certify(self, objective: Objective, solution: Solution) -> tuple[Tensor, Certified]:
        """Return the solution: B1 is part of its last pass."""
        return _by_b1(objective, solution, self.target)

    def _softmax(self, data: Data) -> Softmax:
        return Softmax(ArrayRows(data.features, data.labels), CLASSES, self.lam, bias=False)

    def _part(self, rows: Rows | None) -> Data:
        if rows is None:
            return self._train
        return Data(self._train.features[rows], self._train.labels[rows])


class Network(Problem):
    """A network anchored at a model fitted on public rows, the conditional tier."""

    tier, target, delta = "conditional", networks.TARGET, DELTA - networks.FAILURE

    def __init__(self, name: str, case: Case) -> None:
        data = networks.split(mnist() if case.name == "MNIST" else cifar10(), case)
        self.name, self.lam, self._case, self._data = name, case.lam, case, data
        self.labels, self.dimension = data.labels, dimension(case.spec)
        pixels = "pixels" if case.side is None else f"{case.side}×{case.side} pixels"
        self.model, self.sees = _named(case), f"{pixels}; anchor fitted on {case.public:,} public rows"
        self._anchor = networks.fitted_anchor(case, data)
        self.start = self.solve(self.objective(), self._anchor).w

    def objective(self, rows: Rows | None = None) -> NetworkObjective:
        """Return a fresh objective over the given training rows, or all."""
        return NetworkObjective(self._part(rows), self._case.spec, self.lam, self._anchor)

    def scored(self, rows: Rows | None = None) -> Holdout:
        """Return the given training rows, or the test rows, as a holdout."""
        part = self._data.test if rows is None else self._part(rows)
        return NetworkHoldout(NetworkObjective(part, self._case.spec, self.lam, self._anchor))

    def certify(self, objective: Objective, solution: Solution) -> tuple[Tensor, Certified]:
        """Certify as the service does, solving further if there is less curvature than estimated."""
        assert isinstance(objective, NetworkObjective)
        clock, rounds = clocked(
            lambda: certify_in_rounds(
                objective,
                self._case.spec,
                solution.w,
                target=self.target,
                failure_probability=networks.FAILURE,
                settings=networks.SETTINGS,
                known=solution.evaluation,
            )
        )
        proof, passes = rounds.kantorovich, rounds.passes + sum(solve.passes for solve in rounds.solves)
        certified = proof.verdict is Verdict.CERTIFIED
        distance, floor = (proof.distance, proof.floor) if certified else (None, None)
        return rounds.w, Certified(distance, str(proof.verdict), floor, clock, passes)

    def _part(self, rows: Rows | None) -> ArrayRows:
        everything = np.arange(len(self.labels)) if rows is None else rows
        return ArrayRows(*self._data.private.sample(torch.from_numpy(everything)))


class Linearised(Problem):
    """A network linearised at an anchor fitted on public rows, the proved tier."""

    tier, delta = "proved", DELTA

    def __init__(self, name: str, case: LinearisedCase, *, test_rows: int) -> None:
        self.name, self.lam, self.target, self._case = name, case.lam, case.target, case
        images = cifar10()
        images = replace(
            images, test_images=images.test_images[:test_rows], test_labels=images.test_labels[:test_rows]
        )
        data = linearised_cases.split(images, case)
        self._anchor = linearised_cases.public_anchor(case, data.public)
        self._data = linearised_cases.prepare(case, data, self._anchor)
        self.labels, spec = data.labels, case.spec
        assert isinstance(spec, ResNet18)
        self.model = (
            f"ResNet-18 of base width {spec.base_width}, GroupNorm and {spec.activation.upper()}, "
            f"linearised; {', '.join(case.layers)} trained"
        )
        self.sees = f"{case.side}×{case.side} pixels; anchor fitted on {case.public:,} public rows"
        whole = self.objective()
        self.dimension, self.lipschitz = whole.dimension, _lipschitz(whole)
        self.start = self.solve(whole, whole.anchor).w

    def objective(self, rows: Rows | None = None) -> LinearisedObjective:
        """Return a fresh objective over the given training rows, or all."""
        return self._linearised(self._part(rows))

    def scored(self, rows: Rows | None = None) -> Holdout:
        """Return the given training rows, or the test rows, as a holdout."""
        held_out = self._data.prepared_test or self._data.test
        return NetworkHoldout(self._linearised(held_out if rows is None else self._part(rows)))

    def certify(self, objective: Objective, solution: Solution) -> tuple[Tensor, Certified]:
        """Return the solution: B1 is part of its last pass."""
        return _by_b1(objective, solution, self.target)

    def _linearised(self, rows: ArrayRows) -> LinearisedObjective:
        return linearised_cases.objective_on(self._case, rows, self._anchor, self._data)

    def _part(self, rows: Rows | None) -> ArrayRows:
        whole = self._data.prepared or self._data.private
        everything = np.arange(len(self.labels)) if rows is None else rows
        return ArrayRows(*whole.sample(torch.from_numpy(everything)))


def _by_b1(objective: Objective, solution: Solution, target: float) -> tuple[Tensor, Certified]:
    distance = solution.distance if solution.distance <= target else None
    return solution.w, Certified(distance, str(solution.outcome), objective.curvature_floor, Clock(), 0.0)


def _lipschitz(objective: LinearisedObjective) -> Lipschitz:
    """Return the smoothness constants on these rows, from the largest ‖∂N(x; a)‖_F of a row.

    The publication takes such constants as given. These are computed in float32 and rounded up.
    """
    network = objective.network
    assert isinstance(network, AutomaticNetwork)

    def of_one(x: Tensor) -> Tensor:
        jacobian = jacrev(lambda parts: network.run(parts, x[None])[0])(network.anchor(torch.float32))
        return torch.stack([part.square().sum() for part in jacobian.values()]).sum()

    longest = max(
        float(vmap(of_one)(part).max())
        for x, _ in objective.chunks(torch.float32)
        for part in torch.split(x, _JACOBIAN_ROWS)
    )
    reach = 1.001 * math.sqrt(longest)
    return Lipschitz(SOFTMAX.curvature * reach**2 + objective.lam, SOFTMAX.third * reach**3)


def _named(case: Case) -> str:
    spec = case.spec
    if isinstance(spec, Mlp):
        return f"MLP {'-'.join(map(str, spec.widths))}, {spec.activation.upper()}"
    return f"AllCNN of 3×3 layers (channels, stride) {spec.channels}, {spec.activation.upper()}"


def mnist_network(plan: Plan) -> Network:
    """Return the MNIST network at the size of the plan."""
    return Network("MNIST MLP", replace(networks.MNIST, private=plan.mlp_rows, anchor_steps=_ANCHOR_STEPS))


def cifar_network(plan: Plan) -> Network:
    """Return the CIFAR-10 network at the size of the plan."""
    return Network("CIFAR-10 AllCNN", replace(networks.CIFAR, private=plan.cnn_rows))


def resnet(plan: Plan) -> Linearised:
    """Return the linearised ResNet-18 at the size of the plan."""
    case = replace(linearised_cases.RESNET, private=plan.resnet_rows)
    return Linearised("CIFAR-10 ResNet-18, linearised", case, test_rows=plan.resnet_test_rows)

"""Linearised networks against dense Jacobians and 60-digit arithmetic, and the proof they lead to."""

import math
from typing import Any

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.engine.linearised_problems import (
    NETWORKS,
    Mixed,
    Plugin,
    exact_norm,
    jacobian,
    nearby,
    problem,
    staged,
)
from worker.engine.linearised.objective import LinearisedObjective
from worker.engine.networks.architectures import AllCnn, Mlp, ResNet18
from worker.engine.networks.objective import NetworkObjective
from worker.engine.objective import Sampling
from worker.engine.rows import ArrayRows
from worker.engine.subproblem import Quadratic, steihaug
from worker.engine.trust_region import Outcome, SolverSettings, minimise
from worker.engine.validation import EngineInputError

SUBSETS: dict[str, tuple[Any, int, tuple[str, ...]]] = {
    "mlp": (Mlp((5, 4, 4, 3), "relu"), 5, ("layers.1", "layers.2")),
    "mlp-gap": (Mlp((5, 4, 4, 3), "tanh"), 5, ("layers.0", "layers.2")),
    "mlp-head": (Mlp((5, 4, 3), "gelu"), 5, ("layers.1",)),
    "allcnn": (AllCnn((2, 4, 3), 3, ((3, 2), (2, 1)), "relu"), 24, ("layers.1", "head")),
    "allcnn-head": (AllCnn((2, 4, 3), 3, ((3, 2),), "silu"), 24, ("head",)),
    "resnet18": (ResNet18((1, 4, 4), 3, 2, 1, "relu"), 16, ("blocks.7", "head")),
    "staged": (staged(), 5, ("4",)),
}


def check_against_dense(objective: LinearisedObjective, network: object, x: torch.Tensor) -> None:
    """Compare value, gradient and product with those of the whole Jacobian."""
    base, jac = jacobian(objective, network, x)  # type: ignore[arg-type]
    ((_, y),) = objective.rows.chunks(objective.rows.count)
    w = nearby(objective)
    theta = w - objective.anchor
    z = base + jac @ theta
    if z.shape[1] == 1:
        loss, q = (z[:, 0] - y).square().mean() / 2, z - y[:, None]
        bend = torch.ones(len(y), 1, 1, dtype=torch.float64)
    else:
        p = z.softmax(1)
        loss = torch.nn.functional.cross_entropy(z, y)
        q = p - torch.nn.functional.one_hot(y, z.shape[1])
        bend = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    here = objective.evaluate(w)
    scale = float(jac.abs().max()) + 1
    assert here.value == pytest.approx(float(loss + objective.lam / 2 * theta @ theta), rel=1e-10)
    gradient = torch.einsum("no,nod->d", q, jac) / len(y) + objective.lam * theta
    torch.testing.assert_close(here.gradient, gradient, rtol=1e-9, atol=1e-11 * scale)
    hessian = torch.einsum("nod,nop,npe->de", jac, bend, jac) / len(y)
    hessian += objective.lam * torch.eye(objective.dimension, dtype=torch.float64)
    v = nearby(objective, seed=8) - objective.anchor
    torch.testing.assert_close(objective.hvp(w, v), hessian @ v, rtol=1e-9, atol=1e-10 * scale**2)
    torch.testing.assert_close(
        objective.logits(w, x) if not objective.prepared else z, z, rtol=1e-9, atol=1e-9
    )
    single = objective.evaluate(w, single=True)
    assert math.isinf(single.rounding)
    assert float((single.gradient - gradient).norm()) <= 1e-4 * scale * (1 + float(gradient.norm()))


@pytest.mark.parametrize("name", NETWORKS)
def test_passes_agree_with_the_dense_jacobian(name: str) -> None:
    network, width = NETWORKS[name]
    objective = problem(network, width, chunk_bytes=1)  # one row at a time
    ((x, _),) = objective.rows.chunks(objective.rows.count)
    check_against_dense(objective, network, x)
    assert objective.curvature_floor == objective.lam


@pytest.mark.parametrize("name", SUBSETS)
@pytest.mark.parametrize("prepared", [False, True])
def test_a_subset_of_layers_agrees_with_the_dense_jacobian(name: str, prepared: bool) -> None:
    network, width, layers = SUBSETS[name]
    if prepared and name == "mlp-gap":
        return  # its first layer moves, so nothing can be prepared
    raw = problem(network, width, layers=layers)
    ((x, _),) = raw.rows.chunks(raw.rows.count)
    objective = problem(network, width, layers=layers, prepared=prepared)
    assert set(objective.shapes) == {
        name for name in raw.shapes if any(name.startswith(f"{layer}.") for layer in layers)
    }
    check_against_dense(objective, network, x)


@given(
    spec=st.sampled_from(
        [
            Mlp((3, 4, 3, 2), "relu"),
            Mlp((3, 4, 2), "gelu"),
            Mlp((3, 3, 1), "tanh"),
            AllCnn((1, 3, 2), 2, ((2, 2), (2, 1)), "relu"),
            AllCnn((1, 2, 2), 2, ((2, 1),), "silu"),
        ]
    ),
    seed=st.integers(0, 10_000),
    feature_power=st.integers(-6, 4),
    weight_power=st.integers(-8, 3),
    lam_power=st.integers(-9, 1),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_the_computed_norm_is_within_the_derived_bound_of_the_exact_one(
    spec: Mlp | AllCnn, seed: int, feature_power: int, weight_power: int, lam_power: int
) -> None:
    objective = problem(spec, spec.inputs, n=3, lam=10.0**lam_power, seed=seed, scale=10.0**feature_power)
    assert objective.rounding_derived
    w = nearby(objective, seed=seed, scale=10.0**weight_power)
    certified = objective.certified_gradient(w)
    with mpmath.workdps(60):
        assert abs(certified.norm - exact_norm(objective, spec, w)) <= certified.rounding


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_prepared_rows_carry_the_error_of_the_layers_before_them(activation: str) -> None:
    spec = Mlp((3, 4, 4, 2), activation)  # type: ignore[arg-type]
    whole = problem(spec, 3, layers=("layers.1", "layers.2"))
    objective = problem(spec, 3, layers=("layers.1", "layers.2"), prepared=True)
    w = nearby(objective)
    one, other = whole.certified_gradient(w), objective.certified_gradient(w)
    assert abs(one.norm - other.norm) <= one.rounding + other.rounding
    assert other.rounding == pytest.approx(one.rounding, rel=0.5)


def test_a_relu_whose_side_rounding_decides_is_covered_by_the_bound() -> None:
    """Exactly, the unit sees 1 + 2⁻⁶⁰ - 1 > 0. In float64 it sees 0, and its slope comes out wrong by 1."""
    spec = Mlp((2, 1, 2), "relu")
    anchor = torch.tensor([1.0, 1.0, -1.0, 2.0, -1.0, 0.0, 0.0], dtype=torch.float64)
    rows = ArrayRows(torch.tensor([[1.0, 2.0**-60]], dtype=torch.float64), torch.tensor([0]))
    objective = LinearisedObjective(rows, spec, 0.1, anchor)
    w = objective.anchor + 0.5
    certified = objective.certified_gradient(w)
    with mpmath.workdps(60):
        off = abs(certified.norm - exact_norm(objective, spec, w))
    assert off > 0.01
    assert off <= certified.rounding


@pytest.mark.parametrize("activation", ["relu", "gelu", "tanh"])
@pytest.mark.parametrize("seed", range(6))
def test_the_modelled_bound_covers_what_automatic_differentiation_computes(
    activation: str, seed: int
) -> None:
    spec = Mlp((3, 4, 3, 2), activation)  # type: ignore[arg-type]
    objective = problem(Plugin(spec), 3, n=5, seed=seed)
    assert not objective.rounding_derived
    w = nearby(objective, seed=seed)
    certified = objective.certified_gradient(w)
    single = objective.evaluate(w, single=True)
    with mpmath.workdps(60):
        exact = exact_norm(objective, spec, w)
        assert abs(certified.norm - exact) <= certified.rounding
        # The same factor covers float32, whose units are 2²⁹ times as large.
        assert abs(single.norm - exact) <= 2**29 * certified.rounding
    assert certified.rounding < 1e-11


def test_the_preconditioner_is_symmetric_positive_definite_and_saves_products() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(400, 30, generator=generator, dtype=torch.float64) * torch.logspace(0.5, -1, 30)
    targets = torch.randint(0, 3, (400,), generator=generator)
    anchor = problem(Mlp((30, 8, 3), "relu"), 30).anchor
    objective = LinearisedObjective(ArrayRows(rows, targets), Mlp((30, 8, 3), "relu"), 1e-3, anchor)
    w = nearby(objective, scale=0.01)
    for operator in (objective.hessian(w), objective.hessian(w, Sampling(rows=200, seed=1))):
        found = operator.approximate_inverse(1)
        assert found is not None
        inverse = torch.stack([found.apply(unit) for unit in torch.eye(objective.dimension).double()])
        torch.testing.assert_close(inverse, inverse.T, rtol=1e-3, atol=1e-3)
        assert float(torch.linalg.eigvalsh((inverse + inverse.T) / 2)[0]) > 0
        gradient = objective.gradient(w)
        counts = [
            steihaug(
                Quadratic(gradient, operator.product, apply),
                1e9,
                tolerance=0.05 * float(gradient.norm()),
                limit=1000,
            ).products
            for apply in (found.apply, None)
        ]
        assert counts[0] <= counts[1] / 2


@pytest.mark.parametrize("network", [Mlp((5, 6, 3), "relu"), Mixed()], ids=["mlp", "plug-in"])
def test_a_certified_solution_is_as_close_to_the_minimiser_as_certified(network: object) -> None:
    width = 5 if isinstance(network, Mlp) else 12
    objective = problem(network, width, n=80, lam=0.05)  # type: ignore[arg-type]
    rough = minimise(objective, objective.anchor, target=1e-3)
    exact = minimise(objective, rough.w, target=1e-9)
    assert (rough.outcome, exact.outcome) == (Outcome.CERTIFIED, Outcome.CERTIFIED)
    assert float((rough.w - exact.w).norm()) <= rough.distance + exact.distance


def test_sums_over_ranks_are_those_of_all_rows() -> None:
    whole = problem(Mlp((5, 4, 3), "relu"), 5, n=10)
    ((x, y),) = whole.rows.chunks(10)
    w = nearby(whole)
    totals: list[torch.Tensor] = []
    shares = [
        LinearisedObjective(ArrayRows(x[part], y[part]), Mlp((5, 4, 3), "relu"), whole.lam, whole.anchor)
        for part in (slice(0, 4), slice(4, 10))
    ]
    for share in shares:
        gradient = share.gradient(w) - share.lam * (w - share.anchor)
        totals.append(gradient * share.total)

    def both(tensor: torch.Tensor) -> torch.Tensor:
        """Add what the other rank would contribute: its rows and its sums."""
        if tensor.numel() == 2:
            return tensor + torch.tensor([6.0, 1.0], dtype=torch.float64)
        tensor = tensor.clone()
        tensor[-len(w) :] += totals[1]
        return tensor

    first = LinearisedObjective(
        ArrayRows(x[:4], y[:4]), Mlp((5, 4, 3), "relu"), whole.lam, whole.anchor, reduce=both
    )
    assert first.total == 10
    torch.testing.assert_close(first.gradient(w), whole.gradient(w))


def test_a_smooth_objective_refuses_relu_and_names_the_way_out() -> None:
    rows = ArrayRows(torch.zeros(2, 3), torch.tensor([0, 1]))
    with pytest.raises(EngineInputError, match="use it linearised"):
        NetworkObjective(rows, Mlp((3, 4, 2), "relu"), 1.0)


def test_layers_without_parameters_are_refused() -> None:
    with pytest.raises(EngineInputError, match=r"layers\.9"):
        problem(Mlp((5, 4, 3), "relu"), 5, layers=("layers.9",))


def test_float32_overflow_in_products_falls_back_to_float64() -> None:
    objective = problem(Mlp((5, 4, 3), "relu"), 5, n=20, scale=1e20, lam=1.0)
    w = objective.anchor.clone()
    v = nearby(objective) - objective.anchor
    assert torch.isfinite(objective.hessian(w).product(v)).all()


def test_training_reaches_the_target_from_single_precision_samples() -> None:
    """Large enough that products are sampled and early passes run in float32."""
    objective = problem(Mlp((6, 5, 3), "relu"), 6, n=6000, lam=0.02)
    solution = minimise(objective, objective.anchor, target=1e-6, settings=SolverSettings(least_sample=512))
    assert solution.outcome is Outcome.CERTIFIED
    assert solution.passes < 60


@pytest.mark.parametrize(("name", "passes"), [("mlp-relu", 1), ("resnet18", 2)])
def test_the_pass_that_models_rounding_is_counted(name: str, passes: int) -> None:
    objective = problem(*NETWORKS[name], lam=0.1)
    assert objective.evaluate(objective.anchor).passes == passes
    assert objective.evaluate(objective.anchor, single=True).passes == 1
    assert minimise(objective, objective.anchor, target=1e9).passes == passes

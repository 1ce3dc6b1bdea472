"""The rounding bound of a network gradient against 50-digit arithmetic."""

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.engine.network_problems import TINY, nearby, problem
from worker.engine.networks.architectures import AllCnn, Mlp
from worker.engine.networks.objective import NetworkObjective

Edge = tuple[int, int, int]  # output, input, weight


def dense_edges(before: int, after: int) -> list[Edge]:
    return [(o, i, o * before + i) for o in range(after) for i in range(before)]


def convolution_edges(
    image: tuple[int, int, int], after: int, window: int, stride: int
) -> tuple[list[Edge], tuple[int, int, int]]:
    channels, height, width = image
    down, across = -(-height // stride), -(-width // stride)
    edges, pad = [], window // 2
    for o in range(after):
        for y in range(down):
            for x in range(across):
                for c in range(channels):
                    for i in range(window):
                        for j in range(window):
                            row, column = y * stride + i - pad, x * stride + j - pad
                            if 0 <= row < height and 0 <= column < width:
                                source = (c * height + row) * width + column
                                weight = ((o * channels + c) * window + i) * window + j
                                edges.append(((o * down + y) * across + x, source, weight))
    return edges, (after, down, across)


def edges_of(spec: Mlp | AllCnn) -> tuple[list[list[Edge]], int]:
    """Return each layer's edges, and how many outputs are averaged to one logit."""
    if isinstance(spec, Mlp):
        return [dense_edges(a, b) for a, b in zip(spec.widths[:-1], spec.widths[1:], strict=True)], 1
    layers_edges, image = [], spec.image
    for after, stride in spec.channels:
        edges, image = convolution_edges(image, after, 3, stride)
        layers_edges.append(edges)
    edges, image = convolution_edges(image, spec.classes, 1, 1)
    return [*layers_edges, edges], image[1] * image[2]


def phi(activation: str, z: mpmath.mpf) -> tuple[mpmath.mpf, mpmath.mpf]:
    if activation == "gelu":
        cdf = mpmath.erfc(-z / mpmath.sqrt(2)) / 2
        return z * cdf, cdf + z * mpmath.npdf(z)
    if activation == "tanh":
        return mpmath.tanh(z), 1 - mpmath.tanh(z) ** 2
    s = 1 / (1 + mpmath.exp(-z))
    return (mpmath.log1p(mpmath.exp(z)), s) if activation == "softplus" else (z * s, s * (1 + z * (1 - s)))


def row_gradient(
    spec: Mlp | AllCnn, parts: list[list[mpmath.mpf]], x: list[float], y: float
) -> list[mpmath.mpf]:
    layers, pool = edges_of(spec)
    a, inputs, slopes = [mpmath.mpf(v) for v in x], [], []
    for index, edges in enumerate(layers):
        weight, bias = parts[2 * index], parts[2 * index + 1]
        size = max(o for o, _, _ in edges) + 1
        z = [bias[o * len(bias) // size] for o in range(size)]
        for o, i, k in edges:
            z[o] += weight[k] * a[i]
        inputs.append(a)
        if index < len(layers) - 1:
            pairs = [phi(spec.activation, value) for value in z]
            a, slope = [p[0] for p in pairs], [p[1] for p in pairs]
            slopes.append(slope)
    logits = [mpmath.fsum(z[c * pool : (c + 1) * pool]) / pool for c in range(spec.outputs)]
    if spec.outputs == 1:
        q = [logits[0] - mpmath.mpf(y)]
    else:
        powers = [mpmath.exp(value - max(logits)) for value in logits]
        q = [power / mpmath.fsum(powers) - (c == int(y)) for c, power in enumerate(powers)]
    delta = [q[o // pool] / pool for o in range(len(z))]
    pieces: list[list[mpmath.mpf]] = []
    for index in range(len(layers) - 1, -1, -1):
        weight, bias = parts[2 * index], parts[2 * index + 1]
        dw, db, below = [[mpmath.mpf(0)] * n for n in (len(weight), len(bias), len(inputs[index]))]
        for o, value in enumerate(delta):
            db[o * len(bias) // len(delta)] += value
        for o, i, k in layers[index]:
            dw[k] += delta[o] * inputs[index][i]
            below[i] += delta[o] * weight[k]
        pieces[:0] = [dw, db]
        if index > 0:
            delta = [value * slope for value, slope in zip(below, slopes[index - 1], strict=True)]
    return [value for piece in pieces for value in piece]


def exact_norm(objective: NetworkObjective, w: torch.Tensor) -> mpmath.mpf:
    ((x, y),) = objective.rows.chunks(objective.rows.count)
    spec = objective.spec
    assert spec is not None
    parts = [[mpmath.mpf(v) for v in part.reshape(-1).tolist()] for part in objective.unflatten(w).values()]
    total = [mpmath.mpf(0)] * len(w)
    for row, target in zip(x.tolist(), y.tolist(), strict=True):
        total = [t + g for t, g in zip(total, row_gradient(spec, parts, row, target), strict=True)]
    pairs = zip(total, w.tolist(), objective.anchor.tolist(), strict=True)
    lam = mpmath.mpf(objective.lam)
    return mpmath.sqrt(
        mpmath.fsum((t / len(y) + lam * (mpmath.mpf(p) - mpmath.mpf(a))) ** 2 for t, p, a in pairs)
    )


@given(
    spec=st.sampled_from(TINY),
    seed=st.integers(0, 10_000),
    feature_power=st.integers(-6, 4),
    weight_power=st.floats(-3, 1.5),
    lam_power=st.integers(-6, 0),
)
@settings(max_examples=40, deadline=None)
def test_the_computed_norm_is_within_the_bound_of_the_exact_one(
    spec: Mlp | AllCnn, seed: int, feature_power: int, weight_power: float, lam_power: int
) -> None:
    objective = problem(spec, n=3, seed=seed, scale=10.0**feature_power, lam=10.0**lam_power)
    w = nearby(objective, seed, 10.0**weight_power)
    certified = objective.certified_gradient(w)
    with mpmath.workdps(50):
        assert abs(certified.norm - exact_norm(objective, w)) <= certified.rounding


def test_the_bound_covers_errors_that_happen_and_is_small() -> None:
    for spec, most in ((TINY[0], 1e-11), (TINY[5], 1e-10)):
        errors = []
        for seed in range(6):
            objective = problem(spec, n=3, seed=seed)
            certified = objective.certified_gradient(nearby(objective, seed))
            assert certified.rounding < most
            with mpmath.workdps(50):
                exact = exact_norm(objective, nearby(objective, seed))
                errors.append(float(abs(certified.norm - exact) / certified.rounding))
        assert 0 < max(errors) <= 1


def test_long_rows_are_summed_in_blocks_and_still_exact() -> None:
    objective = problem(Mlp((70, 66, 2), "tanh"), n=1)
    w = nearby(objective, scale=0.1)
    certified = objective.certified_gradient(w)
    with mpmath.workdps(40):
        assert abs(certified.norm - exact_norm(objective, w)) <= certified.rounding < 1e-10


@pytest.mark.parametrize("scale", [1e200, 1e300])
def test_overflow_gives_an_infinite_bound_not_a_wrong_one(scale: float) -> None:
    objective = problem(TINY[0], scale=scale)
    certified = objective.certified_gradient(nearby(objective))
    assert certified.rounding == math.inf


def test_the_measured_estimate_is_of_the_size_of_true_errors() -> None:
    objective = problem(TINY[0], n=6)
    w = nearby(objective)
    with mpmath.workdps(50):
        true = float(abs(objective.certified_gradient(w).norm - exact_norm(objective, w)))
    assert true <= objective.measured_rounding(w) <= objective.certified_gradient(w).rounding

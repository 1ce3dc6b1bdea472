"""How much data each run takes: minutes by default, BENCH=full for everything, BENCH=tiny for a trial."""

import os
from dataclasses import dataclass

EPSILON, DELTA = 1.0, 1e-5
KL = 0.104  # KL(P_R‖P_D), where the paper has its tables
CONVEX_TARGET = 1e-3  # Δ* of the convex tier; the networks' is in bench.networks


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of every part."""

    seeds: tuple[int, ...]
    convex_rows: int  # of MNIST and Fashion-MNIST
    colour_rows: int  # of CIFAR-10
    mlp_rows: int  # private rows of the MNIST network
    cnn_rows: int  # private rows of the CIFAR-10 network
    cnn_seeds: int
    resnet_rows: int  # private rows of the linearised ResNet-18
    resnet_test_rows: int
    resnet_seeds: int
    draws: int  # of the release noise
    replicates: int  # of the bootstrap
    sweep_rows: int
    sweep_kls: tuple[float, ...]
    lira_rows: int  # under attack
    lira_shadows: int
    lifetime_rows: int
    lifetime_batch: int
    batches: int
    growth_rows: tuple[int, ...]
    reconstruction_draws: int
    reconstruction_rows: int  # of MNIST


_KLS = (0.0, 0.02, 0.04, 0.06, 0.08, 0.10)
_PLANS = {
    "full": Plan(
        seeds=(0, 1, 2),
        convex_rows=60_000,
        colour_rows=50_000,
        mlp_rows=55_000,
        cnn_rows=10_000,
        cnn_seeds=3,
        resnet_rows=4000,
        resnet_test_rows=10_000,
        resnet_seeds=3,
        draws=10,
        replicates=1000,
        sweep_rows=60_000,
        sweep_kls=_KLS,
        lira_rows=400,
        lira_shadows=64,
        lifetime_rows=60_000,
        lifetime_batch=180,
        batches=50,
        growth_rows=(7500, 15_000, 30_000, 60_000),
        reconstruction_draws=50,
        reconstruction_rows=10000,
    ),
    "default": Plan(
        seeds=(0, 1, 2),
        convex_rows=60_000,
        colour_rows=20_000,
        mlp_rows=6000,
        cnn_rows=3000,
        cnn_seeds=3,
        resnet_rows=1000,
        resnet_test_rows=1000,
        resnet_seeds=1,
        draws=3,
        replicates=300,
        sweep_rows=6000,
        sweep_kls=_KLS,
        lira_rows=200,
        lira_shadows=16,
        lifetime_rows=12_000,
        lifetime_batch=40,
        batches=50,
        growth_rows=(15_000, 30_000, 60_000),
        reconstruction_draws=20,
        reconstruction_rows=5000,
    ),
    "tiny": Plan(
        seeds=(0, 1),
        convex_rows=3000,
        colour_rows=2000,
        mlp_rows=1000,
        cnn_rows=400,
        cnn_seeds=1,
        resnet_rows=400,
        resnet_test_rows=500,
        resnet_seeds=1,
        draws=2,
        replicates=50,
        sweep_rows=1500,
        sweep_kls=(0.0, 0.05, 0.10),
        lira_rows=60,
        lira_shadows=4,
        lifetime_rows=2000,
        lifetime_batch=30,
        batches=5,
        growth_rows=(1000, 2000),
        reconstruction_draws=3,
        reconstruction_rows=1000,
    ),
}


def plan() -> Plan:
    """Return the plan that BENCH selects."""
    return _PLANS.get(os.environ.get("BENCH", ""), _PLANS["default"])

"""The networks of the linearised benchmark are ones that the service would accept."""

import torch

from bench import linearised_cases
from bench.efficientnet_block import LAYERS, EfficientNetBlock
from lethe.manifest import Manifest
from worker.engine.linearised.automatic import anchor_shapes
from worker.engine.linearised.inspection import inspect_linearised
from worker.engine.linearised.objective import preparation


def flat_state(block: EfficientNetBlock) -> torch.Tensor:
    state = block.state_dict()
    return torch.cat([state[name].double().reshape(-1) for name in anchor_shapes(block)])


def test_a_plug_in_like_the_block_of_efficientnet_is_accepted_and_proved() -> None:
    block = EfficientNetBlock(1)
    assert inspect_linearised(block, flat_state(block), layers=LAYERS, width=320, outputs=10) == []
    case = linearised_cases.BLOCK
    manifest = Manifest.model_validate(
        {
            "family": case.family,
            "width": case.inputs,
            "classes": 10,
            "lambda": case.lam,
            "network": case.network | {"layers": list(case.layers)},
            "origins": {"features": "a public backbone", "constants": "public", "anchor": "public rows"},
        }
    )
    assert manifest.assurance == "proved"
    assert manifest.linearisation is not None
    assert manifest.linearisation.rounding == "modelled"


def test_its_frozen_channels_are_computed_once_and_change_nothing() -> None:
    block = EfficientNetBlock(2)
    constant = preparation(block, flat_state(block), LAYERS, device="cpu")
    assert constant is not None
    x = torch.rand(3, 1280, dtype=torch.float64)
    prepared = constant(x)
    assert prepared.shape == (3, 1280 + 1152)
    stages = block.double().stages()
    torch.testing.assert_close(stages[2][1](stages[1][1](prepared)), block(x))

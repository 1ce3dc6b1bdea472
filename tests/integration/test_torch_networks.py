"""A whole PyTorch network goes through the service, linearised, and comes back certified."""

from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.func import functional_call, jvp

from lethe.integrations.errors import CannotCertify, CannotRebuild
from lethe.integrations.torch import Linearised, load, register_network
from tests.integration.client_world import World, world

__all__ = ["world"]
PUBLIC = 600
POLICY = {"target_distance": 1e-3, "batch_subjects": 1000, "min_batch_subjects": 1}


@pytest.fixture(scope="module")
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)


def _network(seed: int = 1) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))


def _trained(digits: tuple[torch.Tensor, torch.Tensor]) -> nn.Sequential:
    module = _network()
    optimiser = torch.optim.Adam(module.parameters(), 0.02)
    for _ in range(40):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(digits[0][:PUBLIC]), digits[1][:PUBLIC]).backward()
        optimiser.step()
    return module


def test_a_whole_network_comes_back_linearised_and_certified(
    world: World, digits: tuple[torch.Tensor, torch.Tensor]
) -> None:
    module = _trained(digits)
    rows, labels = digits[0][PUBLIC:], digits[1][PUBLIC:]
    people = [f"p{i // 3}" for i in range(len(rows))]
    with world.sync() as client:
        model = register_network(
            client, "whole", module, rows, labels, people, lam=1e-2, anchor="digits 0 to 599", policy=POLICY
        )
        assert model.manifest.network is not None
        assert model.manifest.network.linearised
        assert (model.manifest.family, model.manifest.network.hidden) == ("mlp", (12,))
        erasure = client.erasures.create(["p1", "p5"], models=["whole"])
        client.models.flush("whole", force=True)
        assert client.erasures.wait(erasure.id, timeout=120).state == "completed"
        served = load(client, "whole", module)
        with pytest.raises(CannotRebuild, match="They are the anchor"):
            load(client, "whole", _network(seed=2))
    assert not served.train().training
    accuracy = (served(rows).argmax(1) == labels).double().mean()
    assert accuracy > (module(rows).argmax(1) == labels).double().mean()


def test_the_served_module_is_the_first_order_expansion() -> None:
    module = _network().double()
    generator = torch.Generator().manual_seed(0)
    theta = {
        name: torch.randn(part.shape, generator=generator, dtype=torch.float64)
        for name, part in module.named_parameters()
        if name.startswith("2.")
    }
    x = torch.rand(5, 64, generator=generator, dtype=torch.float64)
    served = Linearised(module, module.state_dict(), theta)
    at = {name: part.detach() for name, part in module.named_parameters() if name in theta}
    pair = jvp(lambda parts: functional_call(module, parts, (x,)), (at,), (theta,))
    torch.testing.assert_close(served(x), (pair[0] + pair[1]).detach())
    hidden = torch.relu(module[0](x))
    last: Any = module[2]
    exact = hidden @ (last.weight + theta["2.weight"]).T + last.bias + theta["2.bias"]
    torch.testing.assert_close(served(x), exact.detach())


class _Own(nn.Module):
    def forward(self, x: Any) -> Any:
        return x


@pytest.mark.parametrize(
    "module",
    [
        _Own(),
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)),
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)),
        nn.Sequential(nn.Conv2d(1, 2, 5), nn.ReLU(), nn.Flatten()),
    ],
)
def test_a_module_that_is_not_recognised_is_refused_with_what_to_do(module: nn.Module) -> None:
    client: Any = None
    with pytest.raises(CannotCertify, match="family="):
        register_network(
            client, "x", module, torch.rand(3, 4), [0, 1, 2], ["a", "b", "c"], lam=1.0, anchor="public"
        )

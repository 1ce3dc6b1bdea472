"""A plug-in is refused for what would invalidate its certificate, with advice on how to fix it."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from worker.engine.networks.architectures import AllCnn, Mlp, ResNet18, build, initial_point, shapes
from worker.engine.networks.inspection import inspect_module
from worker.engine.validation import EngineInputError

SPECS = (Mlp((12, 5, 3), "softplus"), AllCnn((3, 2, 2), 3, ((2, 1),)), ResNet18((3, 2, 2), 3, 4, 2, "silu"))


class Wrapped(nn.Module):
    """A linear layer that subclasses post-process."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> object:
        return self.linear(x)


class Counting(Wrapped):
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> object:
        self.seen += x.sum()
        return self.linear(x)


class Random(Wrapped):
    def forward(self, x: Tensor) -> object:
        return self.linear(x) + torch.randn(3)


class BatchCentred(Wrapped):
    def forward(self, x: Tensor) -> object:
        return self.linear(x - x.mean(0))


class HiddenKink(Wrapped):
    def forward(self, x: Tensor) -> object:
        return functional.relu(self.linear(x))


class Paired(Wrapped):
    def forward(self, x: Tensor) -> object:
        return self.linear(x), x


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
def test_our_own_networks_have_nothing_to_refuse(spec: Mlp | AllCnn | ResNet18) -> None:
    assert inspect_module(build(spec), width=12, outputs=3) == []


@pytest.mark.parametrize(
    ("module", "named", "advice"),
    [
        (nn.Sequential(nn.Linear(12, 3), nn.BatchNorm1d(3)), "1 (BatchNorm1d) keeps running", "GroupNorm"),
        (
            nn.Sequential(nn.Linear(12, 3), nn.BatchNorm1d(3, track_running_stats=False)),
            "normalises by the other rows",
            "GroupNorm",
        ),
        (
            nn.Sequential(nn.Unflatten(1, (3, 4)), nn.InstanceNorm1d(3, track_running_stats=True)),
            "1 (InstanceNorm1d)",
            "GroupNorm",
        ),
        (nn.Sequential(nn.Linear(12, 3), nn.Dropout(0.1)), "1 (Dropout)", "p = 0"),
        (nn.Sequential(nn.Linear(12, 3), nn.ReLU()), "1 (ReLU)", "GELU"),
        (nn.Sequential(nn.Linear(12, 3), nn.LeakyReLU()), "1 (LeakyReLU)", "GELU"),
        (nn.Sequential(nn.Linear(12, 3), nn.ELU()), "1 (ELU)", "GELU"),
        (nn.Sequential(nn.Linear(12, 3), nn.Softplus()), "1 (Softplus)", "threshold"),
        (nn.Sequential(nn.Linear(12, 6), nn.MaxPool1d(2)), "1 (MaxPool1d)", "pooling"),
        (Counting(), "buffer seen", "constant"),
        (Random(), "two forwards", "randomness"),
        (BatchCentred(), "other rows", "alone"),
        (HiddenKink(), "forward calls relu", "GELU"),
        (Paired(), "returns tuple", "logits"),
        (nn.Linear(12, 4), "shape (4, 4)", "(4, 3)"),
        (nn.Linear(11, 3), "failed", "12 features"),
        (nn.GELU(), "no parameters", "nothing"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_each_refusal_names_the_part_and_the_remedy(module: nn.Module, named: str, advice: str) -> None:
    reasons = inspect_module(module, width=12, outputs=3)
    assert any(named in reason and advice in reason for reason in reasons), reasons


def test_dropout_that_drops_nothing_and_constant_buffers_pass() -> None:
    module = nn.Sequential(nn.Linear(12, 3), nn.Dropout(0.0), nn.Softplus(threshold=40))
    module.register_buffer("scale", torch.ones(3))
    assert inspect_module(module, width=12, outputs=3) == []


def test_inspection_changes_neither_the_module_nor_the_random_state() -> None:
    module = Counting()
    state = torch.get_rng_state()
    inspect_module(module, width=12)
    inspect_module(Random(), width=12)
    assert float(module.seen) == 0
    assert next(module.parameters()).dtype == torch.float32
    torch.manual_seed(0)
    torch.set_rng_state(state)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
def test_shapes_are_in_the_flat_vectors_order(spec: Mlp | AllCnn | ResNet18) -> None:
    module = build(spec)
    assert list(shapes(spec).items()) == [(n, tuple(p.shape)) for n, p in module.named_parameters()]
    assert torch.equal(initial_point(spec, 1), initial_point(spec, 1))
    assert not torch.equal(initial_point(spec, 1), initial_point(spec, 2))


def test_a_linear_layer_comes_as_weight_then_bias() -> None:
    assert shapes(Mlp((4, 3, 2))) == {
        "layers.0.weight": (3, 4),
        "layers.0.bias": (3,),
        "layers.1.weight": (2, 3),
        "layers.1.bias": (2,),
    }


def test_specs_without_meaning_are_refused() -> None:
    for make in (
        lambda: Mlp((4,)),
        lambda: Mlp((4, 0, 2)),
        lambda: Mlp((4, 3, 2), "elu"),  # type: ignore[arg-type]
        lambda: AllCnn((3, 8, 8), 10, ()),
        lambda: AllCnn((3, 8, 8), 0),
        lambda: ResNet18((3, 8, 8), 10, base_width=10, groups=4),
        lambda: ResNet18((3, 0, 8), 10),
    ):
        with pytest.raises(EngineInputError):
            make()

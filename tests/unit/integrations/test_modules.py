"""The head of a module is found, its backbone is exported, and what cannot be certified is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from lethe.integrations.errors import CannotCertify
from lethe.integrations.modules import (
    check_structure,
    digest_backbone,
    export_backbone,
    find_head,
    write_anchor,
)


class Net(nn.Module):
    """A small network for images, with everything that a whole network could not be certified with."""

    def __init__(self, end: nn.Module | None = None, *, pool: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5))
        self.flatten: nn.Module = nn.Flatten() if pool else nn.Identity()
        self.fc = nn.Linear(144 if pool else 6, 10)
        self.end = end or nn.Identity()

    def forward(self, rows: Tensor) -> Any:
        return self.end(self.fc(self.flatten(self.features(rows))))


def _frozen(module: nn.Module) -> Any:
    return module.requires_grad_(False)


SHAPE = (1, 8, 8)


@pytest.mark.parametrize("end", [None, nn.Softmax(-1), nn.LogSoftmax(-1)])
def test_the_last_linear_layer_of_a_frozen_module_is_its_head(end: nn.Module | None) -> None:
    module = _frozen(Net(end)).train()
    head = find_head(module)
    assert (head.name, head.layer is module.fc) == ("fc", True)
    check_structure(module, head, SHAPE)
    assert all(part.training for part in module.modules())


@pytest.mark.parametrize("flat", [False, True])
def test_the_exported_graph_gives_what_the_head_gets(flat: bool) -> None:
    module = _frozen(Net(nn.Softmax(-1)))
    graph = export_backbone(module, find_head(module), SHAPE, flat=flat)
    rows = torch.randn(5, *SHAPE)
    session = onnxruntime.InferenceSession(graph)
    given = rows.reshape(5, -1) if flat else rows
    (features,) = session.run(["features"], {"rows": given.numpy()})
    module.eval()
    expected = module.flatten(module.features(rows))
    np.testing.assert_allclose(features, expected, atol=1e-6)
    assert str(Path(__file__).parents[3]).encode() not in graph  # no path of this machine


def test_the_graph_contains_no_weight_of_the_head() -> None:
    module = _frozen(Net())
    graph = export_backbone(module, find_head(module), SHAPE, flat=True)
    assert module.fc.weight.numpy().tobytes()[:64] not in graph
    assert len(graph) < 4096


def test_the_digest_covers_the_backbone_and_not_the_head() -> None:
    module = _frozen(Net())
    head = find_head(module)
    digest = digest_backbone(module, head)
    module.fc.weight += 1
    assert digest_backbone(module, head) == digest
    module.features[1].running_mean += 1
    assert digest_backbone(module, head) != digest


class Twice(Net):
    """Runs its head twice."""

    def forward(self, rows: Tensor) -> Any:
        return super().forward(rows) + super().forward(rows)


class Mixed(Net):
    """Subtracts the mean of the batch."""

    def forward(self, rows: Tensor) -> Any:
        return super().forward(rows - rows.mean(0))


def test_a_network_that_trains_its_backbone_is_refused_with_the_nearest_thing_that_works() -> None:
    with pytest.raises(CannotCertify) as caught:
        find_head(Net())
    said = str(caught.value)
    assert "Net: features.0.weight and 3 more parameters would be trained on rows that can be erased" in said
    assert "freeze it: module.requires_grad_(False)" in said
    assert "register_network certifies a whole network" in said


@pytest.mark.parametrize(
    ("module", "head", "message"),
    [
        (nn.Sequential(nn.Conv2d(1, 2, 3)), None, "Sequential: it has no nn.Linear that could be the head"),
        (nn.Linear(3, 2), None, "Linear: it is a head without a backbone"),
        (Net(), "classifier", "head: Net has no nn.Linear named classifier. It has fc"),
        (Twice(), None, "Twice: its forward runs the head fc 2 times"),
        (Mixed(), None, "Mixed: what it makes of a row depends on the other rows"),
        (Net(nn.Linear(10, 3)), "fc", "Net: its output is not that of the head fc"),
        (Net(nn.Tanh()), None, "Net: its output is not that of the head fc"),
        (Net(pool=False), None, "Net: the head fc gets 4 dimensions, but it needs one vector per row"),
        (nn.Sequential(nn.Flatten(), nn.Linear(9, 2)), None, "it does not take rows of the shape (1, 8, 8)"),
    ],
)
def test_what_does_not_end_in_a_head_is_refused_by_name(
    module: nn.Module, head: str | None, message: str
) -> None:
    with pytest.raises(CannotCertify) as caught:
        check_structure(module, find_head(_frozen(module), head), SHAPE)
    assert message in str(caught.value)


class Unexportable(Net):
    """Uses an operation that ONNX does not have."""

    def forward(self, rows: Tensor) -> Any:
        return super().forward(torch.special.bessel_j0(rows))


def test_a_backbone_that_onnx_cannot_express_is_refused_by_name() -> None:
    module = _frozen(Unexportable())
    with pytest.raises(CannotCertify, match=r"Unexportable: PyTorch cannot export it as ONNX: .*bessel_j0"):
        export_backbone(module, find_head(module), SHAPE, flat=True)


def test_an_anchor_has_the_names_of_the_module(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2).double())
    tensors = load_file(write_anchor(module, tmp_path / "anchor.safetensors"))
    assert set(tensors) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    for name, parameter in module.named_parameters():
        assert torch.equal(tensors[name], parameter)
        assert tensors[name].dtype == parameter.dtype

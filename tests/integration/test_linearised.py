"""Linearised networks: any architecture is certified as proved by rule B1, and refusals say why."""

import sys
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient
from safetensors.torch import load, save
from torch import Tensor, nn

from app.db import manifest as manifests
from app.db import paths
from app.services import Services
from tests.integration.harness import MANIFEST, dataset
from tests.integration.model_api import Api, newest_statement, work
from worker import fitting, sketches
from worker.batch import solve
from worker.data import families
from worker.data.families import network_family
from worker.engine.networks.architectures import AllCnn, Mlp, ResNet18, build
from worker.engine.sketch import CurvatureSketch
from worker.engine.trust_region import Solution

# Networks do not depend on the database; the tests of the stages run on both kinds.
pytestmark = [pytest.mark.slow, pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)]

ORIGINS = MANIFEST["origins"] | {"anchor": "a public draw"}
MLP: dict[str, Any] = {
    "family": "mlp",
    "network": {"hidden": [5, 4], "activation": "relu", "linearised": True},
    "lambda": 0.05,
    "origins": ORIGINS,
}


def anchor_of(module: nn.Module) -> bytes:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        state = {
            name: tensor + 0.1 * torch.randn(tensor.shape)
            for name, tensor in module.state_dict().items()
            if tensor.is_floating_point()
        }
    state |= {name: tensor.abs() + 0.5 for name, tensor in state.items() if name.endswith("running_var")}
    return save(state)


@pytest.fixture
def api(gateway: TestClient, admin: dict[str, str]) -> Api:
    return Api(gateway, admin)


def register(api: Api, services: Services, module: nn.Module, **change: Any) -> dict[str, Any]:
    api.create(**MLP | change)
    api.put("dataset/part0", dataset())
    api.put("holdout/h0", dataset(rows=60, subjects=40, seed=8, first=100))
    api.put("anchor", anchor_of(module))
    api.call("POST", "/toy/validate", 202)
    work(services)
    found: dict[str, Any] = api.call("GET", "/toy")
    return found


def erase_and_verify(api: Api, services: Services) -> Any:
    api.erase("s0", "s1")
    work(services)
    said = newest_statement(services).predicate
    answer = api.gateway.get(f"/v1/certificates/{said.certificate_id}/verify", headers=api.headers)
    verdict = answer.json()
    assert verdict["verified"], [line for line in verdict["lines"] if line["ok"] is False]
    return said


SPECS: dict[str, tuple[Any, dict[str, Any]]] = {
    "mlp": (Mlp((6, 5, 4, 3), "relu"), {"hidden": [5, 4], "activation": "relu"}),
    "allcnn": (
        AllCnn((1, 2, 3), 3, ((4, 1), (3, 2)), "relu"),
        {"image": [1, 2, 3], "channels": [[4, 1], [3, 2]], "activation": "relu"},
    ),
    "resnet18": (
        ResNet18((1, 2, 3), 3, 2, 1, "relu"),
        {"image": [1, 2, 3], "base_width": 2, "groups": 1, "activation": "relu"},
    ),
}


@pytest.mark.parametrize("family", SPECS)
def test_an_erasure_from_a_linearised_network_is_proved(api: Api, services: Services, family: str) -> None:
    spec, network = SPECS[family]
    module = build(spec)
    found = register(api, services, module, family=family, network=network | {"linearised": True})
    assert found["state"] == "ready", found["reasons"]
    said = erase_and_verify(api, services)
    assert (said.mechanism, said.bound.rule, said.guarantee.assurance) == ("tr", "B1", "proved")
    assert said.objective.linearisation is not None
    assert said.objective.linearisation.rounding == ("modelled" if family == "resnet18" else "derived")
    assert ("modelled-rounding" in said.guarantee.assumptions) == (family == "resnet18")
    assert said.objective.dimension == sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("family", "layers"), [("mlp", ["layers.1", "layers.2"]), ("resnet18", ["blocks.7", "head"])]
)
def test_only_the_chosen_layers_are_trained_and_released(
    api: Api, services: Services, family: str, layers: list[str]
) -> None:
    spec, network = SPECS[family]
    module = build(spec)
    chosen = network | {"linearised": True, "layers": layers}
    found = register(api, services, module, family=family, network=chosen)
    assert found["state"] == "ready", found["reasons"]
    said = erase_and_verify(api, services)
    assert said.objective.linearisation.layers == tuple(layers)
    weights = api.gateway.get("/v1/models/toy/versions/1/checkpoint", headers=api.headers)
    names = {
        name
        for name, _ in module.named_parameters()
        if name.startswith(tuple(f"{layer}." for layer in layers))
    }
    assert set(load(weights.content)) == names


@pytest.mark.parametrize("layers", [None, ["layers.1", "layers.2"]])
def test_a_curvature_sketch_is_prepared_for_a_linearised_network_and_used_once(
    api: Api, services: Services, monkeypatch: pytest.MonkeyPatch, layers: list[str] | None
) -> None:
    monkeypatch.setattr(sketches, "LEAST_NUMBERS", 1)
    monkeypatch.setattr(sketches, "LEAST_DIRECTIONS", 1)
    monkeypatch.setattr("os.nice", lambda _: None)  # it would last for the rest of the tests
    given: list[CurvatureSketch | None] = []

    def recording(*arguments: Any, sketch: CurvatureSketch | None = None, **more: Any) -> Solution:
        given.append(sketch)
        return fitting.fit(*arguments, sketch=sketch, **more)

    monkeypatch.setattr(solve, "fit", recording)
    spec, network = SPECS["mlp"]
    register(api, services, build(spec), network=network | {"linearised": True, "layers": layers})
    sketches.prepare_sketches(services)
    assert len(services.storage.list(paths.SKETCHES)) == 1
    assert erase_and_verify(api, services).guarantee.assurance == "proved"
    assert [sketch is not None for sketch in given] == [True]
    assert services.storage.list(paths.SKETCHES) == []


class Attention(nn.Module):
    """Attention, LayerNorm, BatchNorm and ReLU: none of it can be certified as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.TransformerEncoderLayer(2, 1, 4, dropout=0.1, batch_first=True)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.encode(x.reshape(-1, 3, 2)).flatten(1)).relu())
        return out


class Random(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x + torch.rand_like(x))
        return out


class Mixing(Random):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x - x.mean(0))
        return out


@pytest.fixture
def plug_in(monkeypatch: pytest.MonkeyPatch) -> Any:
    def install(make: Any) -> None:
        module = ModuleType("linearised_plugin")
        module.family = network_family("custom", lambda _: make())  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "linearised_plugin", module)
        entries = [EntryPoint("custom", "linearised_plugin:family", manifests.FAMILY_GROUP)]
        for place in (families, manifests):
            monkeypatch.setattr(place, "entry_points", lambda group: entries if group else [])

    return install


PLUGGED: dict[str, Any] = {"family": "custom", "network": {"linearised": True}}


def test_a_plug_in_with_attention_and_batch_normalisation_is_proved(
    api: Api, services: Services, plug_in: Any
) -> None:
    plug_in(Attention)
    found = register(api, services, Attention(), **PLUGGED)
    assert found["state"] == "ready", found["reasons"]
    said = erase_and_verify(api, services)
    assert (said.bound.rule, said.guarantee.assurance) == ("B1", "proved")
    assert {"module-treats-rows-alone", "modelled-rounding"} <= set(said.guarantee.assumptions)
    assert said.objective.loss == "cross-entropy"


@pytest.mark.parametrize(
    ("make", "reason"), [(Random, "the module is random"), (Mixing, "depends on the other rows")]
)
def test_a_plug_in_that_is_no_function_of_the_row_is_rejected(
    api: Api, services: Services, plug_in: Any, make: Any, reason: str
) -> None:
    plug_in(make)
    found = register(api, services, make(), **PLUGGED)
    assert found["state"] == "rejected"
    assert any(reason in text for text in found["reasons"]), found["reasons"]


def test_layers_that_do_not_exist_are_named(api: Api, services: Services) -> None:
    network = MLP["network"] | {"layers": ["layers.7"]}
    found = register(api, services, build(SPECS["mlp"][0]), network=network)
    assert found["state"] == "rejected"
    assert any("layers.7" in text for text in found["reasons"]), found["reasons"]

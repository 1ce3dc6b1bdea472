"""Networks: curvature is measured, its failure probability counts against δ, and refusals say why."""

import sys
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient
from safetensors.torch import save
from sqlalchemy import select
from torch import nn

from app.core.clock import now
from app.db import manifest as manifests
from app.db import transitions
from app.db.manifest import Manifest
from app.db.states import FailureCause, JobState
from app.db.tables import Job
from app.services import Services
from tests.integration.harness import MANIFEST, dataset
from tests.integration.model_api import Api, newest_statement, work
from worker import sketches
from worker.data import families
from worker.data.families import network_family
from worker.engine.networks.architectures import Mlp, initial_point, shapes
from worker.engine.networks.certify_rounds import certify_in_rounds

# Networks do not depend on the database; the tests of the stages run on both kinds.
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

SPEC = Mlp((6, 5, 3), "tanh")
NETWORK: dict[str, Any] = {
    "family": "mlp",
    "network": {"hidden": [5], "activation": "tanh"},
    "lambda": 0.5,
    "origins": MANIFEST["origins"] | {"anchor": "a public draw"},
}


def anchor(spec: Mlp = SPEC) -> bytes:
    flat, tensors, start = initial_point(spec, seed=3), {}, 0
    for name, shape in shapes(spec).items():
        count = torch.Size(shape).numel()
        tensors[name] = flat[start : start + count].view(shape).clone()
        start += count
    return save(tensors)


@pytest.fixture
def api(gateway: TestClient, admin: dict[str, str]) -> Api:
    return Api(gateway, admin)


def register(api: Api, services: Services, *, with_anchor: bool = True, **change: Any) -> dict[str, Any]:
    api.create(**NETWORK | change)
    api.put("dataset/part0", dataset())
    api.put("holdout/h0", dataset(rows=60, subjects=40, seed=8, first=100))
    if with_anchor:
        api.put("anchor", anchor())
    api.call("POST", "/toy/validate", 202)
    work(services)
    found: dict[str, Any] = api.call("GET", "/toy")
    return found


def verified(api: Api, certificate_id: str) -> dict[str, Any]:
    answer = api.gateway.get(f"/v1/certificates/{certificate_id}/verify", headers=api.headers)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_an_erasure_from_a_network_is_certified_as_conditional(api: Api, services: Services) -> None:
    found = register(api, services)
    assert found["state"] == "ready", found["reasons"]
    api.erase("s0", "s1")
    work(services)
    said = newest_statement(services).predicate
    assert (said.mechanism, said.bound.rule, said.guarantee.assurance) == ("tr", "B2", "conditional")
    assert said.bound.failure_probability == pytest.approx(1e-9)
    assert said.lifetime.running_failure_probability == said.bound.failure_probability
    assert said.noise.sigma == found["sigma"]
    assert {"retraining-reaches-reference", "curvature-rounding"} <= set(said.guarantee.assumptions)
    verdict = verified(api, said.certificate_id)
    assert verdict["verified"], [line for line in verdict["lines"] if line["ok"] is False]


def test_an_erasure_from_a_network_solves_with_the_sketch_of_its_version(
    api: Api, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def noted(*args: Any, **kwargs: Any) -> Any:
        given.append(kwargs["sketch"])
        return certify_in_rounds(*args, **kwargs)

    monkeypatch.setattr("worker.batch.solve.certify_in_rounds", noted)
    monkeypatch.setattr(sketches, "LEAST_NUMBERS", 1)
    monkeypatch.setattr(sketches, "LEAST_DIRECTIONS", 1)
    monkeypatch.setattr("os.nice", lambda _: None)  # it would last for the rest of the tests
    register(api, services)
    sketches.prepare_sketches(services)
    api.erase("s0", "s1")
    work(services)
    assert [sketch is not None for sketch in given] == [True]
    assert newest_statement(services).predicate.guarantee.assurance == "conditional"


def test_attempts_share_the_failure_probability_of_the_measurement(
    api: Api, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []

    def noted(*args: Any, **kwargs: Any) -> Any:
        given.append(kwargs["failure_probability"])
        if len(given) < 3:
            raise RuntimeError("the machine went away")
        return certify_in_rounds(*args, **kwargs)

    monkeypatch.setattr("worker.batch.solve.certify_in_rounds", noted)
    register(api, services)
    api.erase("s0", "s1")
    for _ in range(2):
        with pytest.raises(RuntimeError):
            work(services)
        _begin_again(services)
    work(services)
    assert given == [5e-10, 2.5e-10, 1.25e-10]
    assert newest_statement(services).predicate.bound.failure_probability == pytest.approx(1e-9)


def _begin_again(services: Services) -> None:
    with services.database.writing() as session:
        job = session.scalars(select(Job).where(Job.state == JobState.RUNNING)).one()
        transitions.attempt_failed(
            session, job, cause=FailureCause.UNEXPECTED, error="x", now=now(), max_attempts=5, backoff=0.0
        )


def test_once_delta_is_used_up_the_model_is_retrained(api: Api, services: Services) -> None:
    policy = MANIFEST["policy"] | {"curvature_probability": 5e-6, "lifetime_epsilon": 900.0}
    assert register(api, services, policy=policy)["state"] == "ready"
    for subjects in (("s0", "s1"), ("s2", "s3")):
        api.erase(*subjects)
        work(services)
    assert newest_statement(services).predicate.mechanism == "retrain"


def test_a_network_without_an_anchor_is_rejected_with_the_reason(api: Api, services: Services) -> None:
    found = register(api, services, with_anchor=False, origins=MANIFEST["origins"])
    assert found["state"] == "rejected"
    assert any("a network needs one" in reason for reason in found["reasons"])


FLAT: dict[str, Any] = {"target_distance": 1e-2, "curvature_products": 40}


def test_a_network_with_too_little_curvature_is_rejected_with_a_sufficient_lambda(
    api: Api, services: Services
) -> None:
    policy = MANIFEST["policy"] | FLAT | {"fallback": "fail"}
    found = register(api, services, **{"lambda": 1e-3, "policy": policy})
    assert found["state"] == "rejected"
    assert any("the smallest lambda that would be enough is about" in reason for reason in found["reasons"])


def test_if_curvature_cannot_be_certified_the_model_is_retrained(api: Api, services: Services) -> None:
    found = register(api, services, **{"lambda": 1e-3, "policy": MANIFEST["policy"] | FLAT})
    assert found["state"] == "ready", found["reasons"]
    advice = found["report"]["network"]
    assert (advice["certifiable"], advice["smallest_lambda"] > 1e-3) == (False, True)
    assert any("fall back to retraining" in warning for warning in found["report"]["warnings"])
    api.erase("s0", "s1")
    work(services)
    said = newest_statement(services).predicate
    assert (said.mechanism, said.bound.rule, said.guarantee.epsilon) == ("retrain", "retrain", 0.0)


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 4), nn.Softplus(threshold=40), nn.Linear(4, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


class Random(Tiny):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.drop(x))


def plug_in(monkeypatch: pytest.MonkeyPatch, module: type[nn.Module]) -> None:
    def build(_: Manifest) -> nn.Module:
        return module()

    place = ModuleType("a_plug_in")
    place.family = network_family("tiny", build)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_plug_in", place)
    entry = EntryPoint("tiny", "a_plug_in:family", "lethe.families")
    for where in (families, manifests):
        monkeypatch.setattr(where, "entry_points", lambda group: [entry] if group == entry.group else [])


def tiny_anchor() -> bytes:
    torch.manual_seed(0)
    return save({name: parameter.detach().clone() for name, parameter in Tiny().named_parameters()})


def test_a_plug_in_module_gets_an_estimate_without_a_guarantee(
    api: Api, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    plug_in(monkeypatch, Tiny)
    policy = MANIFEST["policy"] | {"heuristic": True, "target_distance": 1e-2}
    api.create(**NETWORK | {"family": "tiny", "network": None, "policy": policy})
    api.put("dataset/part0", dataset())
    api.put("anchor", tiny_anchor())
    api.call("POST", "/toy/validate", 202)
    work(services)
    found = api.call("GET", "/toy")
    assert found["state"] == "ready", found["reasons"]
    api.erase("s0", "s1")
    work(services)
    said = newest_statement(services).predicate
    assert (said.bound.rule, said.guarantee.assurance) == ("B2", "heuristic")
    assert (said.guarantee.epsilon, said.lifetime.epsilon_total) == (None, None)
    verdict = verified(api, said.certificate_id)
    assert verdict["verified"], [line for line in verdict["lines"] if line["ok"] is False]


def test_a_module_with_randomness_is_rejected_with_advice(
    api: Api, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    plug_in(monkeypatch, Random)
    api.create(**NETWORK | {"family": "tiny", "network": None, "policy": {"method": "retrain"}})
    api.put("dataset/part0", dataset())
    api.put("anchor", tiny_anchor())
    api.call("POST", "/toy/validate", 202)
    work(services)
    found = api.call("GET", "/toy")
    assert found["state"] == "rejected"
    assert any("drop" in reason for reason in found["reasons"])


@pytest.mark.parametrize("method", ["tr-paper", "guo2020", "zhang2024"])
def test_a_baseline_is_certified_as_published_or_not_at_all(
    method: str, api: Api, services: Services
) -> None:
    asked = {"method": method, "epsilon": 0.5, "fallback": "fail"}
    policy = MANIFEST["policy"] | asked | {"published": {"row_bound": 3.0, "constraint": 100.0}}
    api.create(policy=policy)
    api.put("dataset/part0", dataset())
    api.call("POST", "/toy/validate", 202)
    work(services)
    api.erase("s0", "s1")
    work(services)
    said = newest_statement(services).predicate
    assert (said.mechanism, said.bound.rule, said.guarantee.assurance) == (method, method, "as-published")
    assert (said.noise.calibration, said.noise.data_independent) == ("classical", False)
    assert said.lifetime.release_shift == pytest.approx(said.bound.distance_target / said.noise.sigma)
    verdict = verified(api, said.certificate_id)
    assert verdict["verified"], [line for line in verdict["lines"] if line["ok"] is False]


def test_a_baseline_whose_conditions_do_not_hold_issues_no_certificate(api: Api, services: Services) -> None:
    """The rows are longer than the bound assumes."""
    published = {"row_bound": 0.01}
    policy = MANIFEST["policy"] | {"method": "guo2020", "fallback": "fail", "published": published}
    api.create(policy=policy)
    api.put("dataset/part0", dataset())
    api.call("POST", "/toy/validate", 202)
    work(services)
    api.erase("s0", "s1")
    work(services)
    batches = api.gateway.get("/v1/batches", headers=api.headers).json()["items"]
    assert [(batch["state"], batch["held_reason"]) for batch in batches] == [("held", "not_certifiable")]
    assert "longer" in batches[0]["error"]

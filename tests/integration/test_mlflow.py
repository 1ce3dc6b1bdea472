"""Releases of a real service in a real MLflow registry (SQLite, files on disk), and their model cards."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file
from typer.testing import CliRunner

from app.db.webhooks import EventType
from examples.mlflow_promotion import Promoter, create_app
from lethe import Lethe, NotVerified, ReleaseUnavailable, verify
from lethe.cli.main import app
from lethe.integrations.mlflow import ALIAS, archive_version, log_release, sync_registry
from tests.integration.client_world import JOB_SECONDS, World, register, serving, world
from tests.integration.webhooks.world import Post
from tests.unit.certificate.certificate_cases import Issuer
from tests.unit.certificate.certificate_reports import KEY
from tests.unit.certificate.onnx_graphs import Export
from tests.unit.client.test_cli_export import Service

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["world"]
pytestmark = [
    # MLflow's own, at its import: a loader strategy that SQLAlchemy 2.1 deprecates, and a type hint.
    pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred as AnyType:UserWarning"),
]
FILES = {"MLmodel", "README.md", "model.onnx", "pack.json", "requirements.txt"}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[MlflowClient]":
    """Return a client of MLflow on a database and a folder of its own, without telemetry."""
    folder = tmp_path_factory.mktemp("mlflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
        from mlflow import MlflowClient

        client = MlflowClient()
        client.create_experiment("lethe", artifact_location=(folder / "artifacts").as_uri())
        yield client


def erase(lethe: Lethe, model: str, *subjects: str) -> int:
    """Erase people and return the version that was published."""
    erasure = lethe.erasures.create(list(subjects), models=[model])
    lethe.models.flush(model, force=True)
    (task,) = lethe.erasures.wait(erasure.id, timeout=JOB_SECONDS).tasks
    assert task.version is not None
    return task.version


@pytest.fixture(scope="module")
def lethe(world: World) -> Iterator[Lethe]:
    with world.sync() as client:
        yield client


@pytest.fixture(scope="module")
def model(lethe: Lethe) -> str:
    """Register a model and erase two people from it."""
    register(lethe, "credit")
    assert erase(lethe, "credit", "s1", "s2") == 1
    return "credit"


def stored(registry: "MlflowClient", name: str, version: str) -> Path:
    return Path(str(registry.get_model_version(name, version).source).removeprefix("file://"))


def test_a_release_becomes_a_version_whose_files_verify(
    lethe: Lethe, model: str, registry: "MlflowClient"
) -> None:
    logged = log_release(lethe, model, registry=registry)
    (version,) = (v for v in lethe.versions.list(model) if v.state == "current")
    pack = lethe.certificates.pack(version.certificate_id)  # type: ignore[arg-type]
    folder = stored(registry, "credit", logged.version)
    assert {path.name for path in folder.iterdir()} == FILES, "plain files, and nothing that was pickled"
    assert (folder / "pack.json").read_bytes() == pack.to_bytes()
    report = verify(folder / "pack.json", onnx=folder / "model.onnx", keys=lethe.log.keys())
    assert report.verdict == "verified"

    tags = registry.get_model_version("credit", logged.version).tags
    assert UUID(tags["lethe.certificate_id"]) == version.certificate_id
    assert tags["lethe.weights_sha256"] == version.sha256
    assert tags["lethe.certificate_sha256"] in {c.digest for c in lethe.certificates.list()}
    assert (tags["lethe.model"], tags["lethe.version"], tags["lethe.assurance"]) == ("credit", "1", "proved")
    policy, sigma = lethe.models.get(model).manifest.policy, lethe.models.get(model).sigma
    assert (float(tags["lethe.epsilon"]), float(tags["lethe.delta"])) == (policy.epsilon, policy.delta)
    run = registry.get_run(logged.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"family": "softmax", "mechanism": "tr"}
    expected = {"epsilon": policy.epsilon, "delta": policy.delta, "sigma": sigma}
    assert {name: run.data.metrics[name] for name in expected} == pytest.approx(expected)


def test_mlflow_loads_the_certified_model(
    lethe: Lethe, model: str, registry: "MlflowClient", tmp_path: Path
) -> None:
    pytest.importorskip("pandas")
    import mlflow

    logged = log_release(lethe, model, registry=registry)
    weights = load_file(lethe.versions.download(model, tmp_path / "weights"))
    rows = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    logits = rows @ weights["weight"].T + weights["bias"]
    loaded = mlflow.pyfunc.load_model(f"models:/credit/{logged.version}")
    np.testing.assert_allclose(loaded.predict(rows)["logits"], logits, rtol=1e-5, atol=1e-6)


def test_a_release_is_logged_once_and_scores_can_be_added_later(
    lethe: Lethe, model: str, registry: "MlflowClient"
) -> None:
    first = log_release(lethe, model, registry=registry)
    evaluation = lethe.evaluations.wait(model, lethe.evaluations.start(model).id, timeout=JOB_SECONDS)
    assert evaluation.result is not None
    assert log_release(lethe, model, evaluation=evaluation, registry=registry) == first
    assert len(registry.search_model_versions("name = 'credit'")) == 1
    metrics = registry.get_run(first.run_id).data.metrics
    assert metrics["micro_f1"] == evaluation.result.current.micro_f1
    assert not any("retrained" in name for name in metrics), "that model has no noise"
    other = log_release(lethe, model, evaluation=evaluation, registered_name="other", registry=registry)
    assert (other.name, other.certificate_id) == ("other", first.certificate_id)
    card = (stored(registry, "other", other.version) / "README.md").read_text()
    assert f"| F1 (micro) | {evaluation.result.current.micro_f1:.4g} |" in card


def test_what_does_not_belong_to_the_release_is_refused(
    lethe: Lethe, model: str, registry: "MlflowClient"
) -> None:
    evaluation = next(iter(lethe.evaluations.list(model)))
    wrong = evaluation.model_copy(update={"version": 9})
    with pytest.raises(ReleaseUnavailable, match="about version 9 of credit"):
        log_release(lethe, model, evaluation=wrong, registered_name="wrong", registry=registry)
    with pytest.raises(ReleaseUnavailable, match="has no certificate"):
        log_release(lethe, model, version=0, registry=registry)
    registry.create_registered_model("mine")
    registry.create_model_version("mine", "file:///nowhere")
    with pytest.raises(ReleaseUnavailable, match="was not logged by Lethe"):
        archive_version(registry, "mine", "1")
    assert registry.search_model_versions("name = 'wrong'") == []


def test_a_file_that_does_not_verify_is_not_logged(
    lethe: Lethe, model: str, registry: "MlflowClient", monkeypatch: pytest.MonkeyPatch
) -> None:
    download = type(lethe.versions).download

    def download_other(self: Any, name: str, to: Path, **more: Any) -> Any:
        path = yield from download.procedure(self, name, to, **more)
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        return path

    other: Any = type(download)(download_other)  # type: ignore[arg-type]
    monkeypatch.setattr(type(lethe.versions), "download", other)
    with pytest.raises(NotVerified, match="the ONNX file does not verify"):
        log_release(lethe, model, registered_name="tampered", registry=registry)
    assert registry.search_model_versions("name = 'tampered'") == []


def test_the_card_of_a_release_is_printed_as_it_is(world: World, lethe: Lethe, model: str) -> None:
    env = {"LETHE_URL": world.url, "LETHE_API_KEY": world.key, "COLUMNS": "40"}
    done = CliRunner(env=env).invoke(app, ["card", model, "--evaluation"])
    assert done.exit_code == 0, (done.stderr, done.exception)
    header = yaml.safe_load(done.stdout.split("---\n")[1])
    (version,) = (v for v in lethe.versions.list(model) if v.state == "current")
    assert UUID(header["lethe"]["certificate_id"]) == version.certificate_id
    assert header["lethe"]["sigma"] == pytest.approx(lethe.models.get(model).sigma)
    left = lethe.models.ledger(model).releases_left
    assert f"{left:,} more releases fit before the model must be retrained" in done.stdout
    assert "## Evaluation" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) > 100, "no line is wrapped"
    printed = json.loads(CliRunner(env=env).invoke(app, ["card", model, "--json"]).stdout)
    assert (printed["version"], printed["card"].startswith("---\n")) == (1, True)
    register(lethe, "fresh")
    refused = CliRunner(env=env).invoke(app, ["card", "fresh"])
    assert (refused.exit_code, "has no certificate" in refused.stderr) == (2, True)


@pytest.mark.parametrize("assurance", ["conditional", "heuristic"])
def test_a_network_is_logged_as_safetensors_and_an_estimate_is_no_epsilon(
    assurance: str, registry: "MlflowClient"
) -> None:
    issuer = Issuer(KEY, family="mlp")
    service = Service(Export(issuer, issuer.issue(f"tr-{assurance}"), None, b""))
    with Lethe("http://x", "k", transport=httpx.MockTransport(service.answer)) as lethe:
        logged = log_release(lethe, "credit-scoring", registered_name=assurance, registry=registry)
    folder = stored(registry, assurance, logged.version)
    assert {path.name for path in folder.iterdir()} == {
        "MLmodel",
        "README.md",
        "model.safetensors",
        "pack.json",
    }
    assert verify(folder / "pack.json", weights=folder / "model.safetensors").verdict == "verified"
    tags = registry.get_model_version(assurance, logged.version).tags
    metrics = registry.get_run(logged.run_id).data.metrics
    assert ("lethe.epsilon" in tags, "epsilon" in metrics) == (assurance == "conditional",) * 2
    assert ("estimated_epsilon" in metrics) == (assurance == "heuristic")
    archive_version(registry, assurance, logged.version)
    assert not (folder / "model.safetensors").exists()


@contextmanager
def promotion(world: World, lethe: Lethe, registry: "MlflowClient") -> Iterator[tuple[str, str]]:
    """Run the example, subscribe it to all events, and return its address and its secret."""
    promoter = Promoter("", lethe, registry)
    with serving(create_app(promoter)) as url:
        answer = httpx.post(
            f"{world.url}/v1/webhooks",
            json={"url": f"{url}/hook", "event_types": []},
            headers={"Authorization": f"Bearer {world.key}"},
            timeout=120,
            trust_env=False,
        )
        assert answer.status_code == 201, answer.text
        promoter.secret = answer.json()["secret"]
        yield url, promoter.secret


def test_the_example_promotes_a_new_version_and_archives_the_superseded_one(
    world: World, lethe: Lethe, registry: "MlflowClient"
) -> None:
    register(lethe, "promoted")
    post = Post(world.services)
    with promotion(world, lethe, registry) as (url, _):
        for number, subject in ((1, "s5"), (2, "s6")):
            assert erase(lethe, "promoted", subject) == number
            assert post.deliver() > 0
            certified = registry.get_model_version_by_alias("promoted", ALIAS)
            assert certified.tags["lethe.version"] == str(number)
            assert (stored(registry, "promoted", certified.version) / "model.onnx").exists()
        first, second = sorted(registry.search_model_versions("name = 'promoted'"), key=lambda v: v.version)
        assert (first.tags["lethe.state"], second.tags["lethe.state"]) == ("superseded", "current")
        kept = {path.name for path in stored(registry, "promoted", first.version).iterdir()}
        assert kept == FILES - {"model.onnx"}, "the superseded model is deleted, its certificate stays"

        lethe.models.retire("promoted")
        assert post.deliver() > 0
        assert registry.get_registered_model("promoted").aliases == {}
        assert not (stored(registry, "promoted", second.version) / "model.onnx").exists()
        forged = httpx.post(f"{url}/hook", content=b'{"type":"model.retired"}', timeout=120, trust_env=False)
        assert forged.status_code == 401
    post.courier.close()


def test_a_model_that_nobody_was_erased_from_is_not_in_the_registry(
    lethe: Lethe, registry: "MlflowClient"
) -> None:
    register(lethe, "untouched")
    assert sync_registry(lethe, "untouched", registry=registry) is None
    assert registry.search_model_versions("name = 'untouched'") == []


def test_the_example_knows_the_events_by_their_names() -> None:
    from examples.mlflow_promotion import EVENTS

    assert {EventType(name).value for name in EVENTS} == EVENTS

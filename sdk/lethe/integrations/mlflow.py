"""MLflow: certified releases of Lethe as versions of a registered model.

`log_release` logs one release. `sync_registry` makes a registered model follow its model in Lethe: it logs
the current release, points the alias `certified` at it and archives the versions that it supersedes. Both
need the distribution `mlflow-skinny` or `mlflow`.

Nothing is pickled. The model file is stored byte for byte as it was verified. MLflow's own function for ONNX
models would serialise it again, and the result would no longer match its certificate.
"""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from lethe.certificate.disclosures import describe_statement
from lethe.certificate.onnx_file import can_export
from lethe.client.errors import ReleaseUnavailable
from lethe.client.model_card import render_card
from lethe.client.releases import Release, download_weights, export_onnx, find_release
from lethe.client.responses import Evaluation

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

    from lethe.client.api import Lethe

ALIAS: Final = "certified"
EXPERIMENT: Final = "lethe"
ONNX_FILE: Final = "model.onnx"
WEIGHTS_FILE: Final = "model.safetensors"
PACK_FILE: Final = "pack.json"
CARD_FILE: Final = "README.md"
STATE_TAG: Final = "lethe.state"
CERTIFICATE_TAG: Final = "lethe.certificate_id"
CURRENT, SUPERSEDED = "current", "superseded"
_FOLDER = "model"
_REQUIREMENTS = "mlflow\nonnx\nonnxruntime\n"


@dataclass(frozen=True)
class LoggedRelease:
    """A release in MLflow: the version `version` of the registered model `name`, logged by the run `run_id`.

    `model` and `model_version` are the names of the same release in Lethe.
    """

    name: str
    version: str
    run_id: str
    model: str
    model_version: int
    certificate_id: str


def log_release(
    client: "Lethe",
    model_name: str,
    *,
    version: int | None = None,
    evaluation: Evaluation | None = None,
    registered_name: str | None = None,
    experiment: str = EXPERIMENT,
    registry: "MlflowClient | None" = None,
) -> LoggedRelease:
    """Log a certified release as a version of a registered model, and return that version.

    The version holds the verified model (`model.onnx`, or `model.safetensors` for a network), the pack of its
    certificate and a model card. Its tags name the certificate, ε, δ, the assurance and the digests. ε, δ, σ
    and the scores of `evaluation` are metrics of its run. If the release is already in the registry, only
    the scores are added.

    - `version`: the version in Lethe. Default: the current one.
    - `evaluation`: a completed evaluation of this version.
    - `registered_name`: the registered model, created if needed. Default: the name of the model in Lethe.
    - `experiment`: the experiment of the run, created if needed.
    - `registry`: the client of MLflow. Default: the one that MLFLOW_TRACKING_URI selects.

    Raise `ReleaseUnavailable` if the version has no certificate or the evaluation is about something else,
    and `NotVerified` if a file does not verify.
    """
    registry = _mlflow_client() if registry is None else registry
    release, name = find_release(client, model_name, version), registered_name or model_name
    scores = _check_evaluation(release, evaluation)
    if (existing := _find_logged(registry, name, release.predicate.certificate_id)) is not None:
        _log_metrics(registry, str(existing.run_id), scores)
        return _describe(existing, release)
    with TemporaryDirectory(prefix="lethe-release-") as folder:
        _write_files(client, release, Path(folder), evaluation)
        metrics = release_metrics(release) | scores
        return _describe(_log_folder(registry, release, name, experiment, Path(folder), metrics), release)


def sync_registry(
    client: "Lethe",
    model_name: str,
    *,
    registered_name: str | None = None,
    experiment: str = EXPERIMENT,
    registry: "MlflowClient | None" = None,
) -> LoggedRelease | None:
    """Make a registered model follow its model in Lethe, and return the current release.

    The current release is logged, and the alias `certified` points at it. Every other release of the same
    model is archived with `archive_version`. If the model has no certified version, or was retired, there is
    no alias and the result is None. It is safe to call this function again at any time.
    """
    registry = _mlflow_client() if registry is None else registry
    name, logged = registered_name or model_name, None
    versions = client.versions.list(model_name)
    current = next((v for v in versions if v.state == "current" and v.certificate_id is not None), None)
    if current is not None:
        logged = log_release(
            client,
            model_name,
            version=current.number,
            registered_name=name,
            experiment=experiment,
            registry=registry,
        )
        registry.set_registered_model_alias(name, ALIAS, logged.version)
    for other in _releases_of(registry, name, model_name):
        if logged is None and ALIAS in other.aliases:
            registry.delete_registered_model_alias(name, ALIAS)
        if logged is None or str(other.version) != logged.version:
            archive_version(registry, name, str(other.version))
    return logged


def archive_version(registry: "MlflowClient", name: str, version: str) -> None:
    """Archive a release: delete its model file from MLflow and set its tag `lethe.state` to `superseded`.

    A superseded model was trained on people who have been erased since, so its file must not stay available.
    The certificate, the card, the tags and the metrics stay. Copies that someone downloaded stay too.
    """
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    entry = registry.get_model_version(name, version)
    if CERTIFICATE_TAG not in entry.tags:
        raise ReleaseUnavailable(
            f"version {version} of {name} was not logged by Lethe, so it is not archived"
        )
    if entry.tags.get(STATE_TAG) == SUPERSEDED:
        return
    files: Any = get_artifact_repository(str(entry.source), tracking_uri=registry.tracking_uri)
    stored = {file.path for file in files.list_artifacts()}
    for file in sorted(stored & {ONNX_FILE, WEIGHTS_FILE}):
        files.delete_artifacts(file)
    registry.set_model_version_tag(name, version, STATE_TAG, SUPERSEDED)


def release_tags(release: Release) -> dict[str, str]:
    """Return the tags of a release's version in MLflow. A heuristic certificate has no ε and no δ."""
    predicate = release.predicate
    tags: dict[str, Any] = {
        "lethe.model": predicate.model,
        "lethe.version": predicate.version,
        CERTIFICATE_TAG: predicate.certificate_id,
        "lethe.certificate_sha256": release.digest,
        "lethe.weights_sha256": release.statement.weights_sha256,
        "lethe.assurance": predicate.guarantee.assurance,
        "lethe.epsilon": predicate.guarantee.epsilon,
        "lethe.delta": predicate.guarantee.delta,
        STATE_TAG: CURRENT,
    }
    return {name: str(value) for name, value in tags.items() if value is not None}


def release_metrics(release: Release) -> dict[str, float]:
    """Return the metrics of a release: ε, δ and σ of this release, and ε of all since the last retraining."""
    predicate = release.predicate
    metrics: dict[str, float | None] = {
        "epsilon": predicate.guarantee.epsilon,
        "delta": predicate.guarantee.delta,
        "sigma": predicate.noise.sigma,
        "lifetime_epsilon": predicate.lifetime.epsilon_total,
    }
    if (estimate := predicate.guarantee.estimate) is not None:
        metrics |= {"estimated_epsilon": estimate.epsilon, "estimated_delta": estimate.delta}
    return {name: value for name, value in metrics.items() if value is not None}


def _check_evaluation(release: Release, evaluation: Evaluation | None) -> dict[str, float]:
    """Return the scores of an evaluation as metrics, or raise `ReleaseUnavailable` if it does not fit.

    Only the released model is scored. The retrained one has no noise, so its scores are not for publication.
    """
    if evaluation is None:
        return {}
    number = release.predicate.version
    if (evaluation.model, evaluation.version) != (release.model, number) or evaluation.result is None:
        raise ReleaseUnavailable(
            f"the evaluation is about version {evaluation.version} of {evaluation.model} and is "
            f"{evaluation.state}. Pass a completed evaluation of version {number} of {release.model}"
        )
    scores = evaluation.result.current
    names = ("micro_f1", "loss", "rmse", "r_squared")
    return {name: value for name in names if (value := getattr(scores, name)) is not None}


# ---- Files ----


def _write_files(client: "Lethe", release: Release, folder: Path, evaluation: Evaluation | None) -> None:
    """Write the verified model, the pack, the card and MLflow's description of the folder."""
    (folder / CARD_FILE).write_text(
        render_card(release.pack, version=release.version, evaluation=evaluation), encoding="utf-8"
    )
    (folder / PACK_FILE).write_bytes(release.pack.to_bytes())
    if can_export(release.predicate):
        export_onnx(client, release, folder)
        (folder / "requirements.txt").write_text(_REQUIREMENTS)
    else:
        download_weights(client, release, folder / WEIGHTS_FILE)


def _write_description(release: Release, folder: Path, run_id: str) -> None:
    """Write `MLmodel`. It lets MLflow load an ONNX model, and names the files of any model."""
    from mlflow.models import Model

    description = Model(artifact_path=_FOLDER, run_id=run_id)
    file = ONNX_FILE if (folder / ONNX_FILE).exists() else WEIGHTS_FILE
    description.add_flavor(
        "lethe", data=file, certificate=PACK_FILE, certificate_id=release.predicate.certificate_id
    )
    if file == ONNX_FILE:
        providers = ["CPUExecutionProvider"]
        description.add_flavor("onnx", data=file, providers=providers, onnx_session_options=None, code=None)
        description.add_flavor(
            "python_function",
            loader_module="mlflow.onnx",
            data=file,
            python_version=platform.python_version(),
        )
    description.save(str(folder / "MLmodel"))


# ---- The registry ----


def _mlflow_client() -> "MlflowClient":
    try:
        from mlflow import MlflowClient
    except ImportError:
        raise ImportError(
            "lethe.integrations.mlflow needs MLflow, which is not installed. Install the distribution "
            "mlflow-skinny, or mlflow if you also want to load models with it"
        ) from None
    return MlflowClient()


def _log_folder(
    registry: "MlflowClient",
    release: Release,
    name: str,
    experiment: str,
    folder: Path,
    metrics: Mapping[str, float],
) -> "ModelVersion":
    """Log a folder in a run of its own and register it. If that fails, the run is marked as failed."""
    tags, predicate = release_tags(release), release.predicate
    title = f"{predicate.model} version {predicate.version}"
    run = registry.create_run(_experiment_id(registry, experiment), tags=tags, run_name=title)
    run_id = run.info.run_id
    try:
        _write_description(release, folder, run_id)
        registry.log_artifacts(run_id, str(folder), _FOLDER)
        _log_metrics(registry, run_id, metrics)
        registry.log_param(run_id, "family", predicate.objective.family)
        registry.log_param(run_id, "mechanism", predicate.mechanism)
        _create_registered_model(registry, name)
        entry = registry.create_model_version(
            name,
            f"{run.info.artifact_uri}/{_FOLDER}",
            run_id=run_id,
            tags=tags,
            description=describe_statement(release.statement),
        )
    except BaseException:
        registry.set_terminated(run_id, status="FAILED")
        raise
    registry.set_terminated(run_id)
    return entry


def _log_metrics(registry: "MlflowClient", run_id: str, metrics: Mapping[str, float]) -> None:
    for name, value in metrics.items():
        registry.log_metric(run_id, name, value)


def _experiment_id(registry: "MlflowClient", name: str) -> str:
    found = registry.get_experiment_by_name(name)
    return str(registry.create_experiment(name) if found is None else found.experiment_id)


def _create_registered_model(registry: "MlflowClient", name: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        registry.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _find_logged(registry: "MlflowClient", name: str, certificate_id: str) -> "ModelVersion | None":
    """Return the version of a registered model that holds this certificate, or None."""
    found = registry.search_model_versions(f"tags.`{CERTIFICATE_TAG}` = '{certificate_id}'")
    return next((entry for entry in found if entry.name == name), None)


def _releases_of(registry: "MlflowClient", name: str, model_name: str) -> "list[ModelVersion]":
    """Return all versions of a registered model that are releases of this model in Lethe."""
    found, token = [], None
    while True:
        page = registry.search_model_versions(f"tags.`lethe.model` = '{model_name}'", page_token=token)
        # The search does not return aliases, so each version is fetched.
        found += [registry.get_model_version(name, entry.version) for entry in page if entry.name == name]
        if not (token := page.token):
            return found


def _describe(entry: "ModelVersion", release: Release) -> LoggedRelease:
    predicate = release.predicate
    return LoggedRelease(
        name=entry.name,
        version=str(entry.version),
        run_id=str(entry.run_id),
        model=predicate.model,
        model_version=predicate.version,
        certificate_id=predicate.certificate_id,
    )

"""The linter of the manifests reports faults, with and without kubectl."""

import shutil
from pathlib import Path

import pytest

from tests.lint_containers import ROOT
from tests.lint_kubernetes import is_workload, lint, pod_of, read_resources
from tests.unit.test_containers import commands

HERE = "deploy/kubernetes"


def changed(folder: Path, file: str, before: str, after: str) -> list[str]:
    shutil.copytree(ROOT / HERE, folder / HERE)
    target = folder / HERE / file
    text = target.read_text()
    assert before in text
    target.write_text(text.replace(before, after))
    return lint(folder)


@pytest.fixture
def unbuilt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)


@pytest.mark.usefixtures("unbuilt")
@pytest.mark.parametrize(
    ("file", "before", "after", "fault"),
    [
        ("base/gateway.yaml", "lethe-gateway:0.1.0", "lethe-gateway:latest", "not pinned"),
        ("base/gateway.yaml", "livenessProbe", "readinessProbe", "no liveness or startup probe"),
        ("base/gateway.yaml", "replicas: 2", "replicas: two", "(Kubernetes 1.34)"),
        ("base/gateway.yaml", "timeoutSeconds: 5", "timeOutSeconds: 5", "timeOutSeconds"),
        (
            "base/gateway.yaml",
            "secretName: lethe-metrics",
            "secretName: lethe-signing-key",
            "only the worker may have the signing key",
        ),
        ("base/gateway.yaml", "/metrics/token", "/metrics/tokens", "names a file that no volume provides"),
        ("base/gateway.yaml", "LETHE_METRICS_TOKEN_FILE", "LETHE_METRIC_TOKEN_FILE", "is not a setting"),
        ("base/dispatcher.yaml", "runAsNonRoot: true", "runAsNonRoot: false", "may run as root"),
        ("base/dispatcher.yaml", "key: redis-url", "key: redis", "has no key redis"),
        ("base/dispatcher.yaml", "readinessProbe", "livenessProbe", "has no readiness probe"),
        (
            "base/worker.yaml",
            "readOnlyRootFilesystem: true",
            "readOnlyRootFilesystem: false",
            "can be written",
        ),
        ("base/worker.yaml", "PeriodSeconds: 660", "PeriodSeconds: 600", "needs more than 600 s"),
        ("base/worker.yaml", "drop: [ALL]", "drop: [CHOWN]", "keeps capabilities"),
        ("base/migrate.yaml", "automountServiceAccountToken: false", "hostNetwork: false", "mounts a token"),
        (
            "base/networkpolicy.yaml",
            "podSelector: {}",
            "podSelector: {matchLabels: {a: b}}",
            "no network policy",
        ),
        ("base/kustomization.yaml", "  - worker.yaml\n", "", "worker.yaml is not listed"),
        (
            "base/worker.yaml",
            "mountPath: /var/lib/lethe-log",
            "mountPath: /log",
            "keeps no tree head",
        ),
        (
            "base/worker.yaml",
            "        name: log-head\n",
            "        name: log\n",
            "no volume log-head",
        ),
        ("base/worker.yaml", "LETHE_LOG_SEEN_FILE", "LETHE_LOG_ORIGIN", "keeps no tree head"),
        ("overlays/gpu/worker-patch.yaml", "kind: StatefulSet", "kind: Deployment", "is a StatefulSet"),
        ("overlays/gpu/worker-patch.yaml", "name: lethe-worker", "name: worker", "no workload worker"),
        ("overlays/production/autoscaling.yaml", "maxReplicas", "mostReplicas", "maxReplicas' is a required"),
        ("overlays/production/kustomization.yaml", "newTag: 0.1.0", "newTag: latest", "not pinned"),
        ("overlays/single/kustomization.yaml", "storage-patch", "storage-path", "does not exist"),
    ],
)
def test_a_fault_is_reported(tmp_path: Path, file: str, before: str, after: str, fault: str) -> None:
    assert any(fault in reported for reported in changed(tmp_path, file, before, after))


@pytest.mark.usefixtures("unbuilt")
def test_overlays_that_cannot_be_built_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert lint(ROOT) == []
    assert "overlay gpu were checked, but not built" in capsys.readouterr().out


def test_a_built_overlay_is_checked(tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("NOT TESTED: kubectl is not installed, so overlays are checked but not built")
    faults = changed(tmp_path, "overlays/gpu/worker-patch.yaml", "nvidia.com/gpu: 1", "nvidia.com/gpu: {}")
    assert any(fault.startswith("gpu: StatefulSet lethe-worker") for fault in faults)


def test_every_command_exists() -> None:
    workloads = [d for d in read_resources(ROOT / HERE / "base") if is_workload(d)]
    named = {container["args"][0] for d in workloads for container in pod_of(d)["containers"]}
    assert named == {"gateway", "dispatcher", "worker", "migrate"}
    assert named <= commands()


@pytest.mark.usefixtures("unbuilt")
def test_an_overlay_may_pin_images_by_digest(tmp_path: Path) -> None:
    digest = f"digest: sha256:{'ab' * 32}"
    assert changed(tmp_path, "overlays/production/kustomization.yaml", "newTag: 0.1.0", digest) == []

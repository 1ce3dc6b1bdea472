"""`lethe export` writes a verified ONNX file or nothing, against a service in memory."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from lethe import Lethe, Retry
from lethe.cli.context import CommandContext
from lethe.cli.main import app
from tests.unit.certificate.certificate_cases import Issuer
from tests.unit.certificate.certificate_reports import KEY
from tests.unit.certificate.onnx_graphs import Export, export, image_export, text_export, vector_export
from tests.unit.certificate.representation_cases import TOKENIZER

DATE = "2026-01-31T09:00:00Z"


class Service:
    """Answers the requests of one export."""

    def __init__(self, case: Export) -> None:
        self.files = {"checkpoint": case.weights, "representation": case.graph, "tokenizer": TOKENIZER}
        self.pack = case.issuer.pack().to_bytes()
        self.certificate_id = case.issued.predicate.certificate_id
        self.asked: list[str] = []

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.path)
        parts = request.url.path.split("/")
        if parts[-1] == "versions":
            return httpx.Response(200, json=[self._version(1, self.certificate_id), self._version(0, None)])
        if parts[-1] == "pack":
            return httpx.Response(200, content=self.pack)
        content = self.files[parts[-2] if parts[-1] == "content" else parts[-1]]
        assert content is not None
        digest = hashlib.sha256(content)
        announced = f"sha-256=:{base64.b64encode(digest.digest()).decode()}:"
        headers = {"Repr-Digest": announced, "ETag": f'"{digest.hexdigest()}"'}
        return httpx.Response(200, content=content, headers=headers)

    def _version(self, number: int, certificate_id: str | None) -> dict[str, Any]:
        return {
            "number": number,
            "state": "current" if number else "superseded",
            "sha256": "0" * 64,
            "size": 1,
            "certificate_id": certificate_id,
            "batch_id": None,
            "created_at": DATE,
            "superseded_at": None,
        }

    def run(self, monkeypatch: pytest.MonkeyPatch, *words: object) -> Result:
        transport = httpx.MockTransport(self.answer)
        lethe = Lethe("http://x", "k", transport=transport, retry=Retry(times=0))
        monkeypatch.setattr(CommandContext, "api", lethe)
        return CliRunner().invoke(app, ["export", "credit-scoring", *map(str, words)])


@pytest.mark.parametrize(
    "make",
    [vector_export, image_export, text_export, lambda: export(None, None, "logistic")],
    ids=["vector", "image", "text", "plain"],
)
def test_an_export_is_the_joined_file_and_can_be_verified(
    make: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    case = make()
    service = Service(case)
    onnx, pack = tmp_path / "model.onnx", tmp_path / "pack.json"
    done = service.run(monkeypatch, "--onnx", onnx, "--pack", pack)
    assert done.exit_code == 0, (done.stderr, done.exception)
    assert onnx.read_bytes() == case.data
    representation = case.issued.predicate.objective.representation
    texts = representation is not None and representation.tokenizer_sha256 is not None
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx", "pack.json"} | (
        {"tokenizer.json"} if texts else set()
    )
    assert any("representation" in path for path in service.asked) == (representation is not None)
    verified = CliRunner().invoke(app, ["verify", str(pack), "--onnx", str(onnx)])
    assert verified.exit_code == 0
    assert "✓ 10. " in verified.stdout
    report = json.loads(service.run(monkeypatch, "--onnx", onnx, "--json").stdout)
    assert (report["verified"], report["version"], report["size"]) == (True, 1, len(case.data))


def refused(service: Service, monkeypatch: pytest.MonkeyPatch, folder: Path, *words: object) -> Result:
    """Run an export that must fail and leave an existing file as it was."""
    onnx = folder / "model.onnx"
    onnx.write_bytes(b"as it was")
    done = service.run(monkeypatch, "--onnx", onnx, *words)
    assert [path.name for path in folder.iterdir()] == ["model.onnx"]
    assert onnx.read_bytes() == b"as it was"
    return done


def test_version_0_and_unknown_versions_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    service = Service(vector_export())
    done = refused(service, monkeypatch, tmp_path, "--version", 0)
    assert (done.exit_code, "has no certificate" in done.stderr) == (2, True)
    done = refused(service, monkeypatch, tmp_path, "--version", 7)
    assert (done.exit_code, "has no version 7" in done.stderr) == (2, True)


def test_a_graph_that_is_not_the_certified_one_is_not_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    service = Service(vector_export())
    service.files["representation"] = vector_export(opset=17).graph
    done = refused(service, monkeypatch, tmp_path)
    assert done.exit_code == 1
    assert "Nothing was written" in done.stdout
    assert "✗ 10. " in done.stderr


def test_other_weights_and_another_tokenizer_are_not_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    service = Service(vector_export())
    service.files["checkpoint"] = export(None, None, "logistic").weights
    assert refused(service, monkeypatch, tmp_path).exit_code == 1
    service = Service(text_export())
    service.files["tokenizer"] = b"{}"
    done = refused(service, monkeypatch, tmp_path)
    assert (done.exit_code, "tokenizer is not the one" in done.stderr) == (2, True)


def test_a_network_is_refused_with_what_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    issuer = Issuer(KEY, family="mlp")
    issued = issuer.issue("tr-conditional")
    done = refused(Service(Export(issuer, issued, None, b"")), monkeypatch, tmp_path)
    assert (done.exit_code, "softmax, logistic and ridge can" in done.stderr) == (2, True)


def test_another_models_tokenizer_and_a_missing_folder_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    service = Service(text_export())
    other = tmp_path / "tokenizer.json"
    other.write_bytes(b"{}")
    done = service.run(monkeypatch, "--onnx", tmp_path / "model.onnx")
    assert (done.exit_code, "another tokenizer" in done.stderr) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]
    assert other.read_bytes() == b"{}"
    done = service.run(monkeypatch, "--onnx", tmp_path / "missing" / "model.onnx")
    assert (done.exit_code, "does not exist" in done.stderr) == (2, True)

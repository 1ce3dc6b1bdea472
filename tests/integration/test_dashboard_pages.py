"""What the pages show to which tenant and scope, for a model with one erasure done and one waiting."""

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from fastapi.testclient import TestClient

from app.db.tables import Certificate
from app.gateway.auth.scopes import Scope
from app.gateway.certificates import verification
from app.services import Services
from lethe.certificate.cli import run_verify
from tests.integration.dashboard import Visitor
from tests.integration.model_api import Api, registered, work

SECRET = "case-of-the-owner"


class Owned:
    """A tenant with a model, one finished erasure and one that waits."""

    def __init__(self, gateway: TestClient, services: Services) -> None:
        self.visitor = Visitor(gateway, services, "owner").signed_in()
        self.api = Api(gateway, self.visitor.headers)
        registered(self.api, services)
        self.erasure = self.ask("s1", "s2", "nobody")
        work(services)
        self.waiting = self.ask("s3")
        shown = self.get(f"/v1/erasures/{self.erasure}")
        assert shown["state"] == "completed", shown
        (task,) = shown["tasks"]
        self.batch, self.certificate = task["batch_id"], task["certificate_id"]

    def ask(self, *subjects: str) -> str:
        body = {"subjects": subjects, "reference": SECRET}
        answer = self.api.gateway.post("/v1/erasures", json=body, headers=self.visitor.headers)
        return str(answer.json()["id"])

    def get(self, path: str) -> Any:
        return self.api.gateway.get(path, headers=self.visitor.headers).json()

    def pages(self) -> list[str]:
        certificate, versions = f"/certificates/{self.certificate}", "/models/toy/versions"
        return [
            f"/erasures/{self.erasure}",
            f"/erasures/{self.erasure}/receipts/toy/0.json",
            f"/batches/{self.batch}",
            f"/batches/{self.batch}/events",
            f"/batches/{self.batch}/retry",
            "/models/toy",
            f"{versions}/1/checkpoint",
            f"{versions}/current/signature",
            certificate,
            f"{certificate}/pack.json",
            f"{certificate}/bundle.json",
            f"{certificate}/print",
            f"/erasures/{self.erasure}/letter/0",
            f"/erasures/{self.erasure}/extend",
            f"/erasures/{self.erasure}/withdraw",
            f"/erasures/{self.erasure}/acknowledge",
            "/models/toy/flush",
        ]


@pytest.fixture
def owned(gateway: TestClient, services: Services) -> Owned:
    return Owned(gateway, services)


def test_pages_show_a_tenant_its_own_data_and_nobody_else(
    owned: Owned,
    gateway: TestClient,
    services: Services,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _check_content(owned.visitor, owned)
    _check_other_tenant_sees_nothing(Visitor(gateway, services, "stranger").signed_in(), owned)
    _check_downloads_verify(owned.visitor, owned, tmp_path)
    _check_exact_figures_need_audit_scope(gateway, services)
    _check_unread_file_is_not_reported_as_checked(owned, monkeypatch)
    _check_broken_certificate_is_reported(owned, services)


def _check_content(visitor: Visitor, owned: Owned) -> None:
    overview = visitor.get("/").text
    assert "<strong>1</strong> open request<" in overview
    assert SECRET in overview
    erasure = visitor.get(f"/erasures/{owned.erasure}").text
    assert "2 people</strong>: erased from the model" in erasure
    assert "1 person</strong>: no data found" in erasure
    certificate = visitor.get(f"/certificates/{owned.certificate}").text
    assert certificate.count('aria-hidden="true">✓</span>') == 8
    assert "Verified" in certificate
    assert "73 %" in certificate
    assert "In at most 1 in 6,200 such releases they may become surer" in certificate
    assert "by at most a factor of 2.72 (e^ε), plus 1 in 100,000 (δ)." in certificate
    assert "but for a chance of" not in certificate, "δ is not the probability that the loss exceeds ε"
    model = visitor.get("/models/toy").text
    assert "Version 1" in model
    assert "of 8</span>" in model
    assert "Micro-F1" in model
    assert "In at most 1 in 6,200 releases they may become surer" in model
    found = visitor.get(f"/erasures?q={owned.erasure.upper()}")
    assert found.headers["location"] == f"/erasures/{owned.erasure}"
    assert "2 requests found" in visitor.get(f"/erasures?q={SECRET}").text
    assert "No requests match" in visitor.get("/erasures?q=other").text
    assert "1 request found" in visitor.get("/erasures?state=received&model=toy").text
    assert "s1" not in erasure.split(), "pages must not show identifiers"


def _check_other_tenant_sees_nothing(stranger: Visitor, owned: Owned) -> None:
    for path in owned.pages():
        assert stranger.get(path).status_code == 404, path
    token = stranger.token("/")
    assert stranger.send(f"/batches/{owned.batch}/retry", {"form_token": token}).status_code == 404
    for path in ("/", "/erasures", "/batches", "/models", "/certificates", f"/erasures?q={SECRET}"):
        text = stranger.get(path).text.replace(f'value="{SECRET}"', "")
        for value in (SECRET, owned.erasure, owned.batch, owned.certificate, "/models/toy"):
            assert value not in text, path


def _check_downloads_verify(visitor: Visitor, owned: Owned, folder: Path) -> None:
    certificate = f"/certificates/{owned.certificate}"
    files = {
        "pack": f"{certificate}/pack.json",
        "model": "/models/toy/versions/1/checkpoint",
        "keys": "/certificates/keys.json",
        "receipt": f"/erasures/{owned.erasure}/receipts/toy/0.json",
    }
    for name, path in files.items():
        answer = visitor.get(path)
        assert answer.status_code == 200, path
        assert answer.headers["content-disposition"].startswith("attachment;"), path
        (folder / name).write_bytes(answer.content)
    stored: dict[str, Any] = {name: folder / name for name in files}
    output: list[str] = []
    assert run_verify(**stored, subject="s1", as_json=True, write=output.append) == 0, output
    assert json.loads(output[0])["keys"] == "given"
    from_api = owned.get(f"/v1{certificate}/pack")
    assert json.loads((folder / "pack").read_text()) == from_api
    half = visitor.get("/models/toy/versions/1/checkpoint", headers={"Range": "bytes=0-9"})
    assert (half.status_code, len(half.content)) == (206, 10)
    assert visitor.get("/models/toy/versions/0/checkpoint").status_code == 410


def _check_exact_figures_need_audit_scope(gateway: TestClient, services: Services) -> None:
    """The page hides the same figures that the API shows only with `audit:read`."""
    scopes = set(Scope) - {Scope.ADMIN, Scope.AUDIT_READ}
    model = Visitor(gateway, services, "owner", *scopes).signed_in().get("/models/toy").text
    assert "Micro-F1" not in model
    assert "<code>audit:read</code>" in model


def _check_broken_certificate_is_reported(owned: Owned, services: Services) -> None:
    with services.database.writing() as session:
        found = session.get_one(Certificate, UUID(owned.certificate))
        document = json.loads(found.envelope)
        signature = document["signatures"][0]["sig"]
        document["signatures"][0]["sig"] = ("A" if signature[9] != "A" else "B").join(
            (signature[:9], signature[10:])
        )
        found.envelope = json.dumps(document).encode()
    page = owned.visitor.get(f"/certificates/{owned.certificate}").text
    assert "Not verified" in page
    assert 'aria-hidden="true">✗</span>' in page
    assert "Do not rely on anything on this page" in page


def _check_unread_file_is_not_reported_as_checked(owned: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(verification, "MAX_FILE_BYTES", 10)
        page = owned.visitor.get(f"/certificates/{owned.certificate}").text
    assert "not checked: the file is large" in page
    assert page.count('aria-hidden="true">✓</span>') == 7
    assert 'aria-hidden="true">–</span>' in page
    assert "about this exact file" not in page
    assert "Verified, except for the file" in page

"""Register → erase → solve → certify → publish → download → verify, with real components."""

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.services import Services
from lethe.certificate.cli import run_verify
from tests.integration.harness import System, create_model

pytestmark = pytest.mark.slow

Headers = dict[str, str]


def _get(gateway: TestClient, path: str, headers: Headers) -> Any:
    answer = gateway.get(path, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_an_erasure_ends_in_a_certificate_that_verifies_offline(
    gateway: TestClient, admin: Headers, system: System, tmp_path: Path
) -> None:
    create_model(gateway, admin)
    system.settle()
    assert _get(gateway, "/v1/models/toy", admin)["state"] == "ready"

    asked = gateway.post("/v1/erasures", json={"subjects": ["s1", "s2", "nobody"]}, headers=admin)
    assert asked.status_code == 202
    assert asked.headers["Location"] == f"/v1/erasures/{asked.json()['id']}"
    system.settle()

    erasure = _get(gateway, asked.headers["Location"], admin)
    assert erasure["state"] == "completed"
    (task,) = erasure["tasks"]
    assert task["outcomes"] == {"erased": 2, "not_in_training_set": 1}
    assert task["version"] == 1

    download = gateway.get("/v1/models/toy/versions/current/checkpoint", headers=admin)
    pack = gateway.get(f"/v1/certificates/{task['certificate_id']}/pack", headers=admin)
    evidence = gateway.get(f"/v1/certificates/{task['certificate_id']}/evidence", headers=admin)
    for name, answer in {"m.safetensors": download, "pack.json": pack, "evidence.json": evidence}.items():
        assert answer.status_code == 200
        (tmp_path / name).write_bytes(answer.content)
    lines: list[str] = []
    code = run_verify(
        pack=tmp_path / "pack.json",
        model=tmp_path / "m.safetensors",
        evidence=tmp_path / "evidence.json",
        as_json=True,
        write=lines.append,
    )
    assert code == 0, lines
    assert json.loads("".join(lines))["verified"] is True


def test_people_without_rows_complete_without_a_new_version(
    gateway: TestClient, admin: Headers, system: System
) -> None:
    create_model(gateway, admin)
    system.settle()
    asked = gateway.post("/v1/erasures", json={"subjects": ["nobody", "noone"]}, headers=admin).json()
    system.settle()
    erasure = _get(gateway, f"/v1/erasures/{asked['id']}", admin)
    assert erasure["state"] == "completed"
    assert erasure["tasks"][0]["version"] is None
    assert [v["number"] for v in _get(gateway, "/v1/models/toy/versions", admin)] == [0]


def test_after_completion_no_identifier_old_part_or_old_weights_are_left(
    gateway: TestClient, admin: Headers, system: System, services: Services
) -> None:
    create_model(gateway, admin)
    system.settle()
    before = set(services.storage.list("datasets") + services.storage.list("attempts"))
    gateway.post("/v1/erasures", json={"subjects": ["s1", "s2"]}, headers=admin)
    system.settle()
    after = set(services.storage.list("datasets") + services.storage.list("attempts"))
    assert before.isdisjoint(after), "every file of the old generation and version is gone"
    assert len(after) == 2, "the rewritten part and the published checkpoint"
    old = gateway.get("/v1/models/toy/versions/0/checkpoint", headers=admin)
    assert old.status_code == 410
    assert old.json()["current"] == "/v1/models/toy/versions/1/checkpoint"

"""Receipts: fetched, verified offline by their subject, and gone with their salts."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.bootstrap import Services
from app.clock import now
from app.db.tables import TaskSubject
from app.dispatcher import Dispatcher
from certificate.cli import run_verify
from tests.integration.harness import MANIFEST, create_model, dataset
from tests.integration.model_api import Api, Headers, work
from tests.integration.test_canary import _database_bytes as database_bytes


@pytest.fixture
def ready(gateway: TestClient, admin: Headers, services: Services) -> Api:
    api = Api(gateway, admin)
    api.create(policy=MANIFEST["policy"] | {"batch_subjects": 4, "receipt_days": 3})
    api.put("dataset/part0", dataset())
    api.call("POST", "/toy/validate", 202)
    work(services)
    return api


def ask(api: Api, *subjects: str) -> str:
    answer = api.gateway.post("/v1/erasures", json={"subjects": subjects}, headers=api.headers)
    assert answer.status_code == 202
    where: str = answer.headers["Location"]
    return where


def get(api: Api, path: str, status: int = 200) -> Any:
    answer = api.gateway.get(path, headers=api.headers)
    assert answer.status_code == status, answer.text
    return answer.json()


def acknowledge(api: Api, where: str, status: int = 200) -> Any:
    answer = api.gateway.post(f"{where}/receipts/acknowledge", headers=api.headers)
    assert answer.status_code == status, answer.text
    return answer.json()


def salts(services: Services) -> list[bytes]:
    with services.database.reading() as session:
        found = session.scalars(select(TaskSubject.salt).where(TaskSubject.salt.is_not(None))).all()
    return [bytes(salt) for salt in found if salt is not None]


class Auditor:
    """A subject with the certificate's pack on their own machine."""

    def __init__(self, api: Api, certificate_id: str, folder: Path) -> None:
        self.folder = folder
        for name, path in {
            "pack.json": f"/v1/certificates/{certificate_id}/pack",
            "model.safetensors": "/v1/models/toy/versions/current/checkpoint",
        }.items():
            answer = api.gateway.get(path, headers=api.headers)
            assert answer.status_code == 200
            (folder / name).write_bytes(answer.content)

    def verifies(self, item: Any, subject: str | None) -> bool:
        (self.folder / "receipt.json").write_text(json.dumps(item["receipt"], indent=2))
        lines: list[str] = []
        code = run_verify(
            pack=self.folder / "pack.json",
            model=self.folder / "model.safetensors",
            receipt=self.folder / "receipt.json",
            subject=subject,
            as_json=True,
            write=lines.append,
        )
        report = json.loads("".join(lines))
        assert code in (0, 1), lines
        failed = [line["number"] for line in report["lines"] if line["ok"] is False]
        assert failed == ([] if code == 0 else [9])
        return code == 0


def test_each_subject_gets_a_receipt_that_verifies_for_them_alone(
    ready: Api, services: Services, tmp_path: Path
) -> None:
    first, second = ask(ready, "s1", "nobody", "s2"), ask(ready, "s3")
    assert get(ready, f"{first}/receipts")["items"] == []
    acknowledge(ready, first, 409)
    work(services)
    items = get(ready, f"{first}/receipts")["items"]
    assert [(item["model"], item["ordinal"], item["outcome"]) for item in items] == [
        ("toy", 0, "erased"),
        ("toy", 1, "not_in_training_set"),
        ("toy", 2, "erased"),
    ]
    certificate_id = get(ready, first)["tasks"][0]["certificate_id"]
    assert [item["certificate_id"] for item in items] == [certificate_id, None, certificate_id]
    auditor = Auditor(ready, certificate_id, tmp_path)
    for item, subject in zip(items, ["s1", "nobody", "s2"], strict=True):
        assert auditor.verifies(item, subject)
        assert auditor.verifies(item, None)
        assert not auditor.verifies(item, "s3")
        assert subject not in json.dumps(item)

    assert acknowledge(ready, first) == {"destroyed": 3}
    assert acknowledge(ready, first) == {"destroyed": 0}
    assert get(ready, f"{first}/receipts", 410)["type"] == "urn:lethe:problem:gone"
    get(ready, f"{first}/receipts?model=toy&ordinal=1", 410)
    (other,) = get(ready, f"{second}/receipts")["items"]
    assert auditor.verifies(other, "s3"), "the destroyed salts of others do not break the path"


def test_receipts_are_paged_and_filtered(ready: Api, services: Services) -> None:
    create_model(ready.gateway, ready.headers, "other")
    work(services)
    where = ask(ready, *(f"s{i}" for i in range(4)), "nobody")
    work(services)
    whole = get(ready, f"{where}/receipts")
    assert whole["next_cursor"] is None
    seen, cursor = [], ""
    while cursor is not None:
        page = get(ready, f"{where}/receipts?limit=2" + (f"&cursor={cursor}" if cursor else ""))
        seen += page["items"]
        cursor = page["next_cursor"]
    assert seen == whole["items"]
    for model in ("toy", "other"):
        mine = [item for item in seen if item["model"] == model]
        assert [item["ordinal"] for item in mine] == [0, 1, 2, 3, 4]
        assert get(ready, f"{where}/receipts?model={model}")["items"] == mine
        assert get(ready, f"{where}/receipts?model={model}&ordinal=3")["items"] == [mine[3]]
    assert get(ready, f"{where}/receipts?model=third")["items"] == []
    get(ready, f"{where}/receipts?cursor=x", 422)
    get(ready, "/v1/erasures/01890000-0000-7000-8000-000000000000/receipts", 404)


def test_an_erasure_of_nobody_is_answered_with_signed_receipts(
    ready: Api, services: Services, tmp_path: Path
) -> None:
    """Before any certificate is issued, and read with the pack of a later one."""
    where = ask(ready, *(f"nobody{i}" for i in range(4)))
    work(services)
    items = get(ready, f"{where}/receipts")["items"]
    assert [item["outcome"] for item in items] == ["not_in_training_set"] * 4
    later = ask(ready, *(f"s{i}" for i in range(4)))
    work(services)
    auditor = Auditor(ready, get(ready, later)["tasks"][0]["certificate_id"], tmp_path)
    assert auditor.verifies(items[2], "nobody2")
    assert not auditor.verifies(items[2], "nobody1")


def test_nobody_whose_rows_were_found_outside_the_training_data_is_told_that_none_are_held(
    ready: Api, services: Services
) -> None:
    ready.put("dataset/part1", dataset(rows=50, subjects=50, seed=9))
    where = ask(ready, "s1", "s40", "nobody", "noone")
    work(services)
    items = get(ready, f"{where}/receipts")["items"]
    assert [item["outcome"] for item in items] == [
        "erased",
        "erased_outside_training",
        "not_in_training_set",
        "not_in_training_set",
    ]
    assert [item["receipt"] is None for item in items] == [False, True, False, False]
    (alone,) = get(ready, f"{where}/receipts?ordinal=1")["items"]
    assert (alone["receipt"], alone["certificate_id"]) == (None, None)


def test_acknowledged_salts_are_nowhere_in_the_database(ready: Api, services: Services) -> None:
    where = ask(ready, "s1", "s2", "s3", "nobody")
    work(services)
    kept = salts(services)
    signed = get(ready, f"{where}/receipts?ordinal=3")["items"][0]["receipt"]["payload"]
    assert len(kept) == 4
    assert all(salt in database_bytes(services) for salt in kept)
    acknowledge(ready, where)
    left = database_bytes(services)
    assert not any(salt in left for salt in kept)
    assert signed.encode() not in left


def test_salts_are_destroyed_when_the_policys_days_are_over(ready: Api, services: Services) -> None:
    where = ask(ready, "s1", "s2", "s3", "nobody")
    work(services)
    kept = salts(services)
    early = Dispatcher(services, clock=lambda: now() + timedelta(days=2, hours=23))
    early.forget_expired()
    assert len(get(ready, f"{where}/receipts")["items"]) == 4
    late = Dispatcher(services, clock=lambda: now() + timedelta(days=3, minutes=1))
    late.forget_expired()
    get(ready, f"{where}/receipts", 410)
    assert not any(salt in database_bytes(services) for salt in kept)
    assert get(ready, where)["tasks"][0]["outcomes"] == {"erased": 3, "not_in_training_set": 1}

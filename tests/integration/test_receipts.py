"""Receipts: fetched, verified offline by their subject, and destroyed with their salts."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from app.core.clock import now
from app.db import log_store
from app.db.tables import LogHead, LogNode, Model, Task, TaskSubject
from app.services import Services
from lethe.certificate.cli import run_verify
from lethe.certificate.commitment import subject_digest
from lethe.certificate.envelope import sign
from lethe.certificate.keys import KeySet, PublicKey, SigningKey
from lethe.certificate.merkle import MemoryTree, leaf_hash
from lethe.certificate.receipt import NO_DATA_PAYLOAD, NoDataHeldV1, verify_no_data_receipt
from lethe.certificate.tree_head import verify_tree_head
from tests.integration.database_files import database_bytes
from tests.integration.harness import MANIFEST, Clocks, create_model, dataset
from tests.integration.model_api import Api, Headers, work
from worker.batch import no_data_receipts
from worker.signing import load_signer


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


def stored(services: Services, column: Any) -> list[Any]:
    with services.database.reading() as session:
        return [value for value in session.scalars(select(column)) if value is not None]


def salts(services: Services) -> list[bytes]:
    return stored(services, TaskSubject.salt)


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
    seen: list[Any] = []
    cursor: str | None = ""
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
    """A receipt from before the first certificate verifies with the pack of a later one."""
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
    (signed,) = stored(services, TaskSubject.no_data)
    assert len(kept) == 4
    assert all(salt in database_bytes(services) for salt in [*kept, signed])
    acknowledge(ready, where)
    left = database_bytes(services)
    assert not any(salt in left for salt in [*kept, signed])
    assert stored(services, TaskSubject.log_index) == []


def test_salts_are_destroyed_when_the_policys_days_are_over(ready: Api, services: Services) -> None:
    where = ask(ready, "s1", "s2", "s3", "nobody")
    work(services)
    kept = salts(services)
    clocks = Clocks()
    dispatcher = clocks.dispatcher(services)
    dispatcher.forget_expired()
    clocks.pass_time(timedelta(days=2, hours=23))
    dispatcher.forget_expired()
    assert len(get(ready, f"{where}/receipts")["items"]) == 4
    clocks.pass_time(timedelta(hours=1, minutes=1))
    dispatcher.forget_expired()
    get(ready, f"{where}/receipts", 410)
    assert not any(salt in database_bytes(services) for salt in kept)
    assert get(ready, where)["tasks"][0]["outcomes"] == {"erased": 3, "not_in_training_set": 1}


def test_statements_of_no_data_are_leaves_of_the_log_under_its_newest_head(
    ready: Api, services: Services
) -> None:
    where = ask(ready, "s1", "nobody", "noone", "s2")
    work(services)
    keys = KeySet.read(ready.gateway.get("/v1/keys", headers=ready.headers).content, "keys")
    for size in (3, 4):  # a certificate and two statements; then one more certificate
        head = ready.gateway.get("/v1/log/checkpoint", headers=ready.headers).text
        assert verify_tree_head(head, keys).size == size
        items = [item for item in get(ready, f"{where}/receipts")["items"] if not item["certificate_id"]]
        assert sorted(item["receipt"]["log"]["index"] for item in items) == [1, 2]
        for item, subject in zip(items, ("nobody", "noone"), strict=True):
            assert item["receipt"]["log"]["checkpoint"] == head
            verify_no_data_receipt(json.dumps(item["receipt"]).encode(), keys, subject_id=subject)
        if size == 3:
            ask(ready, "s3", "s4", "s5", "s6")
            work(services)
    assert get(ready, "/v1/log/inclusion?index=2")["size"] == 4
    assert get(ready, "/v1/log/consistency?old_size=1")["new_size"] == 4


def test_many_statements_are_logged_in_shares_and_once_each(
    ready: Api, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(no_data_receipts, "PER_TRANSACTION", 3)
    where = ask(ready, *(f"nobody{i}" for i in range(8)))
    work(services)
    items = get(ready, f"{where}/receipts")["items"]
    assert sorted(item["receipt"]["log"]["index"] for item in items) == list(range(8))
    keys = KeySet.read(ready.gateway.get("/v1/keys", headers=ready.headers).content, "keys")
    for number, item in enumerate(items):
        document = json.dumps(item["receipt"]).encode()
        verify_no_data_receipt(document, keys, subject_id=f"nobody{number}")


def test_appending_many_gives_the_tree_of_appending_each(services: Services) -> None:
    signer, digests = SigningKey.generate(), [f"{number:064x}" for number in range(23)]
    tree = MemoryTree([leaf_hash(bytes.fromhex(digest)) for digest in digests])
    placed = []
    for start, stop in ((0, 1), (1, 6), (6, 22), (22, 23)):
        with services.database.writing() as session:
            placed.append(log_store.append_many(session, digests[start:stop], signer, "lethe"))
    assert placed == [0, 1, 6, 22]
    with services.database.reading() as session:
        nodes = {(node.level, node.position): node.hash for node in session.scalars(select(LogNode))}
        head = session.scalars(select(LogHead)).one()
    assert nodes == tree.nodes
    signed = verify_tree_head(head.tree_head, KeySet(keys=(PublicKey.of(signer),)))
    assert (signed.size, signed.root) == (23, tree.root())


def test_receipts_of_an_earlier_version_are_served_as_what_they_are_and_encrypted(
    ready: Api, services: Services, tmp_path: Path
) -> None:
    """Earlier versions stored salts and statements unencrypted, for identifiers as they were sent."""
    where = ask(ready, "s1", "s2", "s3", "Zo\u00eb")
    work(services)
    salt, raw = "5a" * 16, "Zoe\u0308"
    with services.database.writing() as session:
        for row in session.scalars(select(TaskSubject)):
            assert row.salt is not None
            task = session.get_one(Task, row.task_id)
            cipher = services.data_keys.receipt_cipher(task.id, task.receipt_key, task.receipt_key_id)
            row.salt = bytes.fromhex(cipher.open_salt(row.salt, task_id=row.task_id, ordinal=row.ordinal))
            row.identifier_rule = row.log_index = None
            if row.no_data is not None:
                row.salt = bytes.fromhex(salt)
                row.no_data = _first_format(services, where.rpartition("/")[2], salt, raw)
        session.execute(update(Task).values(receipt_key=None, receipt_key_id=None))
    before = get(ready, f"{where}/receipts")["items"]
    plain = database_bytes(services)
    assert bytes.fromhex(salt) in plain
    assert services.key_renewal.adopt_stored() == 1
    assert services.key_renewal.adopt_stored() == 0
    left = database_bytes(services)
    assert bytes.fromhex(salt) not in left
    assert before[3]["receipt"]["payload"].encode() in plain
    assert before[3]["receipt"]["payload"].encode() not in left
    assert get(ready, f"{where}/receipts")["items"] == before
    assert [item["receipt"].get("format") for item in before] == ["urn:lethe:receipt:v1"] * 3 + [None]
    assert all("identifier_rule" not in item["receipt"] for item in before)
    auditor = Auditor(ready, get(ready, where)["tasks"][0]["certificate_id"], tmp_path)
    for item, subject in zip(before, ["s1", "s2", "s3", raw], strict=True):
        assert auditor.verifies(item, subject)
    assert not auditor.verifies(before[3], "Zo\u00eb")


def _first_format(services: Services, request_id: str, salt: str, subject: str) -> bytes:
    with services.database.reading() as session:
        model = session.scalars(select(Model)).one()
    statement = NoDataHeldV1(
        request_id=request_id,
        model=model.name,
        model_id=str(model.id),
        salt=salt,
        commitment=subject_digest(salt=salt, subject_id=subject),
        log_size=1,
        issued_at=now(),
    )
    return sign(statement.to_bytes(), load_signer(services.settings), NO_DATA_PAYLOAD).raw

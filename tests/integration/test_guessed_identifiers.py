"""Guessing identifiers with the whole database in hand reveals nothing without the deployment key."""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from uuid import UUID

import numpy as np
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, text

from app.core.vault import RowCipher
from app.db.tables import Task, TaskSubject
from app.db.types import Base
from app.services import Services
from lethe.certificate.commitment import bind_request, subject_digest
from lethe.certificate.merkle import leaf_hash
from tests.integration.harness import MANIFEST, parquet
from tests.integration.model_api import Api, Headers, work

PEOPLE = [f"person-{number}@example.org" for number in range(40)]
CANDIDATES = [f"person-{number}@example.org" for number in range(1000)]
TWENTY_WITH_ROWS = PEOPLE[:20]
HEX = re.compile(rb"[0-9a-f]{32,}")
BASE64 = re.compile(rb"[A-Za-z0-9+/]{40,}={0,2}")
SHORT = 80  # the longest values that may contain a salt next to something else


@pytest.fixture
def asked(gateway: TestClient, admin: Headers, services: Services) -> Api:
    """Forty people ask to be erased. Twenty of them have rows."""
    api = Api(gateway, admin)
    api.create(policy=MANIFEST["policy"] | {"batch_subjects": 40, "suppression_list": True})
    generator = np.random.default_rng(5)
    people = [*TWENTY_WITH_ROWS, *(f"stays-{number}" for number in range(20))]
    features, labels = generator.normal(size=(120, 6)) / 4, np.arange(120) % 3
    api.put("dataset/part0", parquet([people[row % 40] for row in range(120)], labels, features))
    api.call("POST", "/toy/validate", 202)
    work(services)
    headers = api.headers | {"Idempotency-Key": "forty"}
    assert gateway.post("/v1/erasures", json={"subjects": PEOPLE}, headers=headers).status_code == 202
    return api


def dump(services: Services) -> list[bytes]:
    """Return every value of every column of every table."""
    with services.database.reading() as session:
        values = [
            value
            for table in Base.metadata.sorted_tables
            for row in session.execute(text(f'SELECT * FROM "{table.name}"'))
            for value in row
            if value is not None
        ]
    return [bytes(v) if isinstance(v, bytes | memoryview) else _text(v) for v in values]


def _text(value: object) -> bytes:
    return (json.dumps(value) if isinstance(value, dict | list) else str(value)).encode()


def recovered(values: Iterable[bytes]) -> set[str]:
    """Mount the attack: try every candidate under everything in the dump that could be a salt.

    A hit is a commitment of the dump that the public formula gives.
    """
    seen = set(_unfolded(values))
    salts = {salt for value in seen for salt in _windows(value, 16)}
    digests = {digest for value in seen for digest in _windows(value, 32)}
    found = set()
    for salt in salts:
        prefix = _prefix(salt)
        for candidate in CANDIDATES:
            commitment = _commitment(prefix, candidate)
            if commitment in digests:
                found.add(candidate)
    assert _commitment(_prefix(b"s" * 16), "ada").hex() == subject_digest(salt="73" * 16, subject_id="ada")
    return found


def _prefix(salt: bytes) -> "hashlib._Hash":
    """Hash the part of the public formula that all candidates share."""
    domain = b"urn:lethe:commitment:subject:v1"
    return hashlib.sha256(len(domain).to_bytes(8, "big") + domain + (16).to_bytes(8, "big") + salt)


def _commitment(prefix: "hashlib._Hash", candidate: str) -> bytes:
    digest = prefix.copy()
    data = candidate.encode()
    digest.update(len(data).to_bytes(8, "big") + data)
    return digest.digest()


def _unfolded(values: Iterable[bytes]) -> Iterator[bytes]:
    """Return the values, and what they contain in hexadecimal or base64, to any depth."""
    for value in values:
        yield value
        yield from (bytes.fromhex(h.decode()) for h in HEX.findall(value) if len(h) % 2 == 0)
        for found in BASE64.findall(value):
            try:
                yield from _unfolded([base64.b64decode(found, validate=True)])
            except ValueError:
                continue


def _windows(value: bytes, length: int) -> Iterator[bytes]:
    """Return the value, and every part of it that could be a salt or digest next to a nonce or tag."""
    if length <= len(value) <= SHORT:
        starts = {0, 12, 16, len(value) - length, len(value) - length - 16}
        yield from (value[start : start + length] for start in starts if 0 <= start <= len(value) - length)


def in_the_clear(services: Services) -> None:
    """Store salts and statements as an earlier version did."""
    with services.database.writing() as session:
        for row in session.scalars(select(TaskSubject)):
            task_id, ordinal = row.task_id, row.ordinal
            assert row.salt is not None
            cipher = receipt_cipher(services, task_id)
            row.salt = bytes.fromhex(cipher.open_salt(row.salt, task_id=task_id, ordinal=ordinal))
            if row.no_data is not None:
                row.no_data = cipher.open_statement(row.no_data, task_id=task_id, ordinal=ordinal)


def receipt_cipher(services: Services, task_id: UUID) -> RowCipher:
    """Open the cipher of a task's salts and statements."""
    with services.database.reading() as session:
        task = session.get_one(Task, task_id)
    return services.data_keys.receipt_cipher(task_id, task.receipt_key, task.receipt_key_id)


def test_no_guess_can_be_tested_against_the_database(asked: Api, services: Services) -> None:
    assert recovered(dump(services)) == set(), "while they wait"
    work(services)
    with services.database.reading() as session:
        rows = session.scalars(select(TaskSubject)).all()
    assert sum(row.no_data is not None for row in rows) == 20
    assert sum(row.leaf is not None for row in rows) == 20
    assert recovered(dump(services)) == set(), "while receipts can be fetched"
    in_the_clear(services)
    assert recovered(dump(services)) == set(PEOPLE), "the attack reads what is not encrypted"


def test_statements_alone_would_give_away_whom_they_are_about(asked: Api, services: Services) -> None:
    """Also if only the signed statement is unencrypted, and nothing else."""
    work(services)
    with services.database.reading() as session:
        rows = session.scalars(select(TaskSubject).where(TaskSubject.no_data.is_not(None))).all()
    statements = [
        receipt_cipher(services, row.task_id).open_statement(
            row.no_data or b"", task_id=row.task_id, ordinal=row.ordinal
        )
        for row in rows
    ]
    assert recovered(statements) == set(PEOPLE[20:])
    assert not recovered([row.no_data or b"" for row in rows])


def test_a_leaf_cannot_be_tested_without_its_salt(asked: Api, services: Services) -> None:
    """With the salt it could, because leaf and request id remain when salt and commitment are destroyed."""
    work(services)
    where = asked.gateway.get("/v1/erasures", headers=asked.headers).json()["items"][0]["id"]
    with services.database.reading() as session:
        row = session.scalars(select(TaskSubject).where(TaskSubject.ordinal == 0)).one()
    assert row.salt is not None
    salt = receipt_cipher(services, row.task_id).open_salt(row.salt, task_id=row.task_id, ordinal=0)
    commitment = subject_digest(salt=salt, subject_id=PEOPLE[0])
    opened = leaf_hash(bind_request(salt=salt, request_id=where, commitment=commitment))
    assert opened == row.leaf
    answer = asked.gateway.post(f"/v1/erasures/{where}/receipts/acknowledge", headers=asked.headers)
    assert answer.status_code == 200
    left = b"\0".join(dump(services))
    assert bytes(row.leaf) in left
    assert bytes.fromhex(salt) not in left
    assert salt.encode() not in left
    assert bytes(row.salt) not in left

"""Identifiers are matched exactly after Unicode normalisation. The tenant is told about near matches."""

import json
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from app.services import Services
from lethe.certificate.commitment import IDENTIFIER_RULE_IN_WORDS
from lethe.certificate.envelope import from_base64, parse
from lethe.certificate.keys import KeySet
from lethe.certificate.receipt import Receipt, verify_no_data_receipt, verify_receipt
from tests.integration.dashboard import Visitor
from tests.integration.harness import MANIFEST, dataset, parquet
from tests.integration.model_api import Api, Headers, newest_statement, subjects_held, work

COMPOSED, DECOMPOSED = "Zo\u00eb", "Zoe\u0308"
TWO = (
    "2 people in this model's data have an identifier that differs only in case, spacing or Unicode form. "
    "Check the spelling and send a new request if one of them is meant."
)


def rows_of(*subjects: str, seed: int = 3) -> bytes:
    """Three rows for each person, one of each class."""
    features = np.random.default_rng(seed).normal(size=(3 * len(subjects), 6)) / 4
    labels = np.arange(3 * len(subjects)) % 3
    return parquet([subject for subject in subjects for _ in range(3)], labels, features)


def registered(
    gateway: TestClient,
    admin: Headers,
    services: Services,
    *parts: bytes,
    holdout: bytes | None = None,
    **policy: Any,
) -> Api:
    api = Api(gateway, admin)
    api.create(policy=MANIFEST["policy"] | {"batch_subjects": 1} | policy)
    for number, part in enumerate((dataset(), *parts)):
        api.put(f"dataset/part{number}", part)
    if holdout is not None:
        api.put("holdout/h0", holdout)
    api.call("POST", "/toy/validate", 202)
    work(services)
    assert api.call("GET", "/toy")["state"] == "ready"
    return api


def ask(api: Api, *subjects: str) -> Any:
    answer = api.gateway.post("/v1/erasures", json={"subjects": subjects}, headers=api.headers)
    assert answer.status_code == 202, answer.text
    return answer.json()


def get(api: Api, erasure: Any, rest: str = "") -> Any:
    return api.gateway.get(f"/v1/erasures/{erasure['id']}{rest}", headers=api.headers).json()


def keys(api: Api) -> KeySet:
    return KeySet.read(api.gateway.get("/v1/keys", headers=api.headers).content, "keys")


@pytest.mark.parametrize(("stored", "sent"), [(COMPOSED, DECOMPOSED), (DECOMPOSED, COMPOSED)])
def test_someone_is_found_in_whatever_normal_form(
    gateway: TestClient, admin: Headers, services: Services, stored: str, sent: str
) -> None:
    holdout = rows_of(stored, "Bob", seed=4)
    api = registered(gateway, admin, services, rows_of(stored, "Ada"), holdout=holdout)
    erasure = ask(api, sent)
    work(services)
    shown = get(api, erasure)
    assert shown["tasks"][0]["outcomes"] == {"erased": 1}
    assert newest_statement(services).predicate.deletion_set.people == 1
    for held in subjects_held(services).values():
        assert not held & {COMPOSED, DECOMPOSED}
    (item,) = get(api, erasure, "/receipts")["items"]
    assert item["receipt"]["identifier_rule"] == "nfc-exact-v1"
    certificate = api.gateway.get(f"/v1/certificates/{item['certificate_id']}/pack", headers=api.headers)
    verified = newest_statement(services).predicate.deletion_set
    envelope = parse(from_base64(certificate.json()["envelope"]))
    receipt = Receipt.read(json.dumps(item["receipt"]).encode(), "receipt")
    for form in (COMPOSED, DECOMPOSED):
        verify_receipt(receipt, certificate_digest=envelope.digest, deletion_set=verified, subject_id=form)


def test_two_forms_in_the_data_are_one_person(
    gateway: TestClient, admin: Headers, services: Services
) -> None:
    api = registered(gateway, admin, services, rows_of(COMPOSED, "Ada"), rows_of(DECOMPOSED, "Bob"))
    ask(api, COMPOSED)
    work(services)
    assert newest_statement(services).predicate.deletion_set.people == 1
    assert not {COMPOSED, DECOMPOSED} & set().union(*subjects_held(services).values())


def test_a_suppressed_person_does_not_come_back_in_another_form(
    gateway: TestClient, admin: Headers, services: Services
) -> None:
    api = registered(gateway, admin, services, rows_of(COMPOSED, "Ada"), suppression_list=True)
    ask(api, COMPOSED)
    work(services)
    api.put("dataset/later", rows_of(DECOMPOSED, "Eve", seed=5))
    api.call("POST", "/toy/append", 202)
    work(services)
    held = set().union(*subjects_held(services).values())
    assert "Eve" in held
    assert DECOMPOSED not in held


def test_near_matches_are_told_to_the_tenant_and_to_nobody_else(
    gateway: TestClient, services: Services, capfd: pytest.CaptureFixture[str]
) -> None:
    visitor = Visitor(gateway, services, "wards").signed_in()
    api = registered(gateway, visitor.headers, services, rows_of("alice", "ALICE\u200b", "alicia", "bob"))
    erasure = ask(api, "Alice ", "bob")
    assert get(api, erasure)["tasks"][0]["near_matches"] == 0
    work(services)
    (task,) = get(api, erasure)["tasks"]
    assert task["outcomes"] == {"erased": 1, "not_in_training_set": 1}
    assert (task["near_matches"], task["notice"]) == (2, TWO)
    assert {"alice", "ALICE\u200b"} <= subjects_held(services)["part1"], "near matches are not erased"
    page = visitor.get(f"/erasures/{erasure['id']}").text
    assert TWO.replace("'", "&#39;") in page
    assert IDENTIFIER_RULE_IN_WORDS in page
    receipts = get(api, erasure, "/receipts")["items"]
    held = verify_no_data_receipt(json.dumps(receipts[0]["receipt"]).encode(), keys(api), subject_id="Alice ")
    assert held.identifier_rule == "nfc-exact-v1"
    elsewhere = json.dumps(receipts) + gateway.get("/metrics").text + "".join(capfd.readouterr())
    assert "near" not in elsewhere


def test_whoever_is_erased_in_the_same_batch_is_no_near_match(
    gateway: TestClient, admin: Headers, services: Services
) -> None:
    api = registered(gateway, admin, services, rows_of("alice", "bob"), batch_subjects=2)
    mistyped, other = ask(api, "ALICE"), ask(api, "alice")
    work(services)
    assert get(api, other)["tasks"][0]["outcomes"] == {"erased": 1}
    (task,) = get(api, mistyped)["tasks"]
    assert (task["outcomes"], task["near_matches"], task["notice"]) == ({"not_in_training_set": 1}, 0, None)


def test_a_near_match_in_holdout_or_staged_rows_counts_too(
    gateway: TestClient, admin: Headers, services: Services
) -> None:
    api = registered(gateway, admin, services, holdout=rows_of("alice", "bob"))
    api.put("dataset/staged", rows_of("\uff21lice", "carl"))
    erasure = ask(api, "Alice")
    work(services)
    assert get(api, erasure)["tasks"][0]["near_matches"] == 2


def test_suspicious_identifiers_are_taken_as_they_are_and_warned_about(
    gateway: TestClient, admin: Headers, services: Services
) -> None:
    api = registered(gateway, admin, services, rows_of("dan ", "bob"))
    headers = api.headers | {"Idempotency-Key": "warned"}
    body = {"subjects": ["ada", "dan ", "eve\u200b", "\u00a0fay"]}
    first = gateway.post("/v1/erasures", json=body, headers=headers)
    assert first.json()["warnings"] == [
        "2 identifiers begin or end with white space (the first is number 2 of the request). "
        "They are compared as sent.",
        "1 identifier contains control or zero-width characters (number 3 of the request). "
        "It is compared as sent.",
    ]
    assert gateway.post("/v1/erasures", json=body, headers=headers).content == first.content
    assert ask(api, "ada")["warnings"] == []
    work(services)
    assert get(api, first.json())["tasks"][0]["outcomes"] == {"erased": 1, "not_in_training_set": 3}
    assert "dan " not in subjects_held(services)["part1"]


def test_bulk_requests_are_warned_about_too(gateway: TestClient, admin: Headers) -> None:
    answer = gateway.post(
        "/v1/erasures/bulk",
        content=b"subject_id\nada\n bob\n",
        headers=admin | {"Content-Type": "text/csv"},
    )
    assert answer.json()["warnings"] == [
        "1 identifier begins or ends with white space (number 2 of the request). It is compared as sent."
    ]

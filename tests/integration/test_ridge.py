"""Regression: targets are numbers, and a histogram of them would list everyone's target."""

import json

from fastapi.testclient import TestClient
from sqlalchemy import select

from app.db.tables import Certificate
from app.services import Services
from tests.integration.harness import MANIFEST, dataset
from tests.integration.model_api import Api, newest_statement, work


def test_no_target_appears_in_certificate_or_evidence(
    gateway: TestClient, admin: dict[str, str], services: Services
) -> None:
    api = Api(gateway, admin)
    policy = MANIFEST["policy"] | {"batch_subjects": 25}
    api.create(family="ridge", classes=None, policy=policy)
    api.put("dataset/part0", dataset(rows=240, subjects=60))
    api.call("POST", "/toy/validate", 202)
    work(services)
    api.erase(*(f"s{i}" for i in range(25)))
    work(services)
    predicate = newest_statement(services).predicate
    assert (predicate.deletion_set.people, predicate.deletion_set.records) == (25, 100)
    with services.database.reading() as session:
        evidence = json.loads(session.scalars(select(Certificate.evidence)).one())
    assert evidence["shift"] is None
    assert evidence["distance"] <= predicate.bound.distance_target

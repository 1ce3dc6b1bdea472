"""A batch of many people is read and written in pages, in short transactions, and can stop at any page."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event, func, select

from app.core.clock import now
from app.db import transitions
from app.db.states import JobKind, JobState
from app.db.tables import Job, TaskSubject
from app.dispatcher.loop import Dispatcher
from app.services import Services
from lethe.certificate.envelope import from_base64, parse
from lethe.certificate.keys import KeySet
from lethe.certificate.receipt import Receipt, verify_no_data_receipt, verify_receipt
from tests.integration.harness import dataset
from tests.integration.model_api import Api, Headers, newest_statement, registered, subjects_held, work
from worker.batch import no_data_receipts, outcomes, purge, subjects
from worker.batch.subjects import SubjectEntry
from worker.context import JobContext
from worker.jobs import JOBS

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
Pages = Iterator[list[SubjectEntry]]


@pytest.fixture
def ready(gateway: TestClient, admin: Headers, services: Services) -> Api:
    return registered(Api(gateway, admin), services)


@contextmanager
def statements_about_people(services: Services) -> Iterator[list[str]]:
    """Collect the SQL statements that read or write tasks and their people."""
    seen: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "tasks" in statement or "task_subjects" in statement:
            seen.append(statement)

    event.listen(services.database.engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(services.database.engine, "before_cursor_execute", note)


def test_a_batch_takes_as_many_statements_for_many_people_as_for_few(ready: Api, services: Services) -> None:
    counts = []
    for people in (["s1", "nobody1"], [f"s{n}" for n in range(2, 12)] + [f"no{n}" for n in range(10)]):
        for person in people:
            ready.erase(person)
        with statements_about_people(services) as seen:
            work(services)
        counts.append(len(seen))
    assert counts[0] == counts[1]


def stopping(change: Callable[[], None]) -> Callable[..., Any]:
    """Return `subject_pages` with a step between the first page and the second."""

    @contextmanager
    def pages_of(context: JobContext, *which: Any, size: int | None = None) -> Iterator[Pages]:
        with subjects.subject_pages(context, *which, size=size) as pages:
            yield interrupted(pages)

    def interrupted(pages: Pages) -> Pages:
        for number, page in enumerate(pages):
            if number == 1:
                change()
            yield page

    return pages_of


class Killed(Exception):
    """Stands for the end of the process."""


def die() -> None:
    raise Killed


def start_attempt(services: Services) -> Callable[[], None]:
    """Seal the batch, claim its job and return a function that runs the attempt."""
    Dispatcher(services).seal_due()
    with services.database.writing() as session:
        job = session.scalars(select(Job).where(Job.state == JobState.WAITING)).one()
        transitions.dispatch(session, job, now())
        token = job.token
        assert token is not None
        assert transitions.claim(session, job.id, token, now())
    return lambda: JOBS[JobKind.UNLEARN](services, job.id, token)


def test_an_attempt_that_ends_between_two_pages_leaves_nothing_that_a_receipt_contradicts(
    ready: Api, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subjects, "PAGE", 2)
    monkeypatch.setattr(no_data_receipts, "PER_TRANSACTION", 2)
    people = ["s1", "nobody", "s2", "noone", "s3", "no one"]
    answer = ready.gateway.post("/v1/erasures", json={"subjects": people}, headers=ready.headers)
    attempt = start_attempt(services)
    for module in (outcomes, no_data_receipts, purge):
        with monkeypatch.context() as patch:
            patch.setattr(module, "subject_pages", stopping(die))
            with pytest.raises(Killed):
                attempt()
    attempt()
    where = f"{answer.headers['location']}/receipts"
    items = ready.gateway.get(where, headers=ready.headers).json()["items"]
    keys = KeySet.read(ready.gateway.get("/v1/keys", headers=ready.headers).content, "keys")
    deletion_set = newest_statement(services).predicate.deletion_set
    assert deletion_set.commitments == 3
    for item, person in zip(items, people, strict=True):
        document = json.dumps(item["receipt"]).encode()
        if item["certificate_id"] is None:
            verify_no_data_receipt(document, keys, subject_id=person)
            continue
        pack = ready.gateway.get(f"/v1/certificates/{item['certificate_id']}/pack", headers=ready.headers)
        digest = parse(from_base64(pack.json()["envelope"])).digest
        receipt = Receipt.read(document, "receipt")
        verify_receipt(receipt, certificate_digest=digest, deletion_set=deletion_set, subject_id=person)
    with services.database.reading() as session:
        assert session.scalar(select(func.count(TaskSubject.identifier))) == 0


def test_a_part_that_arrives_between_two_pages_is_searched_for_those_who_are_not_forgotten_yet(
    ready: Api, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subjects, "PAGE", 1)
    sent: list[str] = []

    def send() -> None:
        if not sent:
            sent.append("late")
            ready.put("dataset/late", dataset(rows=40, seed=9))

    monkeypatch.setattr(purge, "subject_pages", stopping(send))
    ready.erase("s1", "s2", "s3")
    work(services)
    assert sent
    assert len(subjects_held(services)["late"] & {"s1", "s2", "s3"}) == 1  # the first was forgotten before
    with services.database.reading() as session:
        assert session.scalar(select(func.count(TaskSubject.identifier))) == 0

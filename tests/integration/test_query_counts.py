"""A list takes the same number of SQL statements whether it has 2 items or 20."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event, func, select, update
from sqlalchemy.orm import Session

from app.core.clock import new_id, now
from app.core.settings import Settings
from app.db import refusals
from app.db.manifest import Manifest
from app.db.states import (
    BatchState,
    FileKind,
    JobKind,
    JobState,
    PartRole,
    RefusalReason,
    ReportKind,
    SealReason,
    SubjectOutcome,
    TaskState,
    VersionState,
)
from app.db.tables import (
    ApiKey,
    Batch,
    Certificate,
    DatasetPart,
    Erasure,
    Job,
    LibraryRepresentation,
    Model,
    ModelFile,
    Report,
    Task,
    TaskSubject,
    Version,
)
from app.db.webhooks import DeliveryState, WebhookDelivery, WebhookEndpoint, WebhookEvent
from app.gateway.auth import caller
from app.gateway.auth.scopes import Scope
from app.gateway.dashboard import erasure_export
from app.gateway.erasures.repository import of_tenant
from app.gateway.main import create_app
from app.services import Services
from lethe.certificate.commitment import SubjectCommitment
from lethe.certificate.pack import Pack
from lethe.certificate.representation import Representation
from tests.integration.dashboard import Visitor
from tests.integration.harness import MANIFEST

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
SALT = "5a" * 16
PACK = Path(__file__).parent.parent / "golden" / "v2" / "tr-conditional" / "pack.json"
ENVELOPE = base64.b64decode(Pack.read(PACK.read_bytes(), "pack").envelope)  # pages read certificates
REPRESENTATION: dict[str, Any] = {
    "input": {"kind": "vector", "width": 4},
    "outputs": ["features"],
    "origin": "made up",
    "licence": "none",
}
REFUSED = MANIFEST | {"lambda": 0.5}  # other choices than those of the models, so that each is compared


class Owner:
    """A tenant with one model, certificate, webhook and erasure to which the items of its lists belong."""

    def __init__(self, services: Services, visitor: Visitor) -> None:
        self.services, self.tenant_id = services, visitor.tenant_id
        self.count, self.moment = 0, now()
        with services.database.writing() as session:
            self.model = self._model(session, "first")
            self.certificate = self._certificate(session, self.model.id)
            self.webhook = WebhookEndpoint(
                id=new_id(), tenant_id=self.tenant_id, url="https://a.example", event_types=[], secret=b"-"
            )
            self.erasure = self._erasure()
            session.add_all([self.webhook, self.erasure])
            self._part(session, self.model.id)
            session.flush()
            refusals.record_refusal(
                session, self.model, Manifest.model_validate(REFUSED), RefusalReason.REJECTED
            )

    def add_items(self, number: int) -> None:
        """Add this many items to every list."""
        with self.services.database.writing() as session:
            for _ in range(number):
                self.count += 1
                self._add_item(session)

    def _add_item(self, session: Session) -> None:
        model = self._represented_model(session)
        certificate = self._certificate(session, model.id)
        batch = self._batch(session, model.id, certificate.id)
        self._subject(session, self.erasure, model.id, batch.id)
        other = self._erasure()
        session.add(other)
        session.flush()
        self._subject(session, other, model.id, batch.id)
        self._part(session, self.model.id)
        self._version(session, self.model.id, None, None)
        for kind, certificate_id in (
            (ReportKind.EVALUATION, None),
            (ReportKind.ADVICE, None),
            (ReportKind.AUDIT, self.certificate.id),
        ):
            job = self._job(session, self.model.id)
            session.add(
                Report(
                    kind=kind, model_id=self.model.id, certificate_id=certificate_id, version=1, job_id=job.id
                )
            )
        self._delivery(session)
        session.add(
            ApiKey(tenant_id=self.tenant_id, name="k", digest=b"-" * 32, scopes=["admin"], created_at=now())
        )

    def _model(self, session: Session, name: str, **change: Any) -> Model:
        manifest = Manifest.model_validate(MANIFEST | change).model_dump(mode="json", by_alias=True)
        model = Model(id=new_id(), tenant_id=self.tenant_id, name=name, manifest=manifest, created_at=now())
        session.add(model)
        session.flush()
        return model

    def _represented_model(self, session: Session) -> Model:
        """Add an entry to the library, and a model that uses it or has a graph of its own, by turns."""
        declared = Representation.model_validate(REPRESENTATION)
        entry = LibraryRepresentation(
            name=f"library{self.count}",
            declaration=declared.model_dump(mode="json"),
            graph_path=f"library{self.count}",
            graph_sha256="0" * 64,
            graph_size=1,
        )
        session.add(entry)
        if self.count % 2:
            return self._model(
                session, f"m{self.count}", representation=REPRESENTATION | {"library": entry.name}
            )
        model = self._model(session, f"m{self.count}", representation=REPRESENTATION)
        kind, path = FileKind.REPRESENTATION, f"graph{self.count}"
        session.add(ModelFile(model_id=model.id, kind=kind, path=path, sha256="0" * 64, size=1))
        return model

    def _certificate(self, session: Session, model_id: UUID) -> Certificate:
        certificate = Certificate(
            id=new_id(),
            model_id=model_id,
            chain_index=0,
            mechanism="tr",
            envelope=ENVELOPE,
            digest=f"{self.count:064x}",
            evidence=b"",
            log_index=self.count,
        )
        session.add(certificate)
        session.flush()
        return certificate

    def _job(self, session: Session, model_id: UUID) -> Job:
        job = Job(id=new_id(), kind=JobKind.UNLEARN, model_id=model_id, state=JobState.DONE)
        session.add(job)
        session.flush()
        return job

    def _batch(self, session: Session, model_id: UUID, certificate_id: UUID) -> Batch:
        batch = Batch(
            id=new_id(),
            model_id=model_id,
            job_id=self._job(session, model_id).id,
            state=BatchState.COMPLETED,
            sealed_because=SealReason.COUNT,
            policy=dict(MANIFEST["policy"]),
            subjects=1,
        )
        session.add(batch)
        session.flush()
        self._version(session, model_id, batch.id, certificate_id)
        return batch

    def _version(
        self, session: Session, model_id: UUID, batch_id: UUID | None, certificate_id: UUID | None
    ) -> None:
        session.add(
            Version(
                model_id=model_id,
                number=self.count,
                state=VersionState.PURGED if batch_id is None else VersionState.CURRENT,
                batch_id=batch_id,
                certificate_id=certificate_id,
                generation=1,
                path="-",
                sha256="0" * 64,
                size=1,
            )
        )

    def _erasure(self) -> Erasure:
        due: datetime = self.moment
        return Erasure(id=new_id(), tenant_id=self.tenant_id, subjects=1, received_at=due, due_at=due)

    def _subject(self, session: Session, erasure: Erasure, model_id: UUID, batch_id: UUID) -> None:
        """Someone whose erasure from this model is completed, with a receipt."""
        task = Task(
            id=new_id(),
            erasure_id=erasure.id,
            model_id=model_id,
            batch_id=batch_id,
            state=TaskState.COMPLETED,
            subjects=1,
            due_at=self.moment,
        )
        session.add(task)
        session.flush()
        commitment = SubjectCommitment(str(erasure.id), SALT, "0" * 64)
        session.add(
            TaskSubject(
                task_id=task.id,
                ordinal=0,
                identifier_rule=commitment.identifier_rule,
                salt=self.services.vault.seal_salt(SALT, task_id=task.id, ordinal=0),
                commitment=bytes.fromhex(commitment.commitment),
                leaf=commitment.leaf(),
                outcome=SubjectOutcome.ERASED,
            )
        )

    def _part(self, session: Session, model_id: UUID) -> None:
        session.add(
            DatasetPart(
                model_id=model_id,
                name=f"p{self.count}",
                role=PartRole.TRAIN,
                path=f"p{self.count}",
                sha256="0" * 64,
                size=1,
                first_generation=0,
            )
        )

    def _delivery(self, session: Session) -> None:
        told = WebhookEvent(id=new_id(), tenant_id=self.tenant_id, type="batch.held", data={}, at=now())
        session.add(told)
        session.flush()
        session.add_all(
            [
                WebhookDelivery(
                    endpoint_id=self.webhook.id,
                    event_id=told.id,
                    state=DeliveryState.DEAD,
                    next_attempt_at=now(),
                ),
                WebhookEndpoint(
                    tenant_id=self.tenant_id, url="https://b.example", event_types=[], secret=b"-"
                ),
            ]
        )

    def lists(self) -> list[str]:
        """The paths of all lists of the API."""
        return [
            "/v1/erasures",
            f"/v1/erasures/{self.erasure.id}/receipts",
            "/v1/batches",
            "/v1/models",
            "/v1/representations",
            f"/v1/models/{self.model.name}/dataset",
            f"/v1/models/{self.model.name}/versions",
            f"/v1/models/{self.model.name}/evaluations",
            f"/v1/models/{self.model.name}/advice",
            "/v1/certificates",
            f"/v1/certificates/{self.certificate.id}/audits",
            "/v1/webhooks",
            f"/v1/webhooks/{self.webhook.id}/deliveries",
            "/v1/api-keys",
        ]


@pytest.fixture(autouse=True)
def cached_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep callers cached for longer than a test takes: none may expire while its queries are counted."""
    monkeypatch.setattr(caller, "CACHE_SECONDS", 3600.0)


@pytest.fixture
def gateway(settings: Settings, services: Services) -> Iterator[TestClient]:
    with TestClient(create_app(settings, services)) as client:
        yield client


@pytest.fixture
def visitor(gateway: TestClient, services: Services) -> Visitor:
    return Visitor(gateway, services, "tenant", Scope.ADMIN).signed_in()


@contextmanager
def counted_statements(services: Services) -> Iterator[list[str]]:
    """Collect the SQL statements that are executed in the block."""
    statements: list[str] = []

    def collect(_: Any, __: Any, statement: str, *___: Any) -> None:
        statements.append(statement)

    event.listen(services.database.engine, "before_cursor_execute", collect)
    yield statements
    event.remove(services.database.engine, "before_cursor_execute", collect)


def test_every_list_of_the_api_takes_a_constant_number_of_queries(
    services: Services, visitor: Visitor
) -> None:
    owner = Owner(services, visitor)
    counts: dict[int, dict[str, int]] = {2: {}, 20: {}}
    for total in counts:
        owner.add_items(total - owner.count)
        for path in owner.lists():
            visitor.get(path, headers=visitor.headers)  # caches the caller
            with counted_statements(services) as statements:
                answer = visitor.get(f"{path}?limit=200", headers=visitor.headers)
            assert answer.status_code == 200, answer.text
            body = answer.json()
            assert total <= len(body["items"] if isinstance(body, dict) else body) <= total + 3, path
            counts[total][path] = len(statements)
    assert counts[2] == counts[20]
    recorded = 3  # fetching receipts adds an entry to the audit log: its lock, the last entry, the insert
    most = {path: 4 + recorded if path.endswith("/receipts") else 6 for path in counts[20]}
    assert {path for path, count in counts[20].items() if count > most[path]} == set()


def test_every_list_of_the_dashboard_takes_a_constant_number_of_queries(
    services: Services, visitor: Visitor
) -> None:
    owner = Owner(services, visitor)
    counts: dict[int, dict[str, int]] = {2: {}, 20: {}}
    for total in counts:
        owner.add_items(total - owner.count)
        for path in ("/", "/erasures", "/batches", "/models", "/certificates"):
            with counted_statements(services) as statements:
                answer = visitor.get(path)
            assert answer.status_code == 200, path
            counts[total][path] = len(statements)
    assert counts[2] == counts[20]


@pytest.mark.parametrize(
    ("filters", "matches"), [("", 11), ("?state=completed", 11), ("?model=m1", 2), ("?overdue=true", 10)]
)
def test_a_page_of_the_export_takes_two_queries(
    services: Services, visitor: Visitor, monkeypatch: pytest.MonkeyPatch, filters: str, matches: int
) -> None:
    monkeypatch.setattr(erasure_export, "ROWS_PER_READ", 3)
    Owner(services, visitor).add_items(10)
    if "overdue" in filters:
        with services.database.writing() as session:  # one request has more than one model
            few = select(Task.erasure_id).group_by(Task.erasure_id).having(func.count() == 1)
            session.execute(update(Task).where(Task.erasure_id.in_(few)).values(state=TaskState.RECEIVED))
    with counted_statements(services) as statements:
        lines = visitor.get(f"/erasures/export.csv{filters}").text.splitlines()
    assert len(lines) == 1 + matches
    assert _queries_of_export(statements) == (matches // 3 + 1, matches // 3 + 1)


def test_the_export_reads_a_page_only_when_it_is_sent(
    services: Services, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasure_export, "ROWS_PER_READ", 3)
    Owner(services, visitor).add_items(9)
    rows = erasure_export.export_rows(services, of_tenant(visitor.tenant_id))
    with counted_statements(services) as statements:
        first = [next(rows) for _ in range(3)]
        assert _queries_of_export(statements) == (1, 1)
        rest = list(rows)
    ids = [str(row[0]) for row in (*first, *rest)]
    assert (len(ids), ids) == (10, sorted(set(ids), reverse=True))
    assert _queries_of_export(statements) == (4, 4)


def _queries_of_export(statements: list[str]) -> tuple[int, int]:
    """Count the queries of requests and of their tasks. There must be no other query of these tables."""
    queries = [statement for statement in statements if "erasure" in statement]
    tasks = [query for query in queries if query.startswith("SELECT tasks.erasure_id, tasks.state")]
    pages = [query for query in queries if query.startswith("SELECT erasures.id, erasures.reference")]
    assert len(queries) == len(tasks) + len(pages)
    return len(pages), len(tasks)


def test_every_list_in_the_openapi_document_is_counted(
    gateway: TestClient, services: Services, visitor: Visitor
) -> None:
    """A list endpoint that is added later must be added here too."""
    paths = gateway.get("/openapi.json").json()["paths"]
    listed = {
        path
        for path, methods in paths.items()
        if methods.get("get", {}).get("operationId", "").startswith("list_")
    }
    owner = Owner(services, visitor)
    names = {str(owner.model.name): "{name}", str(owner.erasure.id): "{erasure_id}"} | {
        str(owner.certificate.id): "{certificate_id}",
        str(owner.webhook.id): "{webhook_id}",
    }
    counted = {"/".join(names.get(step, step) for step in path.split("/")) for path in owner.lists()}
    assert listed == counted

"""Event streams of batches: limited in number, read page by page, ended when the key is revoked."""

import asyncio
import secrets
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from app.db.states import BatchState
from app.db.tables import Batch, BatchEvent
from app.gateway import event_stream
from app.gateway.auth import service as access
from app.gateway.auth.caller import CallerCache
from app.gateway.auth.scopes import Scope
from app.gateway.batches import endpoints
from app.gateway.event_stream import EventStream, Listener
from app.gateway.main import create_app
from app.gateway.server import DrainState
from app.gateway.tenant_slots import TenantSlots
from app.services import Services
from tests.integration.harness import key_for
from tests.integration.job_world import World


def _ended_batch(services: Services, events: int) -> Batch:
    world = World(services)
    world.ask(0, subjects=3)
    world.dispatchers[0].seal_due()
    with services.database.writing() as session:
        batch = session.scalars(select(Batch)).one()
        session.execute(update(Batch).values(state=BatchState.FAILED))
        session.add_all(BatchEvent(batch_id=batch.id, kind="progress", data={"n": n}) for n in range(events))
    return batch


def test_events_come_page_by_page_to_the_last(
    gateway: TestClient, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "EVENTS_PER_POLL", 3)
    monkeypatch.setattr(endpoints, "POLL_SECONDS", 0.01)
    batch = _ended_batch(services, events=8)
    headers = key_for(services, "tenant", Scope.ADMIN)
    shown = gateway.get(f"/v1/batches/{batch.id}/events", headers=headers).text
    assert shown.count("event: progress") == 8
    assert len(endpoints.poll_events(services, batch.id, 0)[0]) == 3


def test_too_many_streams_are_told_to_come_back(
    settings: Any, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = _ended_batch(services, events=1)
    headers = key_for(services, "tenant", Scope.ADMIN)
    monkeypatch.setattr("app.gateway.main.MAX_STREAMS", 0)
    with TestClient(create_app(settings)) as gateway:
        answer = gateway.get(f"/v1/batches/{batch.id}/events", headers=headers)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "10")


def test_a_stream_counts_until_it_ends_however_it_ends() -> None:
    counted = TenantSlots(10)

    async def broken() -> Any:
        assert counted.taken == 1
        yield "line"
        raise RuntimeError

    async def nothing(*_: object) -> Any:
        await asyncio.sleep(0.01)
        return {"type": "http.request"}

    scope = {"type": "http", "asgi": {"spec_version": "2.4"}}
    with pytest.raises(RuntimeError):
        asyncio.run(EventStream(counted, UUID(int=1), broken())(scope, nothing, nothing))
    assert counted.taken == 0


def test_a_stream_ends_soon_after_its_key_is_revoked(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    with services.database.writing() as session:
        name = f"tenant-{secrets.token_hex(4)}"
        made = access.create_key(session, tenant=name, name="x", scopes=[Scope.ADMIN])

    async def connected() -> bool:
        return False

    callers = CallerCache()
    request: Any = SimpleNamespace(
        headers={"authorization": f"Bearer {made.secret}"},
        state=SimpleNamespace(services=services, callers=callers, drain=DrainState()),
        is_disconnected=connected,
    )
    listener = Listener(request)
    monkeypatch.setattr(event_stream, "RECHECK_SECONDS", 0.0)
    assert asyncio.run(listener.is_active())
    with services.database.writing() as session:
        access.revoke_key(session, made.record.id)
    callers.forget(made.record.id)
    assert not asyncio.run(listener.is_active())


def test_a_stream_ends_when_its_gateway_closes() -> None:
    async def connected() -> bool:
        return False

    drain = DrainState(linger=0.0)
    request: Any = SimpleNamespace(state=SimpleNamespace(drain=drain), is_disconnected=connected)
    listener = Listener(request)
    assert asyncio.run(listener.is_active())
    drain.start()
    assert not asyncio.run(listener.is_active())

"""A clock that jumps forward deletes nothing for good before two other clocks confirm the jump."""

from datetime import datetime, timedelta

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select

from app.core.clock import new_id, now
from app.db.tables import IdempotencyKey, TaskSubject, Tenant
from app.dispatcher.expiry_clock import CONFIRMED_AFTER, ExpiryClock, database_time
from app.services import Services
from tests.integration.harness import Clocks
from tests.integration.model_api import Api, Headers, registered, work

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
YEAR = timedelta(days=365)
HOUR = timedelta(hours=1)


@pytest.fixture
def clocks(services: Services) -> Clocks:
    assert services.vault  # opening it creates the row in which the clock's last reading is remembered
    return Clocks()


def expiry_clock(services: Services, clocks: Clocks) -> ExpiryClock:
    return ExpiryClock(
        services.database, lambda: clocks.wall, lambda: clocks.steady, lambda _: clocks.database
    )


def test_a_jump_forward_destroys_no_salt_and_forgets_no_key(
    gateway: TestClient, admin: Headers, services: Services
) -> None:
    api = registered(Api(gateway, admin), services)
    api.erase("s1", "nobody")
    work(services)
    with services.database.writing() as session:
        tenant = session.scalars(select(Tenant.id)).first()
        assert tenant is not None
        values = {"tenant_id": tenant, "key_hash": b"k" * 32, "fingerprint": b"f" * 32, "answer": "{}"}
        session.add(IdempotencyKey(**values, erasure_id=new_id(), expires_at=now() + 24 * HOUR))
    clocks = Clocks()
    dispatcher = clocks.dispatcher(services)
    dispatcher.forget_expired()
    clocks.wall = clocks.database = clocks.wall + YEAR
    dispatcher.forget_expired()
    clocks.pass_time(HOUR)
    dispatcher.forget_expired()
    clocks.dispatcher(services).forget_expired()  # one that has just started does not believe it either
    with services.database.reading() as session:
        assert session.scalar(select(func.count(TaskSubject.salt))) == 2
        assert session.scalar(select(func.count(IdempotencyKey.key_hash))) == 1
    clocks.pass_time(CONFIRMED_AFTER)
    dispatcher.forget_expired()
    with services.database.reading() as session:
        assert session.scalar(select(func.count(TaskSubject.salt))) == 0
        assert session.scalar(select(func.count(IdempotencyKey.key_hash))) == 0


def test_after_a_jump_the_clock_goes_on_from_the_time_before(services: Services, clocks: Clocks) -> None:
    clock, start = expiry_clock(services, clocks), clocks.wall
    assert clock.read() == start
    clocks.wall = clocks.database = start + YEAR
    assert clock.read() == start
    clocks.pass_time(HOUR)
    assert clock.read() == start + HOUR
    clocks.wall = clocks.database = start + HOUR  # set right again
    assert clock.read() == start + HOUR


def test_a_jump_is_confirmed_only_if_the_clock_then_runs_steadily(services: Services, clocks: Clocks) -> None:
    clock, start = expiry_clock(services, clocks), clocks.wall
    clock.read()
    for _ in range(3):  # it jumps every 20 hours
        clocks.wall = clocks.database = clocks.wall + YEAR
        clock.read()
        clocks.pass_time(20 * HOUR)
        assert clock.read() <= start + 60 * HOUR
    clocks.pass_time(4 * HOUR)
    assert clock.read() == clocks.wall


def test_the_databases_clock_is_never_overtaken(services: Services, clocks: Clocks) -> None:
    clock, start = expiry_clock(services, clocks), clocks.wall
    clock.read()
    clocks.wall = start + YEAR
    for _ in range(4):
        clock.read()
        clocks.pass_time(CONFIRMED_AFTER)
    assert clock.read() == clocks.database == start + 4 * CONFIRMED_AFTER


def test_a_restart_after_a_short_time_changes_nothing_and_after_a_long_one_waits(
    services: Services, clocks: Clocks
) -> None:
    start = clocks.wall
    assert expiry_clock(services, clocks).read() == start
    clocks.pass_time(HOUR / 2)
    assert expiry_clock(services, clocks).read() == clocks.wall
    clocks.pass_time(YEAR)
    clocks.steady = 0.0  # the machine was switched off
    clock, known = expiry_clock(services, clocks), start + HOUR / 2
    assert clock.read() == known
    clocks.pass_time(CONFIRMED_AFTER)
    assert clock.read() == clocks.wall


def test_a_clock_that_is_set_back_is_followed_at_once(services: Services, clocks: Clocks) -> None:
    clock, start = expiry_clock(services, clocks), clocks.wall
    clock.read()
    clocks.wall = clocks.database = start - YEAR
    assert clock.read() == start - YEAR


def test_a_jump_is_logged_once(services: Services, clocks: Clocks, capfd: pytest.CaptureFixture[str]) -> None:
    clock = expiry_clock(services, clocks)
    clock.read()
    clocks.wall = clocks.database = clocks.wall + YEAR
    for _ in range(3):
        clock.read()
        clocks.pass_time(HOUR)
    assert capfd.readouterr().out.count("the clock jumped forward") == 1


def test_the_databases_own_clock_can_be_read(services: Services) -> None:
    with services.database.reading() as session:
        time = database_time(session)
    assert isinstance(time, datetime)
    assert abs(time - now()) < HOUR

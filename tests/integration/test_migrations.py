"""Migrations lead to the tables of the code, and back to nothing, on both databases."""

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, select, text
from sqlalchemy.exc import IntegrityError

import migrations
from app.core.clock import new_id, now
from app.db import schema, tables, transitions
from app.db.states import JobKind
from app.db.types import Base
from app.services import Services

LOOK = "features-look-standardised"


def test_the_migrated_schema_is_the_metadata(services: Services) -> None:
    assert tables.Model.__tablename__ in Base.metadata.tables
    with services.database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []


def test_check_constraints_are_there(services: Services) -> None:
    inspector = inspect(services.database.engine)
    for table in Base.metadata.sorted_tables:
        wanted = {c.name for c in table.constraints if c.name and str(c.name).startswith("ck_")}
        assert {c["name"] for c in inspector.get_check_constraints(table.name)} == wanted, table.name


def test_downgrade_leaves_nothing_and_upgrade_works_again(services: Services) -> None:
    schema.downgrade(services.database, "base")
    assert set(inspect(services.database.engine).get_table_names()) == {"alembic_version"}
    schema.upgrade(services.database)
    assert "models" in inspect(services.database.engine).get_table_names()


def test_upgrading_twice_changes_nothing(services: Services) -> None:
    schema.upgrade(services.database)
    before = sorted(inspect(services.database.engine).get_table_names())
    schema.upgrade(services.database)
    assert sorted(inspect(services.database.engine).get_table_names()) == before


def test_every_revision_has_a_way_back() -> None:
    revisions = Path(migrations.__file__ or "").parent.glob("versions/0*.py")
    sources = [path.read_text() for path in revisions]
    assert sources
    for source in sources:
        assert "def downgrade() -> None:\n    pass" not in source


def test_waiting_messages_get_the_one_function_and_on_the_way_back_that_of_their_kind(
    services: Services,
) -> None:
    job_id = _add_job(services)
    with services.database.writing() as session:
        session.add(tables.OutboxMessage(function=transitions.RUN, job_id=job_id, token=new_id()))
    schema.downgrade(services.database, "0030")
    assert _functions(services) == ["worker.jobs.register"]
    schema.upgrade(services.database)
    assert _functions(services) == [transitions.RUN]


def _functions(services: Services) -> list[str]:
    with services.database.reading() as session:
        return list(session.scalars(select(tables.OutboxMessage.function)))


@pytest.mark.parametrize(
    ("report", "codes"),
    [
        ({"warnings": ["the features have means near 0 and variances near 1: constants …"]}, [LOOK]),
        ({"warnings": ["another sentence"]}, []),
        ({}, []),
        ({"warnings": ["a sentence"], "warning_codes": [LOOK]}, [LOOK]),
    ],
)
def test_old_registration_reports_get_codes_for_their_warnings(
    services: Services, report: dict[str, Any], codes: list[str]
) -> None:
    _add_job(services, report)
    schema.downgrade(services.database, "0031")
    schema.upgrade(services.database)
    with services.database.reading() as session:
        assert session.scalars(select(tables.Model.report)).one() == report | {"warning_codes": codes}


def test_a_model_without_a_report_stays_without(services: Services) -> None:
    _add_job(services)
    schema.downgrade(services.database, "0031")
    schema.upgrade(services.database)
    with services.database.reading() as session:
        assert session.scalars(select(tables.Model.report)).one() is None


def _add_job(services: Services, report: dict[str, Any] | None = None) -> UUID:
    with services.database.writing() as session:
        tenant = tables.Tenant(id=new_id(), name="t")
        session.add(tenant)
        session.flush()
        model = tables.Model(id=new_id(), tenant_id=tenant.id, name="m", manifest={}, report=report)
        session.add(model)
        session.flush()
        return transitions.create_job(session, JobKind.REGISTER, model.id, now()).id


@pytest.mark.parametrize(
    "statement", ["UPDATE models SET state = 'sleeping'", "UPDATE jobs SET state = 'lost'"]
)
def test_a_state_that_does_not_exist_cannot_be_written(services: Services, statement: str) -> None:
    _add_job(services)
    with pytest.raises(IntegrityError), services.database.writing() as session:
        session.execute(text(statement))

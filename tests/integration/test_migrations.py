"""`upgrade head` equals the metadata, and downgrade leads back to nothing; on both databases."""

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect

from app import migrate
from app.bootstrap import Services
from app.db import tables
from app.db.types import Base


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
    migrate.downgrade(services, "base")
    assert set(inspect(services.database.engine).get_table_names()) == {"alembic_version"}
    migrate.upgrade(services)
    assert "models" in inspect(services.database.engine).get_table_names()


def test_upgrading_twice_changes_nothing(services: Services) -> None:
    migrate.upgrade(services)
    before = sorted(inspect(services.database.engine).get_table_names())
    migrate.upgrade(services)
    assert sorted(inspect(services.database.engine).get_table_names()) == before


def test_every_revision_has_a_way_back() -> None:
    revisions = Path(migrate.migrations.__file__ or "").parent.glob("versions/0*.py")
    texts = [path.read_text() for path in revisions]
    assert texts
    for text in texts:
        assert "def downgrade() -> None:\n    pass" not in text


@pytest.mark.parametrize(
    "statement", ["UPDATE models SET state = 'sleeping'", "UPDATE jobs SET state = 'lost'"]
)
def test_a_state_that_does_not_exist_cannot_be_written(services: Services, statement: str) -> None:
    from sqlalchemy import text
    from sqlalchemy.exc import IntegrityError

    from app.clock import new_id, now
    from app.db.states import JobKind
    from app.db.transitions import create_job

    with services.database.writing() as session:
        tenant = tables.Tenant(id=new_id(), name="t")
        session.add(tenant)
        session.flush()
        model = tables.Model(id=new_id(), tenant_id=tenant.id, name="m", manifest={})
        session.add(model)
        session.flush()
        create_job(session, JobKind.REGISTER, model.id, now())
    with pytest.raises(IntegrityError), services.database.writing() as session:
        session.execute(text(statement))

"""Old code runs on new tables: a revision only expands the schema, or declares that it contracts it."""

import ast
import shutil
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

import migrations
from app.core.settings import Settings
from app.db import schema
from app.db.types import Base
from app.gateway.auth.scopes import Scope
from app.gateway.main import create_app
from app.services import Services
from tests.integration.harness import key_for

REVISIONS = sorted(Path(migrations.__file__ or "").parent.glob("versions/0*.py"))
HARMLESS = {"create_table", "create_index", "f"}


def breaking_changes(source: str) -> list[str]:
    """List the operations of `upgrade` that could break the previous release's code."""
    tree = ast.parse(source)
    if any(isinstance(node, ast.Assign) and _names(node) == ["contract"] for node in tree.body):
        return []
    (upgrade,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "upgrade"]
    return [
        change
        for node in ast.walk(upgrade)
        if isinstance(node, ast.Call)
        for change in _breaking_change(node)
    ]


def _names(node: ast.Assign) -> list[str]:
    return [target.id for target in node.targets if isinstance(target, ast.Name)]


def _breaking_change(call: ast.Call) -> list[str]:
    if not (isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name)):
        return []
    on, name = call.func.value.id, call.func.attr
    if on == "sa" or (on == "op" and name in HARMLESS):
        return []
    if name == "add_column":
        column = next(a for a in call.args if isinstance(a, ast.Call))
        options = {word.arg: ast.unparse(word.value) for word in column.keywords}
        return [] if options.get("nullable") == "True" or "server_default" in options else [ast.unparse(call)]
    return [ast.unparse(call)] if on in ("op", "batch") else []


@pytest.mark.parametrize("revision", REVISIONS[1:], ids=lambda path: path.stem)
def test_a_revision_expands_or_says_that_it_contracts(revision: Path) -> None:
    assert breaking_changes(revision.read_text()) == []


@pytest.mark.parametrize(
    ("line", "breaks"),
    [
        ('op.add_column("t", sa.Column("c", sa.Integer(), nullable=True))', False),
        ('op.add_column("t", sa.Column("c", sa.Integer(), nullable=False, server_default="0"))', False),
        ('op.add_column("t", sa.Column("c", sa.Integer(), nullable=False))', True),
        ('op.drop_column("t", "c")', True),
        ('op.alter_column("t", "c", new_column_name="d")', True),
        ('op.execute("UPDATE t SET c = 1")', True),
    ],
)
def test_the_check_distinguishes_expanding_from_contracting(line: str, breaks: bool) -> None:
    source = f"def upgrade() -> None:\n    {line}\n"
    assert bool(breaking_changes(source)) == breaks
    assert breaking_changes('contract = "unused since 0.2"\n' + source) == []


@pytest.fixture
def ahead(tmp_path: Path, sqlite_template: Path) -> Services:
    """Expand the tables as a later release might, and set a revision that this code does not know."""
    shutil.copy(sqlite_template, tmp_path / "lethe.db")
    services = Services(Settings(data_dir=tmp_path))
    with services.database.writing() as session:
        for table in Base.metadata.sorted_tables:
            session.execute(text(f'ALTER TABLE "{table.name}" ADD COLUMN of_a_later_release VARCHAR(10)'))
        session.execute(text("CREATE TABLE of_a_later_release (id INTEGER PRIMARY KEY)"))
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    return services


def test_tables_that_are_ahead_are_served_and_left_alone(ahead: Services) -> None:
    schema.upgrade(ahead.database)
    admin = key_for(ahead, "t", Scope.ADMIN)
    with TestClient(create_app(ahead.settings, ahead)) as gateway:
        ready = gateway.get("/readyz?exclude=worker&exclude=redis&exclude=storage")
        assert (ready.status_code, ready.json()["parts"]) == (200, {"database": "ok"})
        erasure = gateway.post("/v1/erasures", json={"subjects": ["s1"]}, headers=admin)
        assert erasure.status_code == 202
        assert gateway.get(erasure.headers["Location"], headers=admin).status_code == 200
        assert gateway.get("/v1/models", headers=admin).status_code == 200


def test_tables_that_are_behind_are_not_served(tmp_path: Path, sqlite_template: Path) -> None:
    shutil.copy(sqlite_template, tmp_path / "lethe.db")
    services = Services(Settings(data_dir=tmp_path))
    schema.downgrade(services.database, "0001")
    with TestClient(create_app(services.settings, services)) as gateway:
        answer = gateway.get("/readyz?exclude=worker&exclude=redis&exclude=storage")
        assert (answer.status_code, answer.json()["parts"]) == (
            503,
            {"database": "behind: run `lethe migrate`"},
        )

"""The deployment key can be replaced while the service runs; afterwards the old one opens nothing."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from app.core import data_key, vault
from app.core.clock import now
from app.core.settings import Settings
from app.core.vault import KeyProblem, RowCipher, derive, row_of
from app.db import callbacks, paths, webhook_store
from app.db.callbacks import Protocol, RequestCallback
from app.db.key_tables import DataKeyRecord
from app.db.states import TaskState
from app.db.tables import Task, TaskSubject
from app.db.webhooks import WebhookEndpoint
from app.gateway.webhooks import service as webhooks
from app.gateway.webhooks.schemas import WebhookRequest
from app.services import Services
from tests.integration.harness import environment
from tests.integration.job_world import World
from tests.integration.test_destroyed_keys import identifiers, record

TOKEN = "a token of another system"
Start = Callable[[Settings], Services]


@pytest.fixture
def world(services: Services) -> World:
    return World(services)


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that builds the services of a part. They are closed after the test."""
    with ExitStack() as stack:

        def build(settings: Settings) -> Services:
            services = Services(settings)
            stack.callback(services.close)
            return services

        yield build


@pytest.fixture
def stored(world: World) -> dict[str, Any]:
    """Something of every kind that depends on the deployment key."""
    services = world.services
    task_id = record(world, "ada", "bob", key="k")
    with services.database.writing() as session:
        request = WebhookRequest(url="https://hooks.example.org/in")
        endpoint, secret = webhooks.create(session, services.vault, world.tenant, request)
        endpoint.previous_secret = webhook_store.seal_secret(services.vault, endpoint.id, "earlier")
        erasure_id = session.get_one(Task, task_id).erasure_id
        urls = ["https://other.example.org/back"]
        callbacks.add_callbacks(session, services.vault, erasure_id, Protocol.FIDES, "r", urls, TOKEN)
    return {"task": task_id, "secret": secret, "hash": services.vault.keyed_hash("x", purpose="a list")}


def rotating(settings: Settings, tmp_path: Path) -> Settings:
    """Return the settings of a part that knows a new deployment key and the present one."""
    new = tmp_path / "new.key"
    vault.create(new)
    return settings.model_copy(
        update={
            "deployment_key_file": new,
            "previous_deployment_key_file": settings.deployment_key_path,
        }
    )


def rotated(settings: Settings) -> Settings:
    return settings.model_copy(update={"previous_deployment_key_file": None})


def read_all(services: Services) -> dict[str, Any]:
    """Open everything that `stored` wrote."""
    with services.database.reading() as session:
        endpoint = session.scalars(select(WebhookEndpoint)).one()
        callback = session.scalars(select(RequestCallback)).one()
        task = session.scalars(select(Task).order_by(Task.id)).first()
    assert task is not None
    assert callbacks.token_of(services.vault, callback) == TOKEN
    assert identifiers(services, task.id) == ["ada", "bob"]
    (secret,) = webhook_store.secrets_of(services.vault, endpoint, now())
    return {"task": task.id, "secret": secret, "hash": services.vault.keyed_hash("x", purpose="a list")}


def opens_anything(services: Services, key: bytes) -> list[str]:
    """Try a deployment key on everything that is encrypted under one."""
    cipher, tried = RowCipher(derive(key, b"subject encryption")), []
    with services.database.reading() as session:
        for endpoint in session.scalars(select(WebhookEndpoint)):
            row = webhook_store.secret_row(endpoint.id)
            tried += [("secret", endpoint.secret, row), ("previous", endpoint.previous_secret, row)]
        for callback in session.scalars(select(RequestCallback)):
            tried.append(("token", callback.token, callbacks.token_row(callback.id)))
        for key_id in session.scalars(select(DataKeyRecord.id)):
            content = b"".join(services.storage.read(paths.data_key(key_id)))
            tried.append(("data key", content, data_key.file_row(key_id)))
    opened = []
    for name, sealed, row in tried:
        try:
            cipher.decrypt_bytes(sealed or b"", row=row)
        except ValueError:
            continue
        opened.append(name)
    return opened


def test_everything_opens_during_and_after_a_rotation_and_nothing_with_the_old_key(
    world: World, stored: dict[str, Any], tmp_path: Path, start: Start
) -> None:
    services = world.services
    old, both = vault.load(services.settings.deployment_key_path), rotating(services.settings, tmp_path)
    during = start(both)
    assert read_all(during) == stored, "before the command"
    assert sorted(opens_anything(services, old)) == ["data key", "data key", "previous", "secret", "token"]

    late = record(_world_on(world, during), "late")
    during.key_rotation.run()
    assert read_all(during) == stored, "a part that runs with both keys"
    assert opens_anything(services, old) == []
    after = start(rotated(both))
    assert read_all(after) == stored
    assert identifiers(after, late) == ["late"]
    with pytest.raises(KeyProblem, match="LETHE_PREVIOUS_DEPLOYMENT_KEY_FILE"):
        _ = start(services.settings).vault
    assert during.key_rotation.run() == 0, "running it again changes nothing"
    for part in (during, after):
        part.close()


def _world_on(world: World, services: Services) -> World:
    """Return the same models and tenant, for a gateway with other keys."""
    other = World.__new__(World)
    other.services, other.tenant, other.models = services, world.tenant, world.models
    return other


@pytest.mark.parametrize("step", ["files", "columns", "flip"])
def test_a_rotation_that_was_cut_short_is_run_again(
    world: World,
    stored: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    start: Start,
) -> None:
    both = rotating(world.services.settings, tmp_path)
    part = start(both)

    def crash(*_: Any, **__: Any) -> Any:
        raise RuntimeError("gone")

    at: dict[str, tuple[object, str]] = {
        "files": (part.storage, "write"),
        "columns": (part.key_rotation, "_renew_value"),
        "flip": (__import__("app.db.deployment", fromlist=["x"]), "finish_rotation"),
    }
    with monkeypatch.context() as patch:
        patch.setattr(*at[step], crash)
        with pytest.raises(RuntimeError, match="gone"):
            part.key_rotation.run()
    assert read_all(start(both)) == stored
    again = start(both)
    again.key_rotation.run()
    assert read_all(start(rotated(both))) == stored
    old = vault.load(world.services.settings.deployment_key_path)
    assert opens_anything(world.services, old) == []


def test_a_second_rotation_keeps_the_hashes_too(
    world: World, stored: dict[str, Any], tmp_path: Path, start: Start
) -> None:
    settings = world.services.settings
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        both = rotating(settings, tmp_path / name)
        start(both).key_rotation.run()
        settings = rotated(both)
    assert read_all(start(settings)) == stored


def test_a_value_that_neither_key_opens_stops_the_rotation(
    world: World, stored: dict[str, Any], tmp_path: Path, start: Start
) -> None:
    both = rotating(world.services.settings, tmp_path)
    with world.services.database.writing() as session:
        session.execute(update(WebhookEndpoint).values(secret=bytes(60)))
    with pytest.raises(KeyProblem, match="opens with neither"):
        start(both).key_rotation.run()
    assert world.services.vault.keyed_hash("x", purpose="a list") == stored["hash"]
    _ = start(world.services.settings).vault, "the database still knows the old key"


def test_the_rotation_waits_for_a_batch_of_an_earlier_version(
    world: World, tmp_path: Path, start: Start
) -> None:
    services = world.services
    task_id = record(world, "ada")
    with services.database.writing() as session:
        task = session.get_one(Task, task_id)
        row = session.scalars(select(TaskSubject)).one()
        row.identifier = services.vault.encrypt("ada", row=row_of(task.erasure_id, 0))
        task.subject_key = task.subject_key_id = None
        session.execute(update(Task).values({"state": TaskState.RUNNING.value}))
    with pytest.raises(KeyProblem, match="wait until it has ended"):
        start(rotating(services.settings, tmp_path)).key_rotation.run()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_command_says_what_it_needs_and_what_comes_next(
    world: World, stored: dict[str, Any], tmp_path: Path, start: Start
) -> None:
    refused = _command(world.services.settings)
    assert refused.returncode != 0
    assert "set LETHE_PREVIOUS_DEPLOYMENT_KEY_FILE" in refused.stderr
    both = rotating(world.services.settings, tmp_path)
    done = _command(both)
    assert done.returncode == 0, done.stderr
    assert "destroy the old key" in " ".join(done.stdout.split())
    assert read_all(start(rotated(both))) == stored


def _command(settings: Settings) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "lethe.cli", "key", "rotate-deployment"],
        check=False,
        capture_output=True,
        text=True,
        env={**environment(settings), "PYTHONPATH": str(Path(__file__).parents[2])},
    )

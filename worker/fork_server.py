"""Fresh processes without waiting for imports: a server that has imported everything forks one per job.

Importing torch takes longer than a small job. The worker therefore keeps *fork servers*: processes that
import what their children need, compute nothing, and fork a child for each job. A child ends after its one
job and returns its memory, so no state is carried over. Forking is safe because a server runs one Python
thread and never touches a GPU, uses a thread pool or opens a connection (see `worker.preload`). Two libraries
start threads when they are imported, OpenBLAS (NumPy) and jemalloc (PyArrow). Both are prepared for forks.

The kernel kills a server when its owner dies, and a child when its server dies. The owner and the server talk
over two pipes, one JSON document per line. Only Linux can do this; elsewhere each job starts a new
interpreter.
"""

import gc
import itertools
import json
import os
import selectors
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn, Protocol

from app.core import process

SERVE = "--serve"
PREPARE = "prepare"  # in place of a job: asks for preparations instead of an attempt
_LINE_BYTES = 65536
_CLOSE_SECONDS = 10.0
_KILL_SECONDS = 30.0  # how long a server may take to kill a child
_SUPPORTED = sys.platform == "linux"


class ChildProcess(Protocol):
    """A child process that runs one job."""

    @property
    def returncode(self) -> int | None:
        """The exit code, or None while the child runs."""
        ...

    def wait(self, seconds: float) -> bool:
        """Wait for up to `seconds` and return whether the child has ended."""
        ...

    def terminate(self) -> None:
        """Ask the child to stop, with SIGTERM. Do nothing if it has ended."""
        ...

    def kill(self) -> None:
        """Kill the child and everything else in its session, and wait until it has ended."""
        ...


class SpawnedProcess:
    """A child in a new interpreter, where fork servers do not work."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None) -> None:
        self._process = process.spawn(command, env=env)

    @property
    def returncode(self) -> int | None:
        """The exit code, or None while the child runs."""
        return self._process.returncode

    def wait(self, seconds: float) -> bool:
        """Wait for up to `seconds` and return whether the child has ended."""
        return process.wait(self._process, seconds)

    def terminate(self) -> None:
        """Ask the child to stop, with SIGTERM. Do nothing if it has ended."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill the child and everything else in its session, and wait until it has ended."""
        process.kill(self._process)


class ForkedProcess:
    """A child of a fork server, as its owner sees it."""

    def __init__(self, server: "ForkServer", number: int) -> None:
        self._server, self._number = server, number
        self.returncode: int | None = None

    def wait(self, seconds: float) -> bool:
        """Wait for up to `seconds` and return whether the child has ended."""
        if self.returncode is None:
            self.returncode = self._server.receive_status(self._number, seconds)
        return self.returncode is not None

    def terminate(self) -> None:
        """Ask the child to stop, with SIGTERM. Do nothing if it has ended."""
        if self.returncode is None:
            self._server.send({"terminate": self._number})

    def kill(self) -> None:
        """Kill the child and everything else in its session, and wait until it has ended."""
        if self.returncode is None:
            self._server.send({"kill": self._number})
            if not self.wait(_KILL_SECONDS):  # the server hangs, and its end kills its children
                self._server.close()
                self.wait(0.0)


class ForkServer:
    """The owner's side of a fork server.

    The server starts with the first child, or earlier if `start` is called. If it has died, the next child
    starts a new one.
    """

    def __init__(self, module: str, *, env: Mapping[str, str] | None = None) -> None:
        # `python -m` searches the current folder first. -P keeps a stranger's `app` or `worker` package there
        # from being imported instead of ours.
        self._command, self._env = (sys.executable, "-P", "-m", module), env
        self._process: subprocess.Popen[bytes] | None = None
        self._idle: ChildProcess | None = None
        self._commands = self._replies = -1
        self._received = b""
        self._numbers = itertools.count()
        self._oldest = 0  # the number of the first child of the server that runs now
        self._statuses: dict[int, int] = {}
        self._running: set[int] = set()  # children whose end has not been reported

    def start(self) -> None:
        """Start the server, unless it is running. It imports its modules while the caller goes on."""
        if not _SUPPORTED:
            return
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        commands_out, self._commands = os.pipe()
        self._replies, replies_in = os.pipe()
        command = [*self._command, SERVE, str(commands_out), str(replies_in)]
        try:
            self._process = process.spawn(command, env=self._env, keep=(commands_out, replies_in))
        finally:
            os.close(commands_out)
            os.close(replies_in)

    def run(self, *arguments: str, env: Mapping[str, str] | None = None) -> ChildProcess:
        """Run one child with these arguments: in `env`, or in the environment that the owner has now."""
        self.end_idle()
        return self._run(*arguments, env=env)

    def run_idle(self, *arguments: str) -> None:
        """Run a child that nobody waits for. The next child replaces it."""
        self.end_idle()
        self._idle = self._run(*arguments)

    def end_idle(self) -> bool:
        """Kill the child that nobody waits for, and return whether it was still running."""
        child, self._idle = self._idle, None
        if child is None or child.wait(0.0):
            return False
        child.kill()
        return True

    def _run(self, *arguments: str, env: Mapping[str, str] | None = None) -> ChildProcess:
        if env is None:
            env = os.environ if self._env is None else self._env
        if not _SUPPORTED:
            return SpawnedProcess([*self._command, *arguments], env)
        self.start()
        number = next(self._numbers)
        self._running.add(number)
        self.send({"run": number, "arguments": arguments, "env": dict(env)})
        return ForkedProcess(self, number)

    def send(self, command: Mapping[str, Any]) -> None:
        """Send a command. A server that has just died is noticed when its reply is awaited."""
        with suppress(OSError), os.fdopen(os.dup(self._commands), "wb") as pipe:
            pipe.write(json.dumps(command).encode() + b"\n")

    def receive_status(self, number: int, seconds: float) -> int | None:
        """Return the exit code of a child, or None if it has not ended within `seconds`.

        A child whose server has died was killed with it.
        """
        deadline = time.monotonic() + max(seconds, 0.0)
        while number not in self._statuses:
            if number < self._oldest or self._process is None:
                return -signal.SIGKILL
            left = deadline - time.monotonic()
            if not self._has_reply(max(left, 0.0)):
                return None
            if not self._receive():
                self._process.wait()
                return self._process.returncode or -signal.SIGKILL
        return self._statuses.pop(number)

    def _has_reply(self, seconds: float) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self._replies, selectors.EVENT_READ)
            return bool(selector.select(seconds))

    def _receive(self) -> bool:
        """Read what the server has sent. Return False if the server has ended."""
        self._received += (received := os.read(self._replies, _LINE_BYTES))
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            reply = json.loads(line)
            self._statuses[reply["child"]] = reply["status"]
            self._running.discard(reply["child"])
        return bool(received)

    def close(self) -> None:
        """End the server and the children that are still running, and wait until all of them have ended.

        The files that they had locked are free afterwards. Without an owner at the other end of the pipe, the
        server kills its children, waits for them and exits.
        """
        if self._process is not None:
            os.close(self._commands)
            if self._running:  # otherwise there is nothing to wait for, and it may still be importing
                process.wait(self._process, _CLOSE_SECONDS)
            process.kill(self._process)
            os.close(self._replies)
            self._commands = self._replies = -1
            self._process, self._idle, self._received = None, None, b""
            self._running.clear()
            self._oldest = next(self._numbers) + 1


# -- in the server ------------------------------------------------------------------------------------------


def serve(run: Callable[..., None], commands: int, replies: int, *, name: Callable[..., str]) -> None:
    """Fork a child for each job that arrives, until the owner closes its end of the pipe.

    `run` is called in the child with the arguments that the owner sent. `name` makes the child's name in the
    process list of the same arguments.
    """
    for number in (signal.SIGTERM, signal.SIGINT):  # a stop sent to the whole group lets the children finish
        signal.signal(number, signal.SIG_IGN)
    gc.collect()
    gc.freeze()  # the collector of a child does not touch, and so copy, the pages of the imports
    _Server(run, commands, replies, name).serve()


class _Server:
    """Forks children, passes signals on to them, and reports how they end."""

    def __init__(
        self, run: Callable[..., None], commands: int, replies: int, name: Callable[..., str]
    ) -> None:
        self._run, self._commands, self._replies, self._name = run, commands, replies, name
        self._received = b""
        self._children: dict[int, int] = {}  # process id by number
        self._endings: dict[int, int] = {}  # number by the descriptor that becomes readable at the end
        self._selector = selectors.DefaultSelector()
        self._selector.register(commands, selectors.EVENT_READ)

    def serve(self) -> None:
        """Obey the owner until it is gone, then kill the children that are left and wait for their ends."""
        while True:
            for key, _ in self._selector.select():
                if key.fd in self._endings:
                    self._report_end(key.fd)
                elif not self._receive():
                    for child in self._children.values():
                        _kill(child)
                        os.waitpid(child, 0)
                    return

    def _receive(self) -> bool:
        """Obey the commands that have arrived. Return False if the owner is gone."""
        self._received += (received := os.read(self._commands, _LINE_BYTES))
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            self._obey(json.loads(line))
        return bool(received)

    def _obey(self, command: Mapping[str, Any]) -> None:
        if "run" in command:
            self._fork(command["run"], command["arguments"], command["env"])
        elif child := self._children.get(command.get("kill", -1)):  # else it has ended by itself
            _kill(child)
        elif child := self._children.get(command.get("terminate", -1)):
            os.kill(child, signal.SIGTERM)

    def _fork(self, number: int, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        """Fork a child that calls `run` and exits."""
        server = os.getpid()
        child = os.fork()
        if child == 0:
            process.die_with_parent(server)
            os.setsid()
            self._close()
            process.set_name(self._name(*arguments))
            os.environ.clear()
            os.environ.update(environment)
            _run_and_exit(self._run, arguments)
        ending = os.pidfd_open(child)
        self._children[number], self._endings[ending] = child, number
        self._selector.register(ending, selectors.EVENT_READ)

    def _close(self) -> None:
        """Close what belongs to the server, in a child."""
        self._selector.close()
        for descriptor in (self._commands, self._replies, *self._endings):
            os.close(descriptor)

    def _report_end(self, ending: int) -> None:
        """Reap a child and tell the owner how it ended."""
        number = self._endings.pop(ending)
        self._selector.unregister(ending)
        os.close(ending)
        status = os.waitstatus_to_exitcode(os.waitpid(self._children.pop(number), 0)[1])
        with suppress(BrokenPipeError):  # the owner has just died
            os.write(self._replies, json.dumps({"child": number, "status": status}).encode() + b"\n")


def _run_and_exit(run: Callable[..., None], arguments: Sequence[str]) -> NoReturn:
    """Call `run` and leave the process at once, without returning into the server's code."""
    code = 1
    try:
        run(*arguments)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _kill(child: int) -> None:
    """Kill a child that is not reaped yet, so that its id is still its own, and everything in its session."""
    with suppress(ProcessLookupError):  # a child that was forked just now has no session yet
        os.killpg(child, signal.SIGKILL)
    os.kill(child, signal.SIGKILL)

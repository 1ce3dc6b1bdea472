"""Child processes that do not outlive the process that started them."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import IO

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
POLL_SECONDS = 0.02

# Loaded before any fork, because a child must not take the loader's lock between fork and exec.
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to kill this process when its parent dies. Only Linux can do this.

    The request survives exec but not fork. `parent` is the pid that the caller expects its parent to have. If
    the parent died before the request was made, no signal would ever come, so the process ends here. The
    kernel watches the *thread* that started this process, so start it from a thread that stays alive.
    """
    if _libc is None:
        return
    expected = os.getppid() if parent is None else parent
    if _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != expected:
        os.kill(os.getpid(), signal.SIGKILL)


def set_name(name: str) -> None:
    """Set this process's name in the process list. Linux keeps 15 characters; other systems ignore it."""
    if _libc is not None:
        _libc.prctl(PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def spawn(
    command: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str] | None = None,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    keep: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a program that dies with this process, in its own session.

    Because of the session, Ctrl-C in the terminal does not reach it, and this process decides when it stops.
    `keep` lists the open file descriptors that it inherits.
    """
    return subprocess.Popen(  # noqa: S603 - the callers' commands are fixed lists, never a shell
        command,
        env=env,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        pass_fds=keep,
        start_new_session=True,
        preexec_fn=partial(die_with_parent, os.getpid()),
    )


def stop(*processes: subprocess.Popen[bytes], grace: float) -> list[subprocess.Popen[bytes]]:
    """Terminate the processes, wait up to `grace` seconds in total, and kill and return the rest."""
    for process in processes:
        process.terminate()  # harmless if it has ended: Popen does not signal a process it has reaped
    deadline = time.monotonic() + grace
    for process in processes:
        wait(process, deadline - time.monotonic())
    stubborn = [process for process in processes if process.poll() is None]
    for process in stubborn:
        kill(process)
    return stubborn


def wait(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for up to `seconds` and return whether the process has ended."""
    try:
        process.wait(max(seconds, 0.0))
    except subprocess.TimeoutExpired:
        return False
    return True


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and everything else in its session."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)  # not reaped yet, so the pid is still its own
        process.wait()


def describe_end(returncode: int) -> str:
    """Describe a return code in words, such as `killed by SIGKILL` for -9."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"

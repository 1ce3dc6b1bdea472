"""Child processes that never outlive the process that started them."""

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
POLL_SECONDS = 0.02

# Loaded before any fork: between fork and exec a child may not take the loader's lock.
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to kill this process when its parent dies; a no-op where the kernel cannot.

    Survives exec, not fork. `parent` is the pid the caller knows its parent by: one that died before the
    request was made would send nothing, so a child that finds itself adopted already ends here.
    The kernel watches the *thread* that started this process, so start it from one that stays.
    """
    if _libc is None:
        return
    expected = os.getppid() if parent is None else parent
    if _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != expected:
        os.kill(os.getpid(), signal.SIGKILL)


def spawn(
    command: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str] | None = None,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    keep: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a program that dies with this process, in a session of its own.

    Its own session keeps the terminal's Ctrl-C from it: who started it decides when it stops. `keep` names
    the open descriptors it inherits.
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
    """Ask all to end, wait up to `grace` seconds for the last, kill the rest; returns those killed."""
    for process in processes:
        process.terminate()  # harmless on one that ended: Popen never signals a pid it has reaped
    deadline = time.monotonic() + grace
    for process in processes:
        wait(process, deadline - time.monotonic())
    stubborn = [process for process in processes if process.poll() is None]
    for process in stubborn:
        kill(process)
    return stubborn


def wait(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether it ended within so many seconds."""
    try:
        process.wait(max(seconds, 0.0))
    except subprocess.TimeoutExpired:
        return False
    return True


def kill(process: subprocess.Popen[bytes]) -> None:
    """End it now, and with it whatever it started in its session."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)  # not reaped, so the number is still its own
        process.wait()


def describe_end(returncode: int) -> str:
    """`-9` → `killed by SIGKILL`."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"

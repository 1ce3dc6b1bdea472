"""A running service whose parts are real processes that a test may kill."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.core import process
from app.core.settings import Settings
from app.db.states import JobState, VersionState
from app.db.tables import DatasetPart, Job, Version
from app.gateway.auth.scopes import Scope
from app.gateway.main import create_app
from app.local.supervisor import environment
from app.services import Services
from lethe.certificate.cli import run_verify
from tests import eventually
from tests.faults.gated_attempt import GATE, PYTHONPATH
from tests.integration.harness import create_model, key_for
from worker.attempt import process_name

JOB_SECONDS = 240.0  # a loaded machine imports torch slowly
LOG_LINES = 60


class Live:
    """One model. The gateway runs in this process, dispatcher and workers in processes of their own."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings, self.folder = settings, folder
        self.services = Services(settings)
        self.admin = key_for(self.services, "faults", Scope.ADMIN)
        self.gateway = TestClient(create_app(settings)).__enter__()
        self.gate = folder / "gate"
        self.gate.touch()
        self.started: list[subprocess.Popen[bytes]] = []
        self.dispatcher = self.start("dispatcher")
        self.asked: list[str] = []

    def start(self, part: str) -> subprocess.Popen[bytes]:
        """Start a part of the service as a process. The attempts of a worker wait at this object's gate."""
        command = ("tests.faults.gated_worker",) if part == "worker" else ("lethe.cli", part)
        with (self.folder / "log").open("ab") as log:
            running = process.spawn(
                [sys.executable, "-m", *command],
                env=environment(self.settings, part) | {GATE: str(self.gate), "PYTHONPATH": PYTHONPATH},
                stdout=log,
                stderr=log,
            )
        self.started.append(running)
        return running

    def close(self) -> None:
        """Stop every process that was started."""
        process.stop(*self.started, grace=30)
        self.gateway.__exit__(None, None, None)
        self.services.close()

    # As a user

    def is_registered(self) -> bool:
        return self.gateway.get("/v1/models/toy", headers=self.admin).status_code == 200

    def register(self) -> None:
        create_model(self.gateway, self.admin)
        self.wait_until(lambda: self.get("/v1/models/toy")["state"] == "ready")

    def erase(self, *subjects: str) -> str:
        """Request an erasure. Two subjects fill a batch."""
        answer = self.gateway.post("/v1/erasures", json={"subjects": subjects}, headers=self.admin)
        assert answer.status_code == 202
        self.asked.append(answer.headers["Location"])
        return self.asked[-1]

    def get(self, path: str) -> Any:
        answer = self.gateway.get(path, headers=self.admin)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def wait_until_completed(self, erasure: str) -> None:
        self.wait_until(lambda: self.get(erasure)["state"] == "completed")

    def wait_until(self, look: Callable[[], bool], *, every: float = 0.05) -> None:
        """Wait until `look` is true. If that takes too long, say what the service was doing."""
        try:
            eventually(look, within=JOB_SECONDS, every=every)
        except AssertionError as problem:
            raise AssertionError(f"{problem}\n{self.describe()}") from None

    def describe(self) -> str:
        """Describe the newest job, the processes that run, and the last lines that they logged."""
        job = self.newest_job()
        lines = [
            f"job {job.id}: {job.kind} {job.state}, attempt {job.attempt}, {job.failure_cause}, {job.error}"
        ]
        for started in self.started:
            if started.poll() is None:
                family = [psutil.Process(started.pid), *psutil.Process(started.pid).children(recursive=True)]
                lines += [f"{it.pid} {it.status()} {it.name()} {' '.join(it.cmdline())}" for it in family]
        for path in sorted(self.folder.glob("*log")):
            lines += [f"-- {path.name}", *path.read_text(errors="replace").splitlines()[-LOG_LINES:]]
        return "\n".join(lines)

    # As an operator

    def newest_job(self) -> Job:
        with self.services.database.reading() as session:
            return session.scalars(select(Job).order_by(Job.id.desc()).limit(1)).one()

    @contextmanager
    def attempts_waiting(self) -> Iterator[None]:
        """Let attempts at batches wait while the block runs."""
        self.gate.unlink()
        try:
            yield
        finally:
            self.gate.touch()

    def wait_for_job(self, state: JobState) -> Job:
        """Wait until the job of the newest erasure is in this state, and return it."""
        self.wait_until(lambda: self.get(self.asked[-1])["state"] != "received")
        self.wait_until(lambda: self.newest_job().state == state, every=0.01)
        return self.newest_job()

    def attempt_of(self, worker: subprocess.Popen[bytes]) -> psutil.Process:
        """Wait until a worker runs an attempt, and return its process."""

        name = process_name(str(self.newest_job().id))

        def look() -> psutil.Process | None:
            for child in psutil.Process(worker.pid).children(recursive=True):
                if child.name() == name:
                    return child
            return None

        attempt = eventually(look)
        assert attempt is not None
        return attempt

    # Checks after every fault

    def check(self) -> None:
        """Check that every request was completed once, in one chain of versions, and left no debris."""
        numbers = [version["number"] for version in self.get("/v1/models/toy/versions")]
        assert sorted(numbers) == list(range(len(self.asked) + 1))
        tasks = [self.get(erasure)["tasks"] for erasure in self.asked]
        assert [task["version"] for (task,) in tasks] == list(range(1, len(tasks) + 1))
        self.check_certificate(tasks[-1][0]["certificate_id"])
        eventually(lambda: not list((self.settings.data_dir / "scratch").glob("*/")))
        assert set(self.services.storage.list("attempts")) == self.live_files()
        assert self.services.storage.list("drafts") == []

    def live_files(self) -> set[str]:
        """Return the files of attempts that SQL refers to."""
        with self.services.database.reading() as session:
            parts = session.scalars(select(DatasetPart.path).where(DatasetPart.last_generation.is_(None)))
            versions = session.scalars(select(Version.path).where(Version.state == VersionState.CURRENT))
            return {path for path in (*parts, *versions) if path.startswith("attempts/")}

    def check_certificate(self, certificate_id: str) -> None:
        """Verify a certificate offline, with the current weights."""
        model, pack = self.folder / "m.safetensors", self.folder / "pack.json"
        for path, url in {
            model: "/v1/models/toy/versions/current/checkpoint",
            pack: f"/v1/certificates/{certificate_id}/pack",
        }.items():
            path.write_bytes(self.gateway.get(url, headers=self.admin).content)
        lines: list[str] = []
        code = run_verify(pack=pack, model=model, as_json=True, write=lines.append)
        assert code == 0, lines

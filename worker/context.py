"""What the stages of one attempt share: who they work for, and the only way they may write."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.bootstrap import Services
from app.clock import now
from app.db import paths, transitions
from app.db.manifest import Manifest, unresolved_warnings
from app.db.refusals import changed_after_refusal
from app.db.states import BatchState, FileKind, PartRole, VersionState
from app.db.tables import Batch, BatchEvent, DatasetPart, Job, Model, ModelFile, Version
from worker.pipeline.claim import Choices

PROGRESS_SECONDS = 0.25  # at most a few times a second
LOOK_SECONDS = 0.5


class CannotContinue(Exception):
    """The job ends here for a reason its owner can act on; trying again would not help."""


@dataclass
class Context:
    services: Services
    job_id: UUID
    token: UUID
    model: Model
    manifest: Manifest
    batch: Batch | None
    choices: Choices = field(default_factory=Choices)
    _progress_at: float = field(default=0.0)
    _unsaid: dict[str, Any] | None = field(default=None)
    _looked_at: float = field(default=0.0)
    _over: bool = field(default=False)

    @classmethod
    def load(cls, services: Services, job_id: UUID, token: UUID) -> "Context":
        _ = services.vault  # opened before any transaction, for that may be one of its own
        with services.database.reading() as session:
            job = session.get_one(Job, job_id)
            model = session.get_one(Model, job.model_id)
            batch = session.scalar(select(Batch).where(Batch.job_id == job_id))
            # A batch runs under the policy it was sealed under, whatever the model's is by now.
            document = model.manifest if batch is None else model.manifest | {"policy": batch.policy}
            manifest = Manifest.model_validate(document)
            choices = Choices(
                changed_after_refusal=changed_after_refusal(session, model, manifest),
                warnings=unresolved_warnings(manifest, model.report),
            )
        return cls(services, job_id, token, model, manifest, batch, choices)

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """A transaction that happens only while this attempt holds the job."""
        with self.services.database.writing() as session:
            transitions.fence(session, self.job_id, self.token, now())
            yield session

    def batch_in(self, session: Session) -> Batch:
        assert self.batch is not None
        return session.get_one(Batch, self.batch.id)

    def step(self, name: str) -> None:
        self.services.tracer.stage(name)
        with self.writing() as session:
            self._say(session)
            transitions.batch_step(session, self.batch_in(session), name, now())

    def progress(self, data: Mapping[str, Any]) -> None:
        """The newest is said with the next step at the latest; what came between is of no use any more."""
        self._unsaid = dict(data)
        if time.monotonic() - self._progress_at < PROGRESS_SECONDS:
            return
        self._progress_at = time.monotonic()
        with self.writing() as session:
            self._say(session)

    def _say(self, session: Session) -> None:
        if self._unsaid is None:
            return
        batch = self.batch_in(session)
        batch.progress = self._unsaid
        transitions.add_event(session, batch.id, "progress", self._unsaid, now())
        self._unsaid = None

    def times_begun(self) -> int:
        """Of this batch, now included; `Job.attempt` begins anew when somebody tries again by hand."""
        assert self.batch is not None
        of_state = select(BatchEvent.data).where(
            BatchEvent.batch_id == self.batch.id, BatchEvent.kind == "state"
        )
        with self.services.database.reading() as session:
            found = [data for data in session.scalars(of_state) if data["state"] == BatchState.RUNNING]
        return max(1, len(found))

    def is_over(self) -> bool:
        """Whether the job was taken from this attempt, as by a cancellation; cheap to ask at each product."""
        if not self._over and time.monotonic() - self._looked_at >= LOOK_SECONDS:
            self._looked_at = time.monotonic()
            with self.services.database.reading() as session:
                self._over = not transitions.holds(session, self.job_id, self.token)
        return self._over

    def holdings(self) -> list[DatasetPart]:
        """Every part that may hold someone's rows: training data, holdout, and what waits to be appended."""
        with self.services.database.reading() as session:
            return list(
                session.scalars(
                    select(DatasetPart)
                    .where(DatasetPart.model_id == self.model.id, DatasetPart.last_generation.is_(None))
                    .order_by(DatasetPart.name, DatasetPart.id)  # a rewritten part keeps its place
                )
            )

    def parts(self, role: PartRole = PartRole.TRAIN) -> list[DatasetPart]:
        """The present generation."""
        return [part for part in self.holdings() if part.role == role and part.first_generation is not None]

    def staged(self) -> list[DatasetPart]:
        return [part for part in self.holdings() if part.first_generation is None]

    def file(self, kind: FileKind) -> ModelFile | None:
        with self.services.database.reading() as session:
            return session.get(ModelFile, (self.model.id, kind))

    def current_version(self) -> Version:
        with self.services.database.reading() as session:
            return session.scalars(
                select(Version).where(
                    Version.model_id == self.model.id, Version.state == VersionState.CURRENT
                )
            ).one()

    def path(self, name: str) -> str:
        """A file of this attempt's own."""
        return f"{paths.attempt(self.job_id, self.token)}/{name}"

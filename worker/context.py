"""What the stages of one attempt share: its job, model and policy, and the only way it may write to SQL."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.core.clock import now
from app.db import history, paths, transitions
from app.db.manifest import Manifest, unresolved_warnings
from app.db.refusals import changed_after_refusal
from app.db.states import BatchStep, EventKind, FileKind, HeldReason, PartRole, VersionState
from app.db.tables import (
    Batch,
    DatasetPart,
    Job,
    LibraryRepresentation,
    Model,
    ModelFile,
    Version,
)
from app.services import Services
from lethe.certificate.representation import CertifiedRepresentation, Representation, RowCheck
from lethe.certificate.vocabulary import RegistrationWarning
from worker.distributed.rank0 import Team

PROGRESS_SECONDS = 0.25  # at most a few progress reports a second
POLL_SECONDS = 0.5


class CannotContinue(Exception):
    """The job ends for a reason that its owner can act on. Another attempt would end in the same way."""


@dataclass(frozen=True)
class Refusal:
    """Why a batch cannot be released, and what its owner is told about it."""

    reason: HeldReason
    detail: str


@dataclass(frozen=True)
class Caveats:
    """Facts about the policy and the features that lower the assurance of a certificate."""

    changed_after_refusal: bool = False
    """ε, δ, Δ* or λ was changed after an attempt on the same rows was refused."""
    warnings: tuple[RegistrationWarning, ...] = ()
    """Warnings from registration that the owner has not answered."""


@dataclass(frozen=True)
class RepresentationFile:
    """A stored file of a representation."""

    path: str
    sha256: str
    size: int


@dataclass(frozen=True)
class RepresentationFiles:
    """The graph of a representation and, for text, its tokenizer."""

    graph: RepresentationFile
    tokenizer: RepresentationFile | None

    def digest(self, declaration: Representation) -> str:
        """Return the digest that names the representation."""
        return declaration.digest(
            self.graph.sha256, None if self.tokenizer is None else self.tokenizer.sha256
        )


@dataclass
class JobContext:
    """One attempt at one job. Every write goes through `writing`, which fails once the token is lost."""

    services: Services
    job_id: UUID
    token: UUID
    model: Model
    manifest: Manifest
    batch: Batch | None
    team: Team
    caveats: Caveats = field(default_factory=Caveats)
    _progress_at: float = field(default_factory=time.monotonic)
    _pending_steps: list[tuple[BatchStep, datetime]] = field(default_factory=list)
    _pending_progress: dict[str, Any] | None = field(default=None)
    _polled_at: float = field(default=0.0)
    _over: bool = field(default=False)

    @classmethod
    def load(cls, services: Services, job_id: UUID, token: UUID, team: Team | None = None) -> "JobContext":
        """Load the job with its model and batch. Without a team, this process computes alone."""
        _ = services.vault  # opening it may take a transaction of its own, so it comes first
        with services.database.reading() as session:
            job = session.get_one(Job, job_id)
            model = session.get_one(Model, job.model_id)
            batch = session.scalar(select(Batch).where(Batch.job_id == job_id))
            # A batch runs under the policy it was sealed under, even if the model's policy changed since.
            document = model.manifest if batch is None else model.manifest | {"policy": batch.policy}
            manifest = Manifest.model_validate(document)
            caveats = Caveats(
                changed_after_refusal=changed_after_refusal(session, model, manifest),
                warnings=unresolved_warnings(manifest, model.report),
            )
        team = team or Team.alone(services.settings)
        return cls(services, job_id, token, model, manifest, batch, team, caveats)

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """Open a transaction that commits only while this attempt owns the job."""
        with self.services.database.writing() as session:
            transitions.fence(session, self.job_id, self.token, now())
            yield session

    def batch_in(self, session: Session) -> Batch:
        """Return the batch as an object of this session."""
        assert self.batch is not None
        return session.get_one(Batch, self.batch.id)

    def step(self, name: BatchStep, *, short: bool = False) -> None:
        """Record that the batch has reached this step.

        A short step is recorded together with the one that follows, which saves a transaction.
        """
        self.services.tracer.stage(name)
        self._pending_steps.append((name, now()))
        if not short:
            with self.writing() as session:
                self.write_steps(session)

    def write_steps(self, session: Session) -> None:
        """Write the progress and the steps that are not recorded yet."""
        self._write_progress(session)
        for name, reached_at in self._pending_steps:
            transitions.batch_step(session, self.batch_in(session), name, reached_at)
        self._pending_steps = []

    def progress(self, data: Mapping[str, Any]) -> None:
        """Record progress within the current step, at most a few times a second.

        Only the newest report is kept. The next `step` writes it if it is still pending. Jobs without a batch
        report on the model.
        """
        self._pending_progress = dict(data)
        if time.monotonic() - self._progress_at < PROGRESS_SECONDS:
            return
        self._progress_at = time.monotonic()
        with self.writing() as session:
            self._write_progress(session)

    def _write_progress(self, session: Session) -> None:
        if self._pending_progress is None:
            return
        if self.batch is None:
            session.get_one(Model, self.model.id).progress = self._pending_progress
            self._pending_progress = None
            return
        batch = self.batch_in(session)
        batch.progress = self._pending_progress
        transitions.add_event(session, batch.id, EventKind.PROGRESS, self._pending_progress, now())
        self._pending_progress = None

    def attempts_started(self) -> int:
        """Return how many attempts at this batch have started, including this one.

        `Job.attempt` is a different number: it starts again when someone retries the batch. The column is
        what counts. A worker of an earlier release leaves only an event, so during an upgrade the events may
        count more.
        """
        with self.services.database.reading() as session:
            batch = self.batch_in(session)
            return max(1, batch.attempts_started, history.attempts_started(session, batch.id))

    def is_over(self) -> bool:
        """Return whether this attempt has lost its job, for example to a cancellation.

        The answer is cached for half a second, so it is cheap to ask in an inner loop.
        """
        if not self._over and time.monotonic() - self._polled_at >= POLL_SECONDS:
            self._polled_at = time.monotonic()
            with self.services.database.reading() as session:
                self._over = not transitions.owns_job(session, self.job_id, self.token)
        return self._over

    def all_parts(self) -> list[DatasetPart]:
        """Return every part that may hold someone's rows: training data, holdout and staged parts."""
        with self.services.database.reading() as session:
            return list(
                session.scalars(
                    select(DatasetPart)
                    .where(DatasetPart.model_id == self.model.id, DatasetPart.last_generation.is_(None))
                    .order_by(DatasetPart.name, DatasetPart.id)  # a rewritten part keeps its place
                )
            )

    def parts(self, role: PartRole = PartRole.TRAIN) -> list[DatasetPart]:
        """Return the parts of the current generation with this role."""
        return [part for part in self.all_parts() if part.role == role and part.first_generation is not None]

    def staged_parts(self) -> list[DatasetPart]:
        """Return the parts that wait to be appended."""
        return [part for part in self.all_parts() if part.first_generation is None]

    def file(self, kind: FileKind) -> ModelFile | None:
        """Return the uploaded file of this kind, or None."""
        with self.services.database.reading() as session:
            return session.get(ModelFile, (self.model.id, kind))

    def representation_files(self) -> RepresentationFiles:
        """Return the files of the model's representation, its own or the library's.

        Raises `CannotContinue` if one is missing. Call this only for a model that has a representation.
        """
        declaration = self.manifest.representation
        assert declaration is not None
        graph: RepresentationFile | None
        if declaration.library is not None:
            graph, tokenizer = self._library_files(declaration.library)
        else:
            graph, tokenizer = self._own_file(FileKind.REPRESENTATION), self._own_file(FileKind.TOKENIZER)
        if graph is None:
            raise CannotContinue("the graph is missing; upload it, or name an entry of the library")
        if declaration.needs_tokenizer and tokenizer is None:
            raise CannotContinue("the tokenizer is missing; upload tokenizer.json")
        return RepresentationFiles(graph, tokenizer if declaration.needs_tokenizer else None)

    def _own_file(self, kind: FileKind) -> RepresentationFile | None:
        file = self.file(kind)
        return None if file is None else RepresentationFile(file.path, file.sha256, file.size)

    def _library_files(self, name: str) -> tuple[RepresentationFile | None, RepresentationFile | None]:
        with self.services.database.reading() as session:
            entry = session.scalar(select(LibraryRepresentation).where(LibraryRepresentation.name == name))
        if entry is None:
            return None, None
        graph = RepresentationFile(entry.graph_path, entry.graph_sha256, entry.graph_size)
        if entry.tokenizer_path is None:
            return graph, None
        assert entry.tokenizer_sha256 is not None
        assert entry.tokenizer_size is not None
        return graph, RepresentationFile(entry.tokenizer_path, entry.tokenizer_sha256, entry.tokenizer_size)

    def row_check(self) -> RowCheck | None:
        """Return how registration checked that rows are represented independently, or None before that."""
        check: RowCheck | None = ((self.model.report or {}).get("representation") or {}).get("row_check")
        return check

    def certified_representation(self) -> CertifiedRepresentation | None:
        """Return what a certificate says about the model's representation, or None if it has none."""
        declaration, check = self.manifest.representation, self.row_check()
        if declaration is None:
            return None
        if check is None:
            raise CannotContinue("registration has not checked the representation")
        files = self.representation_files()
        return CertifiedRepresentation(
            digest=files.digest(declaration),
            declaration=declaration,
            graph_sha256=files.graph.sha256,
            graph_bytes=files.graph.size,
            tokenizer_sha256=None if files.tokenizer is None else files.tokenizer.sha256,
            row_check=check,
        )

    def current_version(self) -> Version:
        """Return the version that is published now."""
        with self.services.database.reading() as session:
            return session.scalars(
                select(Version).where(
                    Version.model_id == self.model.id, Version.state == VersionState.CURRENT
                )
            ).one()

    def path(self, name: str) -> str:
        """Return a storage path in this attempt's own folder."""
        return f"{paths.attempt(self.job_id, self.token)}/{name}"

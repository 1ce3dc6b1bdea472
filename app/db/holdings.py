"""The tables of what a model holds: its copy of the data, its files, what is on its way in, its reports."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, ForeignKey, LargeBinary, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from app.clock import new_id, now
from app.db import states
from app.db.types import Base, one_of


class DatasetPart(Base):
    """A Parquet file of one model's own copy; it belongs to the generations first..last.

    Without a first generation it is staged: sent to a ready model, and waiting to be appended.
    """

    __tablename__ = "dataset_parts"
    __table_args__ = (one_of("role", states.PartRole),)
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    model_id: Mapped[UUID] = mapped_column(ForeignKey("models.id"), index=True)
    name: Mapped[str] = mapped_column(String(32))
    role: Mapped[str] = mapped_column(String(16), default=states.PartRole.TRAIN)
    path: Mapped[str] = mapped_column(String(500), unique=True)
    rows: Mapped[int | None]
    sha256: Mapped[str] = mapped_column(String(64))
    size: Mapped[int] = mapped_column(BigInteger())
    first_generation: Mapped[int | None]
    last_generation: Mapped[int | None]


class ModelFile(Base):
    """Weights that were sent and are not registered yet, and the anchor, which stays."""

    __tablename__ = "model_files"
    __table_args__ = (one_of("kind", states.FileKind),)
    model_id: Mapped[UUID] = mapped_column(ForeignKey("models.id"), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    path: Mapped[str] = mapped_column(String(500), unique=True)
    sha256: Mapped[str] = mapped_column(String(64))
    size: Mapped[int] = mapped_column(BigInteger())


class Upload(Base):
    """A file under way. Its row comes before its bytes, so that no file can be left that nobody knows of."""

    __tablename__ = "uploads"
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    model_id: Mapped[UUID] = mapped_column(ForeignKey("models.id"), index=True)
    target: Mapped[str] = mapped_column(String(64))
    total: Mapped[int | None] = mapped_column(BigInteger())
    received: Mapped[int] = mapped_column(BigInteger(), default=0)
    touched_at: Mapped[datetime] = mapped_column(default=now)


class DatasetImport(Base):
    """A part that the worker will copy from elsewhere."""

    __tablename__ = "dataset_imports"
    __table_args__ = (UniqueConstraint("model_id", "role", "name"), one_of("role", states.PartRole))
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    model_id: Mapped[UUID] = mapped_column(ForeignKey("models.id"))
    role: Mapped[str] = mapped_column(String(16))
    name: Mapped[str] = mapped_column(String(32))
    uri: Mapped[str] = mapped_column(String(1000))


class Suppression(Base):
    """Keyed hash of someone who was erased: their rows are not let in again. Kept if the policy says so."""

    __tablename__ = "suppressions"
    model_id: Mapped[UUID] = mapped_column(ForeignKey("models.id"), primary_key=True)
    subject_hash: Mapped[bytes] = mapped_column(LargeBinary(32), primary_key=True)


class Report(Base):
    """An evaluation or a replay audit of one version. The figures are un-noised: for the model's own team."""

    __tablename__ = "reports"
    __table_args__ = (one_of("kind", states.ReportKind),)
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    kind: Mapped[str] = mapped_column(String(16))
    model_id: Mapped[UUID] = mapped_column(ForeignKey("models.id"), index=True)
    certificate_id: Mapped[UUID | None] = mapped_column(ForeignKey("certificates.id"), index=True)
    version: Mapped[int]
    job_id: Mapped[UUID] = mapped_column(ForeignKey("jobs.id"), unique=True)
    result: Mapped[dict[str, Any] | None]
    error: Mapped[str | None] = mapped_column(String(1000))
    created_at: Mapped[datetime] = mapped_column(default=now)
    completed_at: Mapped[datetime | None]

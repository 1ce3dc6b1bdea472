"""SQL queries on models, their dataset parts and uploads."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from app.db.states import (
    OPEN_BATCH,
    PART_IMPORTS,
    ImportRole,
    JobKind,
    JobState,
    ModelState,
    PartRole,
    SealReason,
)
from app.db.tables import Batch, DatasetImport, DatasetPart, Job, Model, Upload


def of_tenant(tenant_id: UUID) -> Select[Model]:
    """Select the models of a tenant."""
    return select(Model).where(Model.tenant_id == tenant_id)


def by_name(session: Session, tenant_id: UUID, name: str, *, lock: bool = False) -> Model | None:
    """Return the tenant's model with this name, or None."""
    query = of_tenant(tenant_id).where(Model.name == name)
    return session.scalar(query.with_for_update() if lock else query)


def count_live(session: Session, tenant_id: UUID) -> int:
    """Return how many models a tenant has that are not retired."""
    live = of_tenant(tenant_id).where(Model.state != ModelState.RETIRED)
    return session.scalar(select(func.count()).select_from(live.subquery())) or 0


def parts(session: Session, model_id: UUID) -> Sequence[DatasetPart]:
    """Return the parts of the current generation, the holdout parts and the staged parts."""
    return session.scalars(
        select(DatasetPart)
        .where(DatasetPart.model_id == model_id, DatasetPart.last_generation.is_(None))
        .order_by(DatasetPart.id)
    ).all()


def part_imports(session: Session, model_id: UUID) -> Sequence[DatasetImport]:
    """Return the imports of dataset parts that a worker has not done yet."""
    return session.scalars(
        select(DatasetImport)
        .where(DatasetImport.model_id == model_id, DatasetImport.role.in_(PART_IMPORTS))
        .order_by(DatasetImport.id)
    ).all()


def pending_import(
    session: Session, model_id: UUID, role: ImportRole, name: str = ""
) -> DatasetImport | None:
    """Return the pending import of a part, or of a file of the representation, or None."""
    return session.scalar(
        select(DatasetImport).where(
            DatasetImport.model_id == model_id, DatasetImport.role == role, DatasetImport.name == name
        )
    )


def part_named(session: Session, model_id: UUID, role: PartRole, name: str) -> DatasetPart | None:
    """Return the part with this role and name, or None."""
    return next((p for p in parts(session, model_id) if (p.role, p.name) == (role, name)), None)


def live_names(session: Session, model_id: UUID) -> set[str]:
    """Return the names of the training parts in use. Staged parts are not among them."""
    return {
        part.name
        for part in parts(session, model_id)
        if part.role == PartRole.TRAIN and part.first_generation is not None
    }


def has_training_data(session: Session, model_id: UUID) -> bool:
    """Return whether the model has a training part, or one to import."""
    roles = {part.role for part in parts(session, model_id)}
    return PartRole.TRAIN in roles | {entry.role for entry in part_imports(session, model_id)}


def has_holdout(session: Session, model_id: UUID) -> bool:
    """Return whether the model has a holdout part, or one to import."""
    roles = {part.role for part in parts(session, model_id)}
    return PartRole.HOLDOUT in roles | {entry.role for entry in part_imports(session, model_id)}


def has_staged(session: Session, model_id: UUID) -> bool:
    """Return whether a part is staged or to be imported."""
    return bool(part_imports(session, model_id)) or any(
        part.first_generation is None for part in parts(session, model_id)
    )


def is_appending(session: Session, model_id: UUID) -> bool:
    """Return whether an append is in progress."""
    return (
        session.scalar(
            select(Batch.id).where(
                Batch.model_id == model_id,
                Batch.sealed_because == SealReason.APPEND,
                Batch.state.in_(OPEN_BATCH),
            )
        )
        is not None
    )


def is_advising(session: Session, model_id: UUID) -> bool:
    """Return whether advice on the model is being measured, or waits to be."""
    ended = (JobState.DONE, JobState.FAILED)
    jobs = select(Job.id).where(Job.model_id == model_id, Job.kind == JobKind.ADVISE, Job.state.not_in(ended))
    return session.scalar(jobs.limit(1)) is not None


def unfinished_upload(session: Session, model_id: UUID, target: str) -> Upload | None:
    """Return the newest upload in pieces of this file, or None."""
    return session.scalar(
        select(Upload)
        .where(Upload.model_id == model_id, Upload.target == target, Upload.total.is_not(None))
        .order_by(Upload.id.desc())
        .limit(1)
    )

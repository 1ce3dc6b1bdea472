from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from app.db.states import OPEN_BATCH, PartRole
from app.db.tables import Batch, DatasetImport, DatasetPart, Model, Upload


def of_tenant(tenant_id: UUID) -> Select[Model]:
    return select(Model).where(Model.tenant_id == tenant_id)


def by_name(session: Session, tenant_id: UUID, name: str, *, lock: bool = False) -> Model | None:
    query = of_tenant(tenant_id).where(Model.name == name)
    return session.scalar(query.with_for_update() if lock else query)


def all_named(session: Session, tenant_id: UUID, names: Sequence[str]) -> Sequence[Model]:
    return session.scalars(of_tenant(tenant_id).where(Model.name.in_(names))).all()


def parts(session: Session, model_id: UUID) -> Sequence[DatasetPart]:
    """Those of the present generation, the holdout's, and those that wait to be appended."""
    return session.scalars(
        select(DatasetPart)
        .where(DatasetPart.model_id == model_id, DatasetPart.last_generation.is_(None))
        .order_by(DatasetPart.id)
    ).all()


def imports(session: Session, model_id: UUID) -> Sequence[DatasetImport]:
    return session.scalars(
        select(DatasetImport).where(DatasetImport.model_id == model_id).order_by(DatasetImport.id)
    ).all()


def pending_import(session: Session, model_id: UUID, role: PartRole, name: str) -> DatasetImport | None:
    return session.scalar(
        select(DatasetImport).where(
            DatasetImport.model_id == model_id, DatasetImport.role == role, DatasetImport.name == name
        )
    )


def part_named(session: Session, model_id: UUID, role: PartRole, name: str) -> DatasetPart | None:
    return next((p for p in parts(session, model_id) if (p.role, p.name) == (role, name)), None)


def live_names(session: Session, model_id: UUID) -> set[str]:
    return {
        part.name
        for part in parts(session, model_id)
        if part.role == PartRole.TRAIN and part.first_generation is not None
    }


def has_training_data(session: Session, model_id: UUID) -> bool:
    roles = {part.role for part in parts(session, model_id)}
    return PartRole.TRAIN in roles | {entry.role for entry in imports(session, model_id)}


def has_staged(session: Session, model_id: UUID) -> bool:
    return bool(imports(session, model_id)) or any(
        part.first_generation is None for part in parts(session, model_id)
    )


def is_appending(session: Session, model_id: UUID) -> bool:
    return (
        session.scalar(
            select(Batch.id).where(
                Batch.model_id == model_id,
                Batch.sealed_because == "append",
                Batch.state.in_(OPEN_BATCH),
            )
        )
        is not None
    )


def unfinished(session: Session, model_id: UUID, target: str) -> Upload | None:
    """The newest upload of this file that comes in pieces."""
    return session.scalar(
        select(Upload)
        .where(Upload.model_id == model_id, Upload.target == target, Upload.total.is_not(None))
        .order_by(Upload.id.desc())
        .limit(1)
    )

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from app.db.tables import DatasetPart, Model


def of_tenant(tenant_id: UUID) -> Select[Model]:
    return select(Model).where(Model.tenant_id == tenant_id)


def by_name(session: Session, tenant_id: UUID, name: str, *, lock: bool = False) -> Model | None:
    query = of_tenant(tenant_id).where(Model.name == name)
    return session.scalar(query.with_for_update() if lock else query)


def all_named(session: Session, tenant_id: UUID, names: Sequence[str]) -> Sequence[Model]:
    return session.scalars(of_tenant(tenant_id).where(Model.name.in_(names))).all()


def parts(session: Session, model_id: UUID) -> Sequence[DatasetPart]:
    return session.scalars(select(DatasetPart).where(DatasetPart.model_id == model_id)).all()


def has_parts(session: Session, model_id: UUID) -> bool:
    return session.scalar(select(DatasetPart.id).where(DatasetPart.model_id == model_id).limit(1)) is not None

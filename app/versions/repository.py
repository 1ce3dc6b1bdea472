from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.states import VersionState
from app.db.tables import Certificate, Version


def of_model(session: Session, model_id: UUID) -> Sequence[Version]:
    return session.scalars(
        select(Version).where(Version.model_id == model_id).order_by(Version.number.desc()).limit(1000)
    ).all()


def numbered(session: Session, model_id: UUID, number: int) -> Version | None:
    return session.scalar(select(Version).where(Version.model_id == model_id, Version.number == number))


def current(session: Session, model_id: UUID) -> Version | None:
    return session.scalar(
        select(Version).where(Version.model_id == model_id, Version.state == VersionState.CURRENT)
    )


def model_signature(session: Session, version: Version) -> bytes | None:
    if version.certificate_id is None:
        return None
    return session.scalar(select(Certificate.model_signature).where(Certificate.id == version.certificate_id))

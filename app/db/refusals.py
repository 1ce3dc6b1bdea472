"""Records of refused attempts: the parameters that were asked for, and the rows they were tried on.

A guarantee holds for ε, δ, Δ* and λ that were chosen without looking at the rows. A refusal reveals something
about the rows. So every attempt that computed on someone's rows and was refused, held or given up is recorded
in the transaction that ends it. A later release on the same rows under another ε, δ, Δ* or λ says so on its
certificate.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import ValidationError
from sqlalchemy import Double, ForeignKey, String, func, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from app.core.clock import new_id, now
from app.db import history
from app.db.manifest import Manifest
from app.db.session import keyed_hash
from app.db.states import PartRole, RefusalReason
from app.db.tables import Batch, DatasetPart, Model, Version
from app.db.types import Base

_PURPOSE = "refused attempt"

Choices = tuple[float, float, float, float]


class RefusedAttempt(Base):
    """One refused attempt. `parts` holds keyed hashes of the digests of the training parts it used."""

    __tablename__ = "refused_attempts"
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"), index=True)
    model_id: Mapped[UUID] = mapped_column(ForeignKey("models.id"))
    at: Mapped[datetime] = mapped_column(default=now)
    reason: Mapped[str] = mapped_column(String(24))
    generation: Mapped[int]
    """The generation of the model's dataset, which grows with every published version."""
    epsilon: Mapped[float] = mapped_column(Double())
    delta: Mapped[float] = mapped_column(Double())
    target_distance: Mapped[float] = mapped_column(Double())
    lam: Mapped[float] = mapped_column("lambda", Double())
    parts: Mapped[list[Any]]

    @property
    def choices(self) -> Choices:
        """Return ε, δ, Δ* and λ of the attempt."""
        return self.epsilon, self.delta, self.target_distance, self.lam


def record_refusal(session: Session, model: Model, manifest: Manifest, reason: RefusalReason) -> None:
    """Record that an attempt on the model's current rows was refused, in the transaction that refuses it."""
    epsilon, delta, target_distance, lam = _choices(manifest)
    parts, _ = _parts_and_publications(session, [model.id])
    session.add(
        RefusedAttempt(
            tenant_id=model.tenant_id,
            model_id=model.id,
            reason=RefusalReason(reason),
            generation=model.generation,
            epsilon=epsilon,
            delta=delta,
            target_distance=target_distance,
            lam=lam,
            parts=sorted(parts[model.id]),
        )
    )
    session.flush()


def record_refused_batch(session: Session, batch: Batch, reason: RefusalReason) -> None:
    """Record a batch that is held or given up, if an attempt has computed on its rows since the last retry.

    Before that, ending the batch reveals nothing about the rows, for example if the lifetime budget has no
    room for another release.
    """
    if not batch.rows_examined and not history.rows_examined(session, batch.id):
        return
    model = session.get_one(Model, batch.model_id)
    try:
        manifest = Manifest.model_validate(model.manifest | {"policy": batch.policy})
    except ValidationError:  # nothing can be released under this manifest either
        return
    record_refusal(session, model, manifest, reason)


def changed_after_refusal(session: Session, model: Model, manifest: Manifest) -> bool:
    """Return whether an earlier attempt on the same rows was refused under another ε, δ, Δ* or λ.

    Rows are the same if a training part of this model has the digest of one that was tried, in this model or
    in another one of the tenant. Refusals before the model's last published version no longer count, because
    the next batch erases other people.
    """
    return model.id in models_changed_after_refusal(session, [(model, manifest)])


def models_changed_after_refusal(session: Session, models: Sequence[tuple[Model, Manifest]]) -> set[UUID]:
    """Return the ids of the models for which `changed_after_refusal` holds, in at most two queries."""
    tenants = {model.tenant_id for model, _ in models}
    attempts = session.scalars(select(RefusedAttempt).where(RefusedAttempt.tenant_id.in_(tenants))).all()
    pairs = [
        (model, attempt)
        for model, manifest in models
        for attempt in attempts
        if attempt.tenant_id == model.tenant_id and attempt.choices != _choices(manifest)
    ]
    if not pairs:
        return set()
    ids = {model.id for model, _ in pairs}
    parts, published_at = _parts_and_publications(session, list(ids))
    return {
        model.id
        for model, attempt in pairs
        if not parts[model.id].isdisjoint(attempt.parts)
        and not _published_since(model, attempt, published_at.get(model.id))
    }


def _choices(manifest: Manifest) -> Choices:
    policy = manifest.policy
    return policy.epsilon, policy.delta, policy.target_distance, manifest.lam


def _published_since(model: Model, attempt: RefusedAttempt, published_at: datetime | None) -> bool:
    if attempt.model_id == model.id:
        return attempt.generation < model.generation
    return published_at is not None and published_at > attempt.at


def _parts_and_publications(
    session: Session, model_ids: Sequence[UUID]
) -> tuple[Mapping[UUID, set[str]], Mapping[UUID, datetime | None]]:
    """Return keyed hashes of each model's training parts, and when it last published a version.

    Plain digests would confirm a guess of the rows. Version 0 is the model as registered. Models without
    training parts are left out.
    """
    published_at = (
        select(func.max(Version.created_at))
        .where(Version.model_id == DatasetPart.model_id, Version.number > 0)
        .correlate(DatasetPart)
        .scalar_subquery()
    )
    rows = session.execute(
        select(DatasetPart.model_id, DatasetPart.sha256, published_at).where(
            DatasetPart.model_id.in_(model_ids),
            DatasetPart.role == PartRole.TRAIN,
            DatasetPart.last_generation.is_(None),
        )
    ).all()
    hashes: dict[UUID, set[str]] = defaultdict(set)
    publications: dict[UUID, datetime | None] = {}
    for model_id, digest, moment in rows:
        hashes[model_id].add(keyed_hash(session, digest, purpose=_PURPOSE).hex())
        publications[model_id] = moment
    return hashes, publications

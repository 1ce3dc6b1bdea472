"""Attempts that were refused: what was asked for, on which rows, so that a later change is not forgotten.

A guarantee holds for ε, δ, Δ* and λ that were chosen without looking at the rows. A refusal is a look at
them. So every attempt that solved on someone's rows and was refused, held or given up is recorded here, in
the same transaction. A release on the same rows under another ε, δ, Δ* or λ says so on its certificate.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import ValidationError
from sqlalchemy import Double, ForeignKey, String, exists, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from app.clock import new_id, now
from app.db.manifest import Manifest
from app.db.states import PartRole
from app.db.tables import Batch, BatchEvent, DatasetPart, Model, Version
from app.db.types import Base

KEYED_HASH = "keyed_hash"  # of `Session.info`: hashes under the deployment key
_PURPOSE = "refused attempt"
_LOOKS = frozenset({"solve", "certify", "release"})  # steps that tell something about the rows

Choices = tuple[float, float, float, float]


class RefusedAttempt(Base):
    """One refused attempt. `parts` are keyed hashes of the digests of the training parts it looked at."""

    __tablename__ = "refused_attempts"
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"), index=True)
    model_id: Mapped[UUID] = mapped_column(ForeignKey("models.id"))
    at: Mapped[datetime] = mapped_column(default=now)
    reason: Mapped[str] = mapped_column(String(24))
    generation: Mapped[int]
    """Of the model's dataset: it grows with every publication."""
    epsilon: Mapped[float] = mapped_column(Double())
    delta: Mapped[float] = mapped_column(Double())
    target_distance: Mapped[float] = mapped_column(Double())
    lam: Mapped[float] = mapped_column("lambda", Double())
    parts: Mapped[list[Any]]

    @property
    def choices(self) -> Choices:
        """Return ε, δ, Δ* and λ of the attempt."""
        return self.epsilon, self.delta, self.target_distance, self.lam


def record_refusal(session: Session, model: Model, manifest: Manifest, reason: str) -> None:
    """Record that an attempt on the model's present rows was refused, in the transaction that refuses it."""
    epsilon, delta, target_distance, lam = _choices(manifest)
    session.add(
        RefusedAttempt(
            tenant_id=model.tenant_id,
            model_id=model.id,
            reason=reason,
            generation=model.generation,
            epsilon=epsilon,
            delta=delta,
            target_distance=target_distance,
            lam=lam,
            parts=sorted(_part_hashes(session, model)),
        )
    )
    session.flush()


def record_refused_batch(session: Session, batch: Batch, reason: str) -> None:
    """Record a batch that is held or given up, if it has solved anything since it was last started.

    Before the first solve nothing is known of the rows: a batch that waits, or for which the lifetime budget
    has no room, tells nobody what to change.
    """
    if not _has_looked(session, batch):
        return
    model = session.get_one(Model, batch.model_id)
    try:
        manifest = Manifest.model_validate(model.manifest | {"policy": batch.policy})
    except ValidationError:  # nothing can be released under it either
        return
    record_refusal(session, model, manifest, reason)


def changed_after_refusal(session: Session, model: Model, manifest: Manifest) -> bool:
    """Return whether an earlier attempt on the same rows was refused under another ε, δ, Δ* or λ.

    The same rows: a training part with the same digest, of this model or of another one of the tenant. What
    was refused before the model's last publication no longer counts: the next batch erases other people.
    """
    attempts = session.scalars(
        select(RefusedAttempt).where(RefusedAttempt.tenant_id == model.tenant_id)
    ).all()
    other = [attempt for attempt in attempts if attempt.choices != _choices(manifest)]
    if not other:
        return False
    mine = _part_hashes(session, model)
    return any(
        not mine.isdisjoint(attempt.parts) and not _published_since(session, model, attempt)
        for attempt in other
    )


def _choices(manifest: Manifest) -> Choices:
    policy = manifest.policy
    return policy.epsilon, policy.delta, policy.target_distance, manifest.lam


def _published_since(session: Session, model: Model, attempt: RefusedAttempt) -> bool:
    if attempt.model_id == model.id:
        return attempt.generation < model.generation
    later = exists().where(Version.model_id == model.id, Version.number > 0, Version.created_at > attempt.at)
    return bool(session.scalar(select(later)))


def _part_hashes(session: Session, model: Model) -> set[str]:
    """Return keyed hashes of the training parts' digests: a digest alone confirms a guess of the rows."""
    digests = session.scalars(
        select(DatasetPart.sha256).where(
            DatasetPart.model_id == model.id,
            DatasetPart.role == PartRole.TRAIN,
            DatasetPart.last_generation.is_(None),
        )
    ).all()
    if not digests:
        return set()
    keyed_hash: Callable[..., bytes] = session.info[KEYED_HASH]
    return {keyed_hash(digest, purpose=_PURPOSE).hex() for digest in digests}


def _has_looked(session: Session, batch: Batch) -> bool:
    looked = False
    for event in session.scalars(
        select(BatchEvent)
        .where(BatchEvent.batch_id == batch.id, BatchEvent.kind.in_(("step", "retry")))
        .order_by(BatchEvent.id)
    ):
        looked = event.kind == "step" and (looked or event.data.get("step") in _LOOKS)
    return looked

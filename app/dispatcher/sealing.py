"""Sealing: which models have requests that should become a batch now, and why."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from pydantic import ValidationError
from sqlalchemy import Select, exists, select
from sqlalchemy.orm import Session

from app.core import logging
from app.core.storage import StorageError
from app.core.vault import KeyProblem
from app.db import transitions
from app.db.manifest import Manifest
from app.db.states import OPEN_BATCH, BatchState, ModelState, SealReason, TaskState
from app.db.tables import Batch, Model, Task
from app.dispatcher import spans
from app.services import Services
from lethe.policy import Policy

log = logging.get_logger("dispatcher")
_WAITING_RETRY = (Batch.state == BatchState.FAILED, Batch.retry_requested)
DEADLINE_MARGIN = timedelta(days=7)  # a batch is sealed this long before its earliest deadline


SEAL_TRIES = 3


class _MixedKeys(Exception):
    """The waiting requests are under several data keys, so equal people cannot be recognised."""


@dataclass(frozen=True)
class WaitingRequests:
    """The requests of a model that wait for a batch."""

    most_people: int
    """An upper bound: someone who is named in two requests is counted twice."""
    oldest: datetime
    deadline: datetime
    """The earliest of all."""


def seal_due_batches(services: Services, now: datetime) -> None:
    """Seal a batch for every model that is due, in one transaction per model.

    If no requests are waiting, this is one query.
    """
    with services.database.reading() as session:
        due = [model.id for model in session.scalars(_waiting_models()) if _reason(session, model, now)]
    for model_id in due:
        for _ in range(SEAL_TRIES):
            try:
                with services.database.writing() as session:
                    _seal(services, session, model_id, now)
                break
            except _MixedKeys:
                if not _unify_keys(services, model_id):
                    break


def _unify_keys(services: Services, model_id: UUID) -> bool:
    """Put the waiting requests of a model under one data key. Return False if that has to wait."""
    try:
        services.key_renewal.unify_waiting(model_id)
    except KeyProblem as problem:
        log.error("waiting requests cannot be read", model=str(model_id), problem=str(problem))
    except (OSError, StorageError) as problem:
        log.warning("could not read data keys", model=str(model_id), problem=type(problem).__name__)
    else:
        return True
    return False


def start_waiting_retries(services: Services, now: datetime) -> None:
    """Start the batches again whose retry had to wait for another batch of their model, one per model."""
    with services.database.reading() as session:
        models = set(session.scalars(select(Batch.model_id).where(*_WAITING_RETRY)))
    for model_id in models:
        with services.database.writing() as session:
            model = session.get_one(Model, model_id, with_for_update={"key_share": True})
            batch = session.scalar(
                select(Batch).where(Batch.model_id == model_id, *_WAITING_RETRY).order_by(Batch.id).limit(1)
            )
            ready = model.state == ModelState.READY
            if batch is None or not ready or transitions.has_open_batch(session, model_id):
                continue
            transitions.start_again(session, batch, dict(model.manifest["policy"]), now)
            log.info("started a batch again", batch=str(batch.id))


def _seal(services: Services, session: Session, model_id: UUID, now: datetime) -> None:
    # FOR NO KEY UPDATE: new requests, which refer to the model, do not have to wait for this lock.
    model = session.scalar(_waiting_models(model_id).with_for_update(key_share=True))
    if model is not None and transitions.has_mixed_data_keys(session, transitions.waits(model_id)):
        raise _MixedKeys
    reason = _reason(session, model, now) if model else None
    if model is None or reason is None:  # another dispatcher was faster
        return
    batch = spans.seal(services.tracer, session, model, because=reason, now=now)
    if batch is not None and transitions.has_mixed_data_keys(session, [Task.batch_id == batch.id]):
        raise _MixedKeys
    if batch is not None:
        log.info("sealed a batch", batch=str(batch.id), because=reason, subjects=batch.subjects)


def _waiting_models(model_id: UUID | None = None) -> Select[Model]:
    """Select the ready models that have waiting requests and no open batch."""
    waiting = exists().where(
        Task.model_id == Model.id, Task.state == TaskState.RECEIVED, Task.batch_id.is_(None)
    )
    busy = exists().where(Batch.model_id == Model.id, Batch.state.in_(OPEN_BATCH))
    models = select(Model).where(Model.state == ModelState.READY, waiting, ~busy)
    return models if model_id is None else models.where(Model.id == model_id)


def _reason(session: Session, model: Model, now: datetime) -> SealReason | None:
    most_people, oldest, deadline = transitions.waiting_requests(session, model.id)
    if not most_people or oldest is None or deadline is None:
        return None
    try:
        policy = Manifest.model_validate(model.manifest).policy
    except ValidationError:  # one unreadable manifest must not delay the other models
        log.error("cannot read the manifest", model=str(model.id))
        return None
    return reason_to_seal(
        policy,
        WaitingRequests(most_people, oldest, deadline),
        flush_requested=model.flush_requested,
        now=now,
        count_people=lambda: transitions.waiting_subjects(session, model.id),
    )


def reason_to_seal(
    policy: Policy,
    waiting: WaitingRequests,
    *,
    flush_requested: bool,
    now: datetime,
    count_people: Callable[[], int],
) -> SealReason | None:
    """Return why the waiting requests should be sealed now, or None if they should wait.

    A batch is sealed when it is full, or when its oldest request is old enough and it has the policy's
    smallest number of people. The owner's request to flush and a deadline within `DEADLINE_MARGIN` seal it
    however few people it has. `count_people` reads one row per person, so it is called only if the exact
    number can change the answer.
    """
    if flush_requested:
        return SealReason.FLUSH
    is_old = now - waiting.oldest >= timedelta(seconds=policy.batch_age_seconds)
    enough = policy.smallest_batch if is_old else policy.batch_subjects
    people = count_people() if waiting.most_people >= enough else 0
    if people >= policy.batch_subjects:
        return SealReason.COUNT
    if is_old and people >= policy.smallest_batch:
        return SealReason.AGE
    return SealReason.DEADLINE if waiting.deadline - now <= DEADLINE_MARGIN else None

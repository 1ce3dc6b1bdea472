"""Deletes evidence and reports when the days that a model's policy keeps them are over, in small steps."""

from collections.abc import Callable
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import select

from app.core import logging
from app.db import retention
from app.db.session import Database
from app.db.tables import Model

log = logging.get_logger("dispatcher")
PAUSE = timedelta(hours=1)
MODELS = 50
"""Models that one step looks at."""
DELETIONS = 100
"""The most certificates and the most reports of a model that one step deletes."""


class RetentionSweep:
    """Goes through all models, a few at each step, and starts again after a pause."""

    def __init__(self, database: Database, steady: Callable[[], float]) -> None:
        """Prepare to sweep. `steady` returns monotonic seconds."""
        self._database, self._steady = database, steady
        self._next_pass = steady()
        self._after: UUID | None = None  # the last model of the previous step; None before a pass
        self._deleted = False

    def step(self, moment: datetime) -> None:
        """Look at the next models, if a pass is due or has begun. Delete what expired before `moment`."""
        if self._after is None and self._steady() < self._next_pass:
            return
        models = self._next_models()
        for model_id in models:
            if self._delete_expired(model_id, moment) >= DELETIONS:
                return  # there may be more of this model; the next step goes on with it
            self._after = model_id
        if len(models) < MODELS:
            self._end_pass()

    def _next_models(self) -> list[UUID]:
        models = select(Model.id).order_by(Model.id).limit(MODELS)
        if self._after is not None:
            models = models.where(Model.id > self._after)
        with self._database.reading() as session:
            return [*session.scalars(models)]

    def _delete_expired(self, model_id: UUID, moment: datetime) -> int:
        """Delete some of a model's evidence and reports, and return how many."""
        with self._database.reading() as session:
            model = session.get_one(Model, model_id)
            expired = (retention.expired_evidence(model, moment), retention.expired_reports(model, moment))
            if all(session.scalar(some.limit(1)) is None for some in expired):
                return 0
        with self._database.writing() as session:
            deleted = retention.delete_expired(session, model, moment, limit=DELETIONS)
        self._deleted = True
        log.info("deleted evidence and reports that the policy no longer keeps", deleted=deleted)
        return deleted

    def _end_pass(self) -> None:
        if self._deleted:
            self._database.forget_deleted_bytes()
        self._after, self._deleted = None, False
        self._next_pass = self._steady() + PAUSE.total_seconds()

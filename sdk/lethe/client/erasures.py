"""The endpoints for erasures and for the batches that carry them out."""

import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import uuid4

from lethe.client.endpoints import EndpointGroup, Id, path
from lethe.client.errors import BatchHeld, Forbidden
from lethe.client.event_stream import follow_events
from lethe.client.operations import D, Effect, Item, ItemStream, Procedure, Request, listing, operation
from lethe.client.responses import Batch, Erasure, ErasureProgress, Event, Receipt, ReceiptAcknowledgement

NDJSON, CSV = "application/x-ndjson", "text/csv"
MOST_SUBJECTS = 10_000  # of one `create`; use `bulk` for more


class Erasures(EndpointGroup[D]):
    """Request erasures, follow them, and fetch receipts."""

    @operation
    def create(
        self,
        subjects: Sequence[str],
        *,
        models: Sequence[str] | None = None,
        reference: str | None = None,
        reason: str | None = None,
        jurisdiction: str | None = None,
        received_at: datetime | None = None,
        idempotency_key: str | None = None,
    ) -> Procedure[Erasure]:
        """Request that people be erased from `models`, or from every model.

        The client sends an idempotency key, so a retry never creates a second erasure. Pass your own key to
        get the same guarantee when another process repeats the request.
        """
        body = _details(models, reference, reason, jurisdiction, received_at) | {"subjects": list(subjects)}
        headers = _idempotency(idempotency_key)
        return self._request(Request("POST", "/v1/erasures", json=body, headers=headers), Erasure)

    @operation
    def bulk(
        self,
        body: bytes,
        *,
        media_type: str = NDJSON,
        models: Sequence[str] | None = None,
        reference: str | None = None,
        reason: str | None = None,
        jurisdiction: str | None = None,
        received_at: datetime | None = None,
        idempotency_key: str | None = None,
    ) -> Procedure[Erasure]:
        """Request the erasure of up to a million people: NDJSON, or CSV with a column subject_id."""
        details = _details(models, reference, reason, jurisdiction, received_at)
        headers = _idempotency(idempotency_key) | {"Content-Type": media_type}
        request = Request("POST", "/v1/erasures/bulk", params=details, content=body, headers=headers)
        return self._request(request, Erasure)

    @operation
    def get(self, erasure_id: Id) -> Procedure[Erasure]:
        """Return one erasure."""
        return self._get(path("erasures", erasure_id), Erasure)

    @listing
    def list(
        self,
        *,
        state: str | None = None,
        model: str | None = None,
        reference: str | None = None,
        overdue: bool = False,
        limit: int | None = None,
    ) -> ItemStream[Erasure]:
        """Iterate over the erasures that match, newest first."""
        params = {"state": state, "model": model, "reference": reference, "overdue": overdue}
        return self._get_pages("/v1/erasures", Erasure, limit, **params)

    @operation
    def withdraw(
        self, erasure_id: Id, *, model: str | None = None, reason: str | None = None
    ) -> Procedure[Erasure]:
        """Withdraw the tasks that are not in a batch yet. Their identifiers are deleted immediately."""
        params = {"model": model, "reason": reason}
        return self._request(Request("DELETE", path("erasures", erasure_id), params), Erasure)

    @operation
    def extend(self, erasure_id: Id, reason: str) -> Procedure[Erasure]:
        """Extend the deadline by two months. This is possible once."""
        return self._post(path("erasures", erasure_id, "extend"), Erasure, {"reason": reason})

    @operation
    def wait(
        self,
        erasure_id: Id,
        *,
        timeout: float | None = None,
        on_change: Callable[[ErasureProgress], object] | None = None,
    ) -> Procedure[Erasure]:
        """Wait until every task has ended, and return the erasure, whether it completed or failed.

        Raises `BatchHeld` when a batch waits for a decision.
        """
        progress = yield from self._follow(erasure_id, timeout, on_change)
        return progress.erasure

    @listing
    def follow(
        self, erasure_id: Id, *, timeout: float | None = None
    ) -> Generator[Effect | Item[ErasureProgress], Any, ErasureProgress]:
        """Iterate over the changes of an erasure and its batches until every task has ended.

        Raises `BatchHeld` when a batch waits for a decision.
        """
        return self._follow(erasure_id, timeout, None)

    @listing
    def receipts(
        self,
        erasure_id: Id,
        *,
        model: str | None = None,
        ordinal: int | None = None,
        limit: int | None = None,
    ) -> ItemStream[Receipt]:
        """Iterate over the receipts for the data subjects, in the order of the request."""
        url = path("erasures", erasure_id, "receipts")
        return self._get_pages(url, Receipt, limit, model=model, ordinal=ordinal)

    @operation
    def acknowledge_receipts(self, erasure_id: Id) -> Procedure[ReceiptAcknowledgement]:
        """Confirm that you have the receipts. Their salts are destroyed, and they cannot be fetched again."""
        return self._post(path("erasures", erasure_id, "receipts", "acknowledge"), ReceiptAcknowledgement)

    def _follow(
        self, erasure_id: Id, timeout: float | None, on_change: Callable[[ErasureProgress], object] | None
    ) -> Generator[Effect | Item[ErasureProgress], Any, ErasureProgress]:
        def stopped(progress: ErasureProgress) -> bool:
            return progress.erasure.ended or any(batch.state == "held" for batch in progress.batches)

        progress = yield from self._watch(
            path("erasures", erasure_id),
            ErasureProgress,
            stopped,
            timeout=timeout,
            on_change=on_change,
            fetch=lambda: self._get_progress(erasure_id),
        )
        if not progress.erasure.ended:
            held = next(batch for batch in progress.batches if batch.state == "held")
            raise BatchHeld(held.id, held.held_reason)
        return progress

    def _get_progress(self, erasure_id: Id) -> Procedure[ErasureProgress]:
        erasure = yield from self._get(path("erasures", erasure_id), Erasure)
        batches = []
        for batch_id in {task.batch_id for task in erasure.tasks if task.batch_id and not task.ended}:
            try:
                batches.append((yield from self._get(path("batches", batch_id), Batch)))
            except Forbidden:  # a key that may only read erasures can still follow their states
                break
        return ErasureProgress(erasure=erasure, batches=tuple(batches))


class Batches(EndpointGroup[D]):
    """Follow batches, and decide about those that are held."""

    @operation
    def get(self, batch_id: Id) -> Procedure[Batch]:
        """Return one batch."""
        return self._get(path("batches", batch_id), Batch)

    @listing
    def list(self, *, limit: int | None = None) -> ItemStream[Batch]:
        """Iterate over the batches, newest first."""
        return self._get_pages("/v1/batches", Batch, limit)

    @listing
    def events(self, batch_id: Id, *, after: str = "") -> ItemStream[Event]:
        """Iterate over the events of a batch as they happen, until it ends.

        A connection that breaks is resumed after the last event.
        """
        url = path("batches", batch_id)

        def ended() -> Procedure[bool]:
            return (yield from self._get(url, Batch)).ended

        return follow_events(f"{url}/events", ended=ended, retry=self._retry, after=after)

    @operation
    def wait(
        self,
        batch_id: Id,
        *,
        timeout: float | None = None,
        on_change: Callable[[Batch], object] | None = None,
    ) -> Procedure[Batch]:
        """Wait until the batch has completed, failed or been held, and return it."""
        return self._watch(
            path("batches", batch_id),
            Batch,
            lambda batch: batch.ended or batch.state == "held",
            timeout=timeout,
            on_change=on_change,
        )

    @operation
    def retry(self, batch_id: Id, *, reason: str | None = None) -> Procedure[Batch]:
        """Retry a batch that is on hold or failed, under the model's current policy."""
        return self._decide(batch_id, "retry", reason)

    @operation
    def approve(self, batch_id: Id, *, reason: str | None = None) -> Procedure[Batch]:
        """Publish the exact draw that the quality gate held back."""
        return self._decide(batch_id, "approve", reason)

    @operation
    def discard(self, batch_id: Id, *, reason: str | None = None) -> Procedure[Batch]:
        """Destroy the draw that was held back. It still counts as a release."""
        return self._decide(batch_id, "discard", reason)

    @operation
    def cancel(self, batch_id: Id, *, reason: str | None = None) -> Procedure[Batch]:
        """Stop a batch whose noise has not been drawn yet. It is on hold until someone retries it."""
        return self._decide(batch_id, "cancel", reason)

    def _decide(self, batch_id: Id, decision: str, reason: str | None) -> Procedure[Batch]:
        body = None if reason is None else {"reason": reason}
        return self._post(path("batches", batch_id, decision), Batch, body)


def as_ndjson(subjects: Iterable[str]) -> bytes:
    """Encode identifiers as a body for `Erasures.bulk`."""
    return "".join(json.dumps({"subject_id": subject}) + "\n" for subject in subjects).encode()


def _idempotency(key: str | None) -> dict[str, str]:
    return {"Idempotency-Key": key or str(uuid4())}


def _details(
    models: Sequence[str] | None,
    reference: str | None,
    reason: str | None,
    jurisdiction: str | None,
    received_at: datetime | None,
) -> dict[str, Any]:
    details: Mapping[str, Any] = {
        "models": None if models is None else list(models),
        "reference": reference,
        "reason": reason,
        "jurisdiction": jurisdiction,
        "received_at": None if received_at is None else received_at.isoformat(),
    }
    return {name: value for name, value in details.items() if value is not None}

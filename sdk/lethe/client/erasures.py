"""Erasures and the batches they run in."""

import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import uuid4

from client.answers import Acknowledged, Batch, Erasure, Event, Progress, Receipt
from client.errors import BatchHeld, Forbidden
from client.events import follow
from client.flow import D, Effect, Flow, Item, Items, Request, listing, operation
from client.resource import Id, Noun, at, until

NDJSON, CSV = "application/x-ndjson", "text/csv"
AT_ONCE = 10_000  # more go in bulk


class Erasures(Noun[D]):
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
    ) -> Flow[Erasure]:
        """Ask that people be erased from `models`, or from all. Sent again, it is still one request.

        A key of your own makes that hold across processes too.
        """
        body = _details(models, reference, reason, jurisdiction, received_at) | {"subjects": list(subjects)}
        return self._take(Request("POST", "/v1/erasures", json=body, headers=_key(idempotency_key)), Erasure)

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
    ) -> Flow[Erasure]:
        """One erasure of up to a million subjects: NDJSON, or CSV with a column subject_id."""
        details = _details(models, reference, reason, jurisdiction, received_at)
        headers = _key(idempotency_key) | {"Content-Type": media_type}
        request = Request("POST", "/v1/erasures/bulk", params=details, content=body, headers=headers)
        return self._take(request, Erasure)

    @operation
    def get(self, erasure_id: Id) -> Flow[Erasure]:
        return self._get(at("erasures", erasure_id), Erasure)

    @listing
    def list(
        self,
        *,
        state: str | None = None,
        model: str | None = None,
        reference: str | None = None,
        overdue: bool = False,
        most: int | None = None,
    ) -> Items[Erasure]:
        """Newest first."""
        params = {"state": state, "model": model, "reference": reference, "overdue": overdue}
        return self._pages("/v1/erasures", Erasure, most, **params)

    @operation
    def withdraw(self, erasure_id: Id, *, model: str | None = None) -> Flow[Erasure]:
        """Take back what is not sealed yet; its identifiers are forgotten at once."""
        return self._take(Request("DELETE", at("erasures", erasure_id), {"model": model}), Erasure)

    @operation
    def extend(self, erasure_id: Id, reason: str) -> Flow[Erasure]:
        """Extend the deadline by two months, once."""
        return self._post(at("erasures", erasure_id, "extend"), Erasure, {"reason": reason})

    @operation
    def wait(
        self,
        erasure_id: Id,
        *,
        timeout: float | None = None,
        tell: Callable[[Progress], object] | None = None,
    ) -> Flow[Erasure]:
        """The erasure once every task has ended, well or not; BatchHeld when one waits for a decision."""
        found = yield from self._follow(erasure_id, timeout, tell)
        return found.erasure

    @listing
    def follow(
        self, erasure_id: Id, *, timeout: float | None = None
    ) -> Generator[Effect | Item[Progress], Any, Progress]:
        """Every change until the end."""
        return self._follow(erasure_id, timeout, None)

    @listing
    def receipts(
        self, erasure_id: Id, *, model: str | None = None, ordinal: int | None = None, most: int | None = None
    ) -> Items[Receipt]:
        """What to hand to each subject, in the order of the request."""
        where = at("erasures", erasure_id, "receipts")
        return self._pages(where, Receipt, most, model=model, ordinal=ordinal)

    @operation
    def acknowledge_receipts(self, erasure_id: Id) -> Flow[Acknowledged]:
        """Say that they are handed out: their salts are destroyed, and they cannot be had again."""
        return self._post(at("erasures", erasure_id, "receipts", "acknowledge"), Acknowledged)

    def _follow(
        self, erasure_id: Id, timeout: float | None, tell: Callable[[Progress], object] | None
    ) -> Generator[Effect | Item[Progress], Any, Progress]:
        def stands(found: Progress) -> bool:
            return found.erasure.ended or any(batch.state == "held" for batch in found.batches)

        found = yield from until(lambda: self._look(erasure_id), stands, timeout=timeout, tell=tell)
        if not found.erasure.ended:
            held = next(batch for batch in found.batches if batch.state == "held")
            raise BatchHeld(held.id, held.held_reason)
        return found

    def _look(self, erasure_id: Id) -> Flow[Progress]:
        erasure = yield from self._get(at("erasures", erasure_id), Erasure)
        batches = []
        for batch_id in {task.batch_id for task in erasure.tasks if task.batch_id and not task.ended}:
            try:
                batches.append((yield from self._get(at("batches", batch_id), Batch)))
            except Forbidden:  # a key for erasures alone follows their states
                break
        return Progress(erasure=erasure, batches=tuple(batches))


class Batches(Noun[D]):
    @operation
    def get(self, batch_id: Id) -> Flow[Batch]:
        return self._get(at("batches", batch_id), Batch)

    @listing
    def list(self, *, most: int | None = None) -> Items[Batch]:
        """Newest first."""
        return self._pages("/v1/batches", Batch, most)

    @listing
    def events(self, batch_id: Id, *, after: str = "") -> Items[Event]:
        """What happens to the batch, as it happens, until it ends; a broken connection is taken up again."""
        where = at("batches", batch_id)

        def ended() -> Flow[bool]:
            return (yield from self._get(where, Batch)).ended

        return follow(f"{where}/events", ended=ended, retry=self._retry, after=after)

    @operation
    def wait(
        self, batch_id: Id, *, timeout: float | None = None, tell: Callable[[Batch], object] | None = None
    ) -> Flow[Batch]:
        """The batch once it has ended or is held."""
        return until(
            lambda: self._get(at("batches", batch_id), Batch),
            lambda batch: batch.ended or batch.state == "held",
            timeout=timeout,
            tell=tell,
        )

    @operation
    def retry(self, batch_id: Id) -> Flow[Batch]:
        """Try a held or failed batch again, under the model's present policy."""
        return self._decide(batch_id, "retry")

    @operation
    def approve(self, batch_id: Id) -> Flow[Batch]:
        """Publish exactly the draw that is held."""
        return self._decide(batch_id, "approve")

    @operation
    def discard(self, batch_id: Id) -> Flow[Batch]:
        """Destroy the draw that is held; it counts as a release."""
        return self._decide(batch_id, "discard")

    @operation
    def cancel(self, batch_id: Id) -> Flow[Batch]:
        """Stop a batch whose noise is not drawn yet; it is held until it is retried."""
        return self._decide(batch_id, "cancel")

    def _decide(self, batch_id: Id, what: str) -> Flow[Batch]:
        return self._post(at("batches", batch_id, what), Batch)


def as_ndjson(subjects: Iterable[str]) -> bytes:
    """A body for `bulk`."""
    return "".join(json.dumps({"subject_id": subject}) + "\n" for subject in subjects).encode()


def _key(given: str | None) -> dict[str, str]:
    return {"Idempotency-Key": given or str(uuid4())}


def _details(
    models: Sequence[str] | None,
    reference: str | None,
    reason: str | None,
    jurisdiction: str | None,
    received_at: datetime | None,
) -> dict[str, Any]:
    given: Mapping[str, Any] = {
        "models": None if models is None else list(models),
        "reference": reference,
        "reason": reason,
        "jurisdiction": jurisdiction,
        "received_at": None if received_at is None else received_at.isoformat(),
    }
    return {name: value for name, value in given.items() if value is not None}

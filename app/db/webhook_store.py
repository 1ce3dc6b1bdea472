from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import ColumnElement, Row, Select, and_, delete, func, or_, select, update
from sqlalchemy.orm import Session

from app.db.webhooks import DeliveryState, WebhookDelivery, WebhookEndpoint, WebhookEvent


def of_tenant(tenant_id: UUID) -> Select[WebhookEndpoint]:
    return select(WebhookEndpoint).where(WebhookEndpoint.tenant_id == tenant_id)


def by_id(session: Session, tenant_id: UUID, endpoint_id: UUID, *, lock: bool) -> WebhookEndpoint | None:
    query = of_tenant(tenant_id).where(WebhookEndpoint.id == endpoint_id)
    return session.scalar(query.with_for_update() if lock else query)


def count(session: Session, tenant_id: UUID) -> int:
    counted = select(func.count()).select_from(WebhookEndpoint).where(WebhookEndpoint.tenant_id == tenant_id)
    return session.scalar(counted) or 0


def delete_endpoint(session: Session, endpoint_id: UUID) -> None:
    """Its deliveries go with it."""
    session.execute(delete(WebhookEndpoint).where(WebhookEndpoint.id == endpoint_id))


def deliveries(endpoint_id: UUID, state: DeliveryState | None) -> Select[WebhookDelivery]:
    query = select(WebhookDelivery).where(WebhookDelivery.endpoint_id == endpoint_id)
    return query if state is None else query.where(WebhookDelivery.state == state)


def delivery(session: Session, endpoint_id: UUID, delivery_id: UUID) -> WebhookDelivery | None:
    return session.scalar(deliveries(endpoint_id, None).where(WebhookDelivery.id == delivery_id))


def send_again(
    session: Session, endpoint_id: UUID, moment: datetime, among: ColumnElement[bool]
) -> Sequence[UUID]:
    """From the start of the schedule, under the same message id; what is under way is left alone."""
    again = update(WebhookDelivery).where(
        WebhookDelivery.endpoint_id == endpoint_id, WebhookDelivery.state != DeliveryState.PENDING, among
    )
    values = {"state": DeliveryState.PENDING, "tries": 0, "next_attempt_at": moment, "ended_at": None}
    return session.scalars(
        again.values(values).returning(WebhookDelivery.id).execution_options(synchronize_session="fetch")
    ).all()


def is_due(moment: datetime, longest: timedelta) -> ColumnElement[bool]:
    """Also what waits longer than anything is ever put off: then a clock has jumped."""
    at = WebhookDelivery.next_attempt_at
    return and_(WebhookDelivery.state == DeliveryState.PENDING, or_(at <= moment, at > moment + longest))


def due(
    session: Session,
    when: ColumnElement[bool],
    *,
    most: int,
    per_endpoint: int,
    busy: Collection[UUID],
) -> Sequence[UUID]:
    """The longest waiting, few of each endpoint, so that a slow one does not take every sender."""
    place = func.row_number().over(
        partition_by=WebhookDelivery.endpoint_id,
        order_by=(WebhookDelivery.next_attempt_at, WebhookDelivery.id),
    )
    ranked = (
        select(WebhookDelivery.id, WebhookDelivery.next_attempt_at, place.label("place"))
        .join(WebhookEndpoint, WebhookEndpoint.id == WebhookDelivery.endpoint_id)
        .where(when, WebhookEndpoint.enabled.is_(True), WebhookEndpoint.id.not_in(list(busy)))
        .subquery()
    )
    chosen = select(ranked.c.id).where(ranked.c.place <= per_endpoint)
    return session.scalars(chosen.order_by(ranked.c.next_attempt_at).limit(most)).all()


def lock(
    session: Session, ids: Sequence[UUID], when: ColumnElement[bool]
) -> Sequence[Row[WebhookDelivery, WebhookEndpoint, WebhookEvent]]:
    """Those still due; a row that somebody else holds is under way."""
    return session.execute(
        select(WebhookDelivery, WebhookEndpoint, WebhookEvent)
        .join(WebhookEndpoint, WebhookEndpoint.id == WebhookDelivery.endpoint_id)
        .join(WebhookEvent, WebhookEvent.id == WebhookDelivery.event_id)
        .where(WebhookDelivery.id.in_(ids), when)
        .with_for_update(of=WebhookDelivery, skip_locked=True)
    ).all()


def end_attempt(session: Session, delivery_id: UUID, attempt: int, values: dict[str, object]) -> bool:
    """Only for the newest attempt: one that is overtaken has nothing to say."""
    mine = update(WebhookDelivery).where(
        WebhookDelivery.id == delivery_id,
        WebhookDelivery.attempts == attempt,
        WebhookDelivery.state == DeliveryState.PENDING,
    )
    return session.scalar(mine.values(values).returning(WebhookDelivery.id)) is not None


def disable(session: Session, endpoint: WebhookEndpoint, reason: str) -> None:
    """Unless it leads elsewhere by now."""
    session.execute(
        update(WebhookEndpoint)
        .where(WebhookEndpoint.id == endpoint.id, WebhookEndpoint.url == endpoint.url)
        .values(enabled=False, disabled_reason=reason)
    )


def forget(session: Session, *, events_before: datetime, secrets_before: datetime) -> None:
    session.execute(delete(WebhookEvent).where(WebhookEvent.at < events_before))
    session.execute(
        update(WebhookEndpoint)
        .where(WebhookEndpoint.previous_until < secrets_before)
        .values(previous_secret=None, previous_until=None)
    )


def anything_to_forget(session: Session, *, events_before: datetime, secrets_before: datetime) -> bool:
    old = select(WebhookEvent.id).where(WebhookEvent.at < events_before).limit(1)
    over = select(WebhookEndpoint.id).where(WebhookEndpoint.previous_until < secrets_before).limit(1)
    return session.scalar(old) is not None or session.scalar(over) is not None

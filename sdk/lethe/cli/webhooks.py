"""`lethe webhook`: URLs of your own systems that receive events as signed messages."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lethe.cli.context import CommandContext, UsageError, command
from lethe.cli.ids import find_id, find_webhook
from lethe.cli.tables import count, details, table

if TYPE_CHECKING:
    from lethe.client.responses import Delivery, NewWebhook, Webhook

webhook = typer.Typer(
    help="Send events to your own systems, and look after deliveries.", no_args_is_help=True
)
WebhookId = Annotated[str, typer.Argument(metavar="ID", help="ID of the webhook, or its first characters.")]
Events = Annotated[
    list[str] | None,
    typer.Option("--event", metavar="EVENT", help="Send this event only. Repeat it for more. Default: all."),
]
Format = Annotated[
    Literal["standard", "cloudevents"],
    typer.Option("--format", metavar="FORMAT", help="How bodies are written: standard or cloudevents."),
]
Description = Annotated[
    str | None, typer.Option(metavar="WORDS", help="A note for your own use. Do not write about a person.")
]


@webhook.command("list")
@command
def list_webhooks(context: CommandContext) -> None:
    """List webhooks, newest first."""
    webhooks = list(context.api.webhooks.list())
    rows = [(w.id, w.url, _events(w), _state(w), w.description) for w in webhooks]
    columns = ("Webhook", "URL", "Events", "State", "Description")
    empty = "There are no webhooks. To create one, run: lethe webhook create URL"
    context.show(webhooks, table(columns, rows) if webhooks else empty)


@webhook.command("show")
@command
def show(context: CommandContext, webhook_id: WebhookId) -> None:
    """Show a webhook."""
    _show(context, context.api.webhooks.get(find_webhook(context, webhook_id)))


@webhook.command("create")
@command
def create(
    context: CommandContext,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Where messages are posted, an https URL.")],
    events: Events = None,
    description: Description = None,
    disabled: Annotated[bool, typer.Option("--disabled", help="Send nothing yet.")] = False,
    format: Format = "standard",  # noqa: A002
) -> None:
    """Create a webhook and print its secret. The secret cannot be shown again."""
    created = context.api.webhooks.create(
        target, event_types=events or (), description=description or "", enabled=not disabled, format=format
    )
    _show_with_secret(context, created)


@webhook.command("change")
@command
def change(
    context: CommandContext,
    webhook_id: WebhookId,
    target: Annotated[
        str | None, typer.Option("--target", metavar="TARGET", help="Post messages to this URL.")
    ] = None,
    events: Events = None,
    description: Description = None,
    enabled: Annotated[
        bool | None, typer.Option("--enable/--disable", help="Whether messages are sent.")
    ] = None,
) -> None:
    """Change a webhook. If it was disabled, --enable continues its pending deliveries."""
    fields = {"url": target, "event_types": events or None, "description": description, "enabled": enabled}
    changes = {name: value for name, value in fields.items() if value is not None}
    if not changes:
        raise UsageError("nothing to change; pass --target, --event, --description, --enable or --disable")
    _show(context, context.api.webhooks.change(find_webhook(context, webhook_id), changes))


@webhook.command("delete")
@command
def delete(context: CommandContext, webhook_id: WebhookId) -> None:
    """Delete a webhook and its deliveries, including pending ones."""
    found = find_webhook(context, webhook_id)
    context.api.webhooks.delete(found)
    context.show({"id": found, "deleted": True}, f"Deleted the webhook {found}.")


@webhook.command("rotate")
@command
def rotate(
    context: CommandContext,
    webhook_id: WebhookId,
    overlap: Annotated[
        float,
        typer.Option(
            "--overlap-hours",
            metavar="HOURS",
            min=0,
            max=168,
            help="For how long messages are signed with the old secret too. 0 if it leaked.",
        ),
    ] = 24.0,
) -> None:
    """Create a new secret for a webhook and print it. It cannot be shown again."""
    rotated = context.api.webhooks.rotate(find_webhook(context, webhook_id), overlap_hours=overlap)
    _show_with_secret(context, rotated)


@webhook.command("test")
@command
def test(context: CommandContext, webhook_id: WebhookId) -> None:
    """Send a test message. Run `lethe webhook deliveries` to see the result."""
    found = find_webhook(context, webhook_id)
    delivery = context.api.webhooks.test(found)
    context.show(delivery, _delivery_table([delivery]))
    context.note(f"To see the result, run: lethe webhook deliveries {found}")


@webhook.command("deliveries")
@command
def deliveries(
    context: CommandContext,
    webhook_id: WebhookId,
    state: Annotated[
        str | None,
        typer.Option(metavar="STATE", help="Only pending, delivered or dead deliveries."),
    ] = None,
    most: Annotated[
        int, typer.Option("--most", metavar="NUMBER", min=1, help="List at most this many deliveries.")
    ] = 20,
) -> None:
    """List the deliveries of the last 30 days, newest first. All attempts of a dead delivery failed."""
    found = find_webhook(context, webhook_id)
    items = list(context.api.webhooks.deliveries(found, state=state, limit=most))
    context.show(items, _delivery_table(items) if items else "There are no deliveries.")


@webhook.command("replay")
@command
def replay(
    context: CommandContext,
    webhook_id: WebhookId,
    delivery: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="ID of one delivery, or its first characters. Default: all that are dead."
        ),
    ] = None,
) -> None:
    """Send messages again that did not arrive."""
    found = find_webhook(context, webhook_id)
    if delivery is None:
        result = context.api.webhooks.replay_dead(found)
        context.show(result, f"Sending {count(result.replayed, 'message', 'messages')} again.")
        return
    listing = f"lethe webhook deliveries {found}"
    wanted = find_id(delivery, "delivery", lambda: context.api.webhooks.deliveries(found), listing)
    replayed = context.api.webhooks.replay(found, wanted)
    context.show(replayed, _delivery_table([replayed]))


def _show(context: CommandContext, webhook: "Webhook") -> None:
    context.show(webhook, _webhook_details(webhook))


def _show_with_secret(context: CommandContext, webhook: "NewWebhook") -> None:
    context.show(webhook, _webhook_details(webhook), f"Secret: {webhook.secret}")
    context.note("Store the secret now. It cannot be shown again.")


def _webhook_details(webhook: "Webhook") -> Any:
    return details(
        {
            "Webhook": webhook.id,
            "URL": webhook.url,
            "Events": _events(webhook),
            "State": _state(webhook),
            "Old secret until": webhook.old_secret_until,
            "Description": webhook.description,
            "Created": webhook.created_at,
        }
    )


def _delivery_table(deliveries: "list[Delivery]") -> Any:
    rows = [
        (d.id, d.payload.get("type"), d.state, d.attempts, d.status_code, d.error, d.next_attempt_at)
        for d in deliveries
    ]
    return table(("Delivery", "Event", "State", "Attempts", "HTTP", "Error", "Next attempt"), rows)


def _events(webhook: "Webhook") -> str:
    return ", ".join(webhook.event_types) or "all"


def _state(webhook: "Webhook") -> str:
    if webhook.enabled:
        return "enabled"
    return "disabled, because it answered 410" if webhook.disabled_reason == "gone" else "disabled"

"""`lethe model policy`: show and change the policy of a model."""

import tomllib
from collections.abc import Container, Mapping, Sequence
from typing import Annotated, Any

import typer

from lethe.cli.context import CommandContext, UsageError, as_plain_data, command
from lethe.cli.names import ModelName
from lethe.cli.tables import table

policy = typer.Typer(help="Show or change the policy of a model.", no_args_is_help=True)


@policy.command("show")
@command
def show(context: CommandContext, name: ModelName) -> None:
    """Show the policy of a model, with what each field means."""
    model = context.api.models.get(name)
    _show(context, as_plain_data(model.manifest.policy))


@policy.command("set")
@command
def set_fields(
    context: CommandContext,
    name: ModelName,
    changes: Annotated[
        list[str],
        typer.Argument(
            metavar="FIELD=VALUE...",
            help="Fields and their new values, such as batch_subjects=50 quality_gate.min_f1=80. The value "
            "default restores the default.",
        ),
    ],
) -> None:
    """Change fields of a model's policy. The change applies to batches that are sealed from now on.

    evidence_days and report_days also apply to what is already stored.

    If a batch on the same rows was refused or put on hold before, the next certificate states a change of ε,
    δ or Δ*.
    """
    change = parse_changes(changes)
    current = as_plain_data(context.api.models.get(name).manifest.policy)
    _check(_merged(current, change))
    model = context.api.models.patch(name, {"policy": change})
    _show(context, as_plain_data(model.manifest.policy), only=change)


def parse_changes(changes: Sequence[str]) -> dict[str, Any]:
    """Turn words such as `batch_subjects=50` into a JSON Merge Patch of the policy.

    >>> parse_changes(["quality_gate.min_f1=80", "fallback=fail", "max_kl_alert=default"])
    {'quality_gate': {'min_f1': 80}, 'fallback': 'fail', 'max_kl_alert': None}
    """
    patch: dict[str, Any] = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals or not name or not text:
            raise UsageError(f"{change} is not a change; write it as FIELD=VALUE, such as batch_subjects=50")
        *tables, last = name.strip().split(".")
        place = patch
        for inner in tables:
            place = place.setdefault(inner, {})
            if not isinstance(place, dict):
                raise UsageError(f"{inner} is changed twice; name each field once")
        place[last] = _parse_value(text.strip())
    return patch


def _parse_value(text: str) -> Any:
    if text == "default":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _merged(current: Any, change: Any) -> Any:
    """Apply a JSON Merge Patch (RFC 7396)."""
    if not isinstance(change, Mapping):
        return change
    base = dict(current) if isinstance(current, Mapping) else {}
    for name, value in change.items():
        if value is None:
            base.pop(name, None)
        else:
            base[name] = _merged(base.get(name), value)
    return base


def _check(document: Mapping[str, Any]) -> None:
    """Refuse a policy with an unknown field or a value out of range, before the service does."""
    from lethe.manifest_check import model_problems
    from lethe.policy import Policy

    if problems := model_problems(Policy, document):
        raise UsageError(f"the policy would not be valid: {'; '.join(problems)}")


def _show(context: CommandContext, policy: Mapping[str, Any], *, only: Container[str] | None = None) -> None:
    """Show a policy. The table has the fields in `only`, JSON has all."""
    from lethe.policy import Policy

    fields = Policy.model_fields
    rows = [
        (name, value, fields[name].description if name in fields else "")
        for name, value in policy.items()
        if only is None or name in only
    ]
    context.show(policy, table(("Field", "Value", "Meaning"), rows))

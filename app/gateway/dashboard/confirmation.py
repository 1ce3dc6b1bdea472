"""Actions that are confirmed on a page of their own, which works without scripts."""

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Request, Response
from pydantic import TypeAdapter, ValidationError

from app.gateway.dashboard.pages import render_page
from app.gateway.errors import InvalidRequest
from app.gateway.reasons import ReasonText

_REASON: TypeAdapter[str] = TypeAdapter(ReasonText)
REASON_FIELD = "reason"


@dataclass(frozen=True)
class Action:
    """Something that can be done, with the explanation shown before it is done.

    The name is also the last part of the path that does it.
    """

    name: str
    title: str
    explanation: str
    destructive: bool = False


@dataclass(frozen=True)
class Fact:
    """One line about the thing that the action changes."""

    label: str
    value: str
    link: str = ""


@dataclass(frozen=True)
class Reason:
    """The field in which people write why they do something."""

    label: str
    required: bool = True
    help: str = "Your text and your name, or that of your key, become part of the history."


@dataclass(frozen=True)
class Checkbox:
    """A box to tick before the action is possible."""

    name: str
    label: str


def render_confirmation(
    request: Request,
    action: Action,
    subject: str,
    facts: Sequence[Fact],
    *,
    reason: Reason | None = None,
    warnings: Sequence[str] = (),
    models: Sequence[str] = (),
    checkbox: Checkbox | None = None,
) -> Response:
    """Render the page that asks for confirmation.

    `subject` is the path of the page that the action belongs to. With more than one of `models`, the page
    asks which of them is meant.
    """
    return render_page(
        request,
        "confirm.html",
        action=action,
        subject=subject,
        facts=facts,
        reason=reason,
        warnings=warnings,
        models=models if len(models) > 1 else (),
        checkbox=checkbox,
    )


def reason_in(form: dict[str, str], *, required: bool) -> str:
    """Return the reason in a form, or raise `InvalidRequest` if it is missing or too long."""
    text = " ".join(form.get(REASON_FIELD, "").split())
    if not text and not required:
        return ""
    try:
        return _REASON.validate_python(text)
    except ValidationError:
        raise InvalidRequest(
            "Go back and write a reason of 1 to 200 characters. It becomes part of the history."
        ) from None

"""Who may see a page, and whether a form is ours. The decision itself is the API's."""

import hmac
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import Depends, Request

from app.access.cache import Caller
from app.access.guard import Require
from app.access.scopes import Scope
from app.errors import BodyTooLarge, Forbidden, InvalidRequest, UnsupportedMedia
from app.web.session import Sessions

LARGEST_FORM = 16 * 1024
TOKEN = "form_token"  # noqa: S105  (the field's name)
STALE = "This form is from an earlier visit. Go back, reload the page, and send it again."


class SignInFirst(Exception):
    """Nobody is signed in; the page that was wanted is shown afterwards."""


def sessions_of(request: Request) -> Sessions:
    sessions: Sessions = request.state.sessions
    return sessions


async def signed_in(request: Request) -> Caller:
    caller = await sessions_of(request).identify(request)
    if caller is None:
        raise SignInFirst
    request.state.caller = caller
    return caller


class Sees(Require):
    """As the API's guard; only the caller comes from the session."""

    async def __call__(self, request: Request) -> Caller:
        return self.admit(await signed_in(request))


async def read_form(request: Request) -> dict[str, str]:
    """Form fields, by hand: no files are taken here, so no multipart either."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/x-www-form-urlencoded":
        raise UnsupportedMedia("A form is expected.")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_FORM:
            raise BodyTooLarge(f"At most {LARGEST_FORM} bytes are taken here.")
    try:
        return dict(parse_qsl(body.decode(), strict_parsing=bool(body), max_num_fields=20))
    except ValueError:
        raise InvalidRequest("The form cannot be read.") from None


def check_token(request: Request, form: dict[str, str], nonce: str) -> None:
    expected = sessions_of(request).form_token(nonce)
    if not nonce or not hmac.compare_digest(form.get(TOKEN, "").encode(), expected.encode()):
        raise Forbidden(STALE)


async def own_form(request: Request) -> dict[str, str]:
    """A form that this session's own page sent."""
    session = sessions_of(request).read(request)
    if session is None:
        raise SignInFirst
    form = await read_form(request)
    check_token(request, form, session.nonce)
    return form


SignedIn = Annotated[Caller, Depends(signed_in)]
OwnForm = Annotated[dict[str, str], Depends(own_form)]
SeesErasures = Annotated[Caller, Depends(Sees(Scope.ERASURES_READ))]
SeesModels = Annotated[Caller, Depends(Sees(Scope.MODELS_READ))]
SeesCertificates = Annotated[Caller, Depends(Sees(Scope.CERTIFICATES_READ))]
TakesCheckpoints = Annotated[Caller, Depends(Sees(Scope.CHECKPOINTS_READ))]
DecidesOnModels = Annotated[Caller, Depends(Sees(Scope.MODELS_ADMIN))]

"""The sign-in page: with an API key, or through the identity provider. Signing out."""

import re
import secrets
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse

from app.gateway.auth import service as access
from app.gateway.auth.caller import Caller
from app.gateway.auth.guard import ServicesOf
from app.gateway.auth.oidc import CALLBACK, IdentityProvider, ProviderUnavailable, SignInRefused
from app.gateway.auth.throttle import SignInThrottle
from app.gateway.dashboard.pages import PageRoute, render_page
from app.gateway.dashboard.sessions import OwnForm, check_form_token, read_form, sessions_of
from app.gateway.errors import NotFound
from app.gateway.rate_limits import address_of
from app.services import Services

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_LOCAL_PATH = re.compile(r"/(?![/\\])[\x21-\x7e]{0,2000}")
UNAVAILABLE = "The identity provider cannot be reached at the moment. Try again, or use an API key."
UNKNOWN_KEY = "This key is unknown or was revoked. Check that you copied all of it."


@router.get("/login")
async def show_sign_in(request: Request, next: Annotated[str, Query()] = "/") -> Response:  # noqa: A002
    """Show the sign-in form. Someone who is already signed in can switch to another key here."""
    return _render_form(request, local_path(next))


@router.get("/login/start")
async def start_sign_in(request: Request, next: Annotated[str, Query()] = "/") -> Response:  # noqa: A002
    """Send the browser to the identity provider."""
    sessions, provider = sessions_of(request), _provider(request)
    throttle_of(request).check(address_of(request))
    try:
        url, pending = await run_in_threadpool(provider.begin, local_path(next))
    except ProviderUnavailable:
        return _render_form(request, local_path(next), problem=UNAVAILABLE, status=503)
    response = RedirectResponse(url, 303)
    sessions.set_pending_sign_in(request, response, pending)
    return response


@router.get(CALLBACK)
async def finish_sign_in(request: Request) -> Response:
    """Open a session for the person whom the identity provider sends back.

    The answer is a page and not a redirect. The session's cookie is sent only with requests that start on
    this site, and a redirect would still count as started by the provider.
    """
    sessions, provider = sessions_of(request), _provider(request)
    throttle_of(request).check(address_of(request))
    pending = sessions.pending_sign_in(request)
    next_path = local_path(pending.next_path) if pending else "/"
    response: Response
    try:
        person = await run_in_threadpool(provider.finish, pending, dict(request.query_params))
        session = await run_in_threadpool(sessions.open_for_person, person)
    except SignInRefused as refusal:
        throttle_of(request).failed(address_of(request))
        response = _render_form(request, next_path, problem=str(refusal), status=403)
    except ProviderUnavailable:
        response = _render_form(request, next_path, problem=UNAVAILABLE, status=503)
    else:
        response = render_page(request, "signed_in.html", next_path=next_path)
        sessions.set_cookie(request, response, session)
    sessions.clear_pending_sign_in(request, response)
    return response


@router.post("/login")
async def sign_in(request: Request, services: ServicesOf) -> Response:
    """Open a session for a valid API key, then continue to the page that was asked for."""
    sessions, form = sessions_of(request), await read_form(request)
    check_form_token(request, form, sessions.visit_nonce(request))
    throttle_of(request).check(address_of(request))
    caller = await run_in_threadpool(_authenticate, services, form.get("key", "").strip())
    next_path = local_path(form.get("next", "/"))
    if caller is None:
        throttle_of(request).failed(address_of(request))
        return _render_form(request, next_path, problem=UNKNOWN_KEY, status=401)
    response = RedirectResponse(next_path, 303)
    sessions.set_cookie(request, response, await run_in_threadpool(sessions.open, caller))
    return response


@router.post("/logout")
async def sign_out(request: Request, _: OwnForm) -> Response:
    """End the session and return to the sign-in page."""
    sessions = sessions_of(request)
    session = sessions.read(request)
    if session is not None:
        await run_in_threadpool(sessions.end, session)
    response = RedirectResponse("/login", 303)
    sessions.clear_cookie(request, response)
    return response


def local_path(path: str) -> str:
    """Return the path if it stays on this site, otherwise `/`. A link must not redirect users elsewhere.

    >>> local_path("/erasures?state=failed"), local_path("//evil.example"), local_path("https://evil.example")
    ('/erasures?state=failed', '/', '/')
    """
    return path if _LOCAL_PATH.fullmatch(path) else "/"


def _render_form(request: Request, next_path: str, *, problem: str = "", status: int = 200) -> Response:
    sessions = sessions_of(request)
    nonce = sessions.visit_nonce(request) or secrets.token_urlsafe(18)
    response = render_page(
        request,
        "login.html",
        status=status,
        next_path=next_path,
        problem=problem,
        visit_token=sessions.form_token(nonce),
        start_path=f"/login/start?next={quote(next_path, safe='/')}" if sessions.provider else "",
        sign_out_url=sessions.provider.sign_out_url() if sessions.provider else None,
    )
    sessions.set_visit_cookie(request, response, nonce)
    return response


def throttle_of(request: Request) -> SignInThrottle:
    """Return the gateway's limit on failed sign-ins."""
    throttle: SignInThrottle = request.state.throttle
    return throttle


def _provider(request: Request) -> IdentityProvider:
    provider = sessions_of(request).provider
    if provider is None:
        raise NotFound("This page does not exist.")
    return provider


def _authenticate(services: Services, key: str) -> Caller | None:
    with services.database.reading() as session:
        return access.authenticate(session, key)

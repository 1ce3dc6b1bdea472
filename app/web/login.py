"""Signing in with an API key, and out."""

import re
import secrets
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse

from app.access import service as access
from app.access.cache import Caller
from app.access.guard import ServicesOf
from app.bootstrap import Services
from app.web.guard import OwnForm, check_token, read_form, sessions_of
from app.web.pages import PageRoute, page

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_LOCAL = re.compile(r"/(?![/\\])[\x21-\x7e]{0,2000}")
UNKNOWN = "This key is unknown or was revoked. Check that all of it was copied."


@router.get("/login")
async def sign_in(request: Request, next: Annotated[str, Query()] = "/") -> Response:  # noqa: A002
    """Without a session; someone who has one may change to another key here."""
    return _form(request, local(next))


@router.post("/login")
async def signed_in(request: Request, services: ServicesOf) -> Response:
    sessions, form = sessions_of(request), await read_form(request)
    check_token(request, form, sessions.visit(request))
    caller = await run_in_threadpool(_caller_with, services, form.get("key", "").strip())
    after = local(form.get("next", "/"))
    if caller is None:
        return _form(request, after, problem=UNKNOWN, status=401)
    answer = RedirectResponse(after, 303)
    sessions.keep(request, answer, sessions.open(caller))
    return answer


@router.post("/logout")
async def sign_out(request: Request, _: OwnForm) -> Response:
    sessions = sessions_of(request)
    session = sessions.read(request)
    if session is not None:
        await run_in_threadpool(sessions.leave, session)
    answer = RedirectResponse("/login", 303)
    sessions.forget(request, answer)
    return answer


def local(path: str) -> str:
    """Only a path of ours: a link must not sign someone in and send them elsewhere.

    >>> local("/erasures?state=failed"), local("//evil.example"), local("https://evil.example")
    ('/erasures?state=failed', '/', '/')
    """
    return path if _LOCAL.fullmatch(path) else "/"


def _form(request: Request, after: str, *, problem: str = "", status: int = 200) -> Response:
    sessions = sessions_of(request)
    nonce = sessions.visit(request) or secrets.token_urlsafe(18)
    answer = page(
        request,
        "login.html",
        status=status,
        after=after,
        problem=problem,
        visit_token=sessions.form_token(nonce),
    )
    sessions.remember_visit(request, answer, nonce)
    return answer


def _caller_with(services: Services, key: str) -> Caller | None:
    with services.database.reading() as session:
        return access.authenticate(session, key)

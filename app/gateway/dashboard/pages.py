"""A page: a template, the headers that shut everything else out, and errors as pages too."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from sqlalchemy.exc import OperationalError

from app import errors, logs
from app.access.cache import Caller
from app.version import VERSION
from app.web import assets, charts, words
from app.web.guard import SignInFirst, sessions_of

log = logs.get("gateway")
Handler = Callable[[Request], Coroutine[Any, Any, Response]]

# No inline script, no inline style, nothing from anywhere else.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"asset": assets.url_of, "version": VERSION, "words": words, "charts": charts}
    made.filters |= {
        "day": words.day,
        "moment": words.moment,
        "ago": words.ago,
        "figure": words.figure,
        "count": words.counted,
        "bytes": words.size,
        "short": lambda identifier: str(identifier)[-8:],
    }
    return made


_TEMPLATES = _environment()


class Nobody:
    """Signed out: may do nothing."""

    def may(self, _: str) -> bool:
        return False


def page(request: Request, template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
    """Everything a template may show; whoever is signed in decides on the navigation."""
    caller: Caller | Nobody = getattr(request.state, "caller", None) or Nobody()
    sessions = sessions_of(request)
    session = sessions.read(request) if isinstance(caller, Caller) else None
    shared = {
        "caller": caller,
        "signed_in": session is not None,
        "form_token": sessions.form_token(session.nonce) if session else "",
        "path": request.url.path,
        "log_origin": request.state.services.settings.log_origin,
    }
    return HTMLResponse(_TEMPLATES.get_template(template).render(shared | context), status)


def error_page(request: Request, error: errors.ServiceError) -> HTMLResponse:
    answer = page(
        request,
        "error.html",
        status=error.status,
        title=error.title,
        detail=error.detail,
        scope=error.extra.get("scope"),
        request_id=getattr(request.state, "request_id", ""),
    )
    answer.headers.update(
        {name: value for name, value in error.headers.items() if name != "WWW-Authenticate"}
    )
    return answer


def sign_in_first(request: Request) -> Response:
    """Back to this page afterwards, if it is one that can be looked at."""
    wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    after = f"?next={quote(wanted, safe='/')}" if request.method == "GET" and wanted != "/" else ""
    return RedirectResponse(f"/login{after}", 303)


class PageRoute(APIRoute):
    """Whatever happens on a page ends as a page."""

    def get_route_handler(self) -> Handler:
        inner = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                response = await inner(request)
            except SignInFirst:
                response = sign_in_first(request)
            except errors.ServiceError as error:
                response = error_page(request, error)
            except RequestValidationError:
                response = error_page(request, errors.NotFound("There is no such page."))
            except OperationalError:
                log.error("database unavailable")
                response = error_page(request, errors.Unavailable("The database cannot be reached."))
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            return response

        return handler

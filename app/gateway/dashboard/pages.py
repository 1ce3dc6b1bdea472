"""How pages are made: templates, lists, security headers, and errors shown as pages."""

from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import UUID

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from sqlalchemy import Select
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.core import logging
from app.core.version import VERSION
from app.gateway import errors
from app.gateway.auth.caller import Caller
from app.gateway.dashboard import assets, charts, queries, wording
from app.gateway.dashboard.sessions import SignInRequired, sessions_of
from app.gateway.error_handlers import DATABASE_OUTAGES
from app.gateway.pagination import fetch_page
from app.services import Services

log = logging.get_logger("gateway")
Handler = Callable[[Request], Coroutine[Any, Any, Response]]
R = TypeVar("R")

ROWS_PER_PAGE = 50
# Pages load nothing from other sites and run no inline script or style.
CONTENT_SECURITY_POLICY = "; ".join(
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
DEFAULT_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def _create_environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "asset": assets.url_of,
        "version": VERSION,
        "wording": wording,
        "charts": charts,
    }
    environment.filters |= {
        "day": wording.format_day,
        "moment": wording.format_moment,
        "relative": wording.format_relative,
        "figure": wording.format_figure,
        "count": wording.format_count,
        "bytes": wording.format_size,
        "short": lambda identifier: str(identifier)[-8:],
    }
    return environment


_TEMPLATES = _create_environment()


class AnonymousCaller:
    """Stands in for the caller on pages that need no session. It has no scope."""

    def may(self, _: str) -> bool:
        """Return False for every scope."""
        return False


def render_page(request: Request, template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
    """Render a template. The caller's scopes decide what the navigation offers."""
    caller: Caller | AnonymousCaller = getattr(request.state, "caller", None) or AnonymousCaller()
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


def render_list(
    request: Request,
    services: Services,
    template: str,
    query: Select[R],
    key: InstrumentedAttribute[UUID],
    *,
    cursor: UUID | None,
    show: Callable[[Session, Sequence[R]], Sequence[object]],
    **context: Any,
) -> Response:
    """Render one page of a list, newest first. The template gets it as `listing`, with the `total`."""
    with services.database.reading() as session:
        listing = fetch_page(
            session, query, key, limit=ROWS_PER_PAGE, cursor=cursor, describe=lambda rows: show(session, rows)
        )
        total = queries.count_rows(session, query)
    return render_page(
        request, template, listing=listing, total=total, is_first_page=cursor is None, **context
    )


def render_error(request: Request, error: errors.ServiceError) -> HTMLResponse:
    """Render an error of the service as a page with the error's HTTP status."""
    response = render_page(
        request,
        "error.html",
        status=error.status,
        title=error.title,
        detail=error.detail,
        scope=error.extra.get("scope"),
        request_id=getattr(request.state, "request_id", ""),
    )
    response.headers.update(
        {name: value for name, value in error.headers.items() if name != "WWW-Authenticate"}
    )
    return response


def attach_json(document: Any, file_name: str) -> Response:
    """Return a JSON document that browsers save under this file name."""
    return JSONResponse(document, headers={"Content-Disposition": f'attachment; filename="{file_name}"'})


def redirect_to_sign_in(request: Request) -> Response:
    """Redirect to the sign-in page, which leads back here if this page can be opened with GET."""
    path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    query = f"?next={quote(path, safe='/')}" if request.method == "GET" and path != "/" else ""
    return RedirectResponse(f"/login{query}", 303)


class PageRoute(APIRoute):
    """A route whose errors are pages too, and whose responses all carry `DEFAULT_HEADERS`."""

    def get_route_handler(self) -> Handler:
        """Return the handler of the route, wrapped accordingly."""
        inner = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                response = await inner(request)
            except SignInRequired:
                response = redirect_to_sign_in(request)
            except errors.ServiceError as error:
                response = render_error(request, error)
            except RequestValidationError:
                response = render_error(request, errors.NotFound("This page does not exist."))
            except DATABASE_OUTAGES:
                log.error("database unavailable")
                detail = "The database is not reachable at the moment. Try again in a minute."
                response = render_error(request, errors.Unavailable(detail, headers={"Retry-After": "5"}))
            for name, value in DEFAULT_HEADERS.items():
                response.headers.setdefault(name, value)
            return response

        return handler

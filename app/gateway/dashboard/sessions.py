"""Browser sessions: signed cookies, the guards that read them, and protection against forged forms.

The cookie names an API key or a person's session in SQL, and carries a MAC made with the deployment key. It
does not contain the API key. Every request looks up the API key, or the person's session and groups, so
revoking a key or removing a group from the settings ends its sessions at once. Any gateway of the deployment
can read the cookie, and signing out is stored in SQL, so it takes effect on all gateways.
"""

import hmac
import secrets
from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import parse_qsl
from uuid import UUID

from fastapi import Depends, Request, Response
from fastapi.concurrency import run_in_threadpool
from sqlalchemy import delete, select
from sqlalchemy.orm import Session as SqlSession

from app.core import logging
from app.core.clock import now
from app.db import audit_log
from app.db.audit_log import Action
from app.db.tables import PersonSession, SignOut, Tenant
from app.gateway.auth import service
from app.gateway.auth.caller import Caller
from app.gateway.auth.guard import Require, count_request
from app.gateway.auth.oidc import (
    STATE_SECONDS,
    IdentityProvider,
    PendingSignIn,
    Person,
    SignInRefused,
    grant_for,
    open_pending,
    pseudonym,
    seal_pending,
)
from app.gateway.auth.scopes import Scope
from app.gateway.errors import BodyTooLarge, Forbidden, InvalidRequest, UnsupportedMedia
from app.services import Services
from lethe.certificate.audit_log import Actor

log = logging.get_logger("sign-in")

MAX_FORM_BYTES = 16 * 1024
TOKEN_FIELD = "form_token"  # noqa: S105  (the name of a form field)
STALE_FORM = "This form was opened in an earlier session. Go back, reload the page and send it again."
_SESSION_PURPOSE, _FORM_PURPOSE = "dashboard session", "dashboard form"
_VISIT_SECONDS = 3600
_PERSON, _DASHBOARD = "person", "dashboard"


class SignInRequired(Exception):
    """The page needs a session and the request has none. `PageRoute` redirects it to the sign-in page."""


@dataclass(frozen=True)
class Session:
    """The content of a session cookie."""

    key_id: UUID | None
    """The API key. None for a person who came through the identity provider."""
    ends_at: int
    nonce: str

    def __str__(self) -> str:
        who = _PERSON if self.key_id is None else self.key_id.hex
        return f"{who}.{self.ends_at}.{self.nonce}"


class Sessions:
    """Opens, reads and ends sessions, and sets the cookies that carry them."""

    def __init__(self, services: Services, provider: IdentityProvider | None = None) -> None:
        self._services, self.provider = services, provider

    def open(self, caller: Caller) -> Session:
        """Return a new session for the caller's API key. `set_cookie` hands it to the browser."""
        seconds = int(self._services.settings.session_hours * 3600)
        with self._services.database.writing() as writing, audit_log.acting_as(caller.actor):
            audit_log.record(writing, caller.tenant_id, Action.SIGNED_IN, _DASHBOARD)
        return Session(caller.key_id, int(now().timestamp()) + seconds, secrets.token_urlsafe(18))

    def open_for_person(self, person: Person) -> Session:
        """Store and return a new session for a person. Raise `SignInRefused` if they may do nothing here."""
        seconds = int(self._services.settings.oidc_session_minutes * 60)
        session = Session(None, int(now().timestamp()) + seconds, secrets.token_urlsafe(18))
        stored = PersonSession(
            nonce=session.nonce,
            subject=pseudonym(self._services.vault, person.subject),
            name=person.name,
            groups=list(person.groups),
            ends_at=session.ends_at,
        )
        with self._services.database.writing() as writing:
            caller = self._caller_for(writing, stored)
            if caller is None:
                raise SignInRefused(
                    "You are not in a group that may use Lethe. Ask an administrator to add you to one."
                )
            writing.execute(delete(PersonSession).where(PersonSession.ends_at < int(now().timestamp())))
            writing.add(stored)
            with audit_log.acting_as(caller.actor):
                audit_log.record(
                    writing, caller.tenant_id, Action.SIGNED_IN, _DASHBOARD, {"groups": list(person.groups)}
                )
        return session

    def read(self, request: Request) -> Session | None:
        """Return the session in the request's cookie if its MAC is valid and it has not expired.

        The user may have signed out of it, or its key may have been revoked: `identify` checks both.
        """
        text, _, mac = request.cookies.get(self._cookie_name(request), "").rpartition(".")
        if not text.isascii() or not mac.isascii() or not hmac.compare_digest(mac, self.mac_of(text)):
            return None
        who, ends_at, nonce = text.split(".")
        session = Session(None if who == _PERSON else UUID(who), int(ends_at), nonce)
        return None if session.ends_at <= now().timestamp() else session

    async def identify(self, request: Request) -> Caller | None:
        """Return the caller who is signed in, or None."""
        session = self.read(request)
        return None if session is None else await run_in_threadpool(self._find_caller, session)

    def end(self, session: Session) -> None:
        """Sign the session out on every gateway, and delete sign-outs of sessions that have expired."""
        caller = self._find_caller(session)
        with self._services.database.writing() as writing:
            writing.execute(delete(SignOut).where(SignOut.ends_at < int(now().timestamp())))
            writing.execute(delete(PersonSession).where(PersonSession.nonce == session.nonce))
            writing.merge(SignOut(nonce=session.nonce, ends_at=session.ends_at))
            if caller is not None:
                with audit_log.acting_as(caller.actor):
                    audit_log.record(writing, caller.tenant_id, Action.SIGNED_OUT, _DASHBOARD)

    def form_token(self, nonce: str) -> str:
        """Return the token that a form must send back. Other sites cannot read our pages to learn it."""
        return self._services.vault.keyed_hash(nonce, purpose=_FORM_PURPOSE).hex()

    def mac_of(self, text: str) -> str:
        """Return the MAC of a cookie's text under the deployment key."""
        return self._services.vault.keyed_hash(text, purpose=_SESSION_PURPOSE).hex()

    def set_cookie(self, request: Request, response: Response, session: Session) -> None:
        """Set the session cookie."""
        value = f"{session}.{self.mac_of(str(session))}"
        max_age = session.ends_at - int(now().timestamp())
        self._set(request, response, self._cookie_name(request), value, max_age)

    def clear_cookie(self, request: Request, response: Response) -> None:
        """Delete the session cookie."""
        self._set(request, response, self._cookie_name(request), "", 0)

    def visit_nonce(self, request: Request) -> str:
        """Return the nonce that ties the sign-in form to this browser before there is a session."""
        return request.cookies.get(self._cookie_name(request, "visit"), "")

    def set_visit_cookie(self, request: Request, response: Response, nonce: str) -> None:
        """Set the cookie that `visit_nonce` reads."""
        self._set(request, response, self._cookie_name(request, "visit"), nonce, _VISIT_SECONDS)

    def pending_sign_in(self, request: Request) -> PendingSignIn | None:
        """Return what this browser keeps while its user is at the identity provider."""
        sealed = request.cookies.get(self._cookie_name(request, "sign-in"), "")
        return open_pending(self._services.vault, sealed)

    def set_pending_sign_in(self, request: Request, response: Response, pending: PendingSignIn) -> None:
        """Set the cookie that `pending_sign_in` reads. The provider's redirect has to carry it (Lax)."""
        sealed = seal_pending(self._services.vault, pending)
        self._set(request, response, self._cookie_name(request, "sign-in"), sealed, STATE_SECONDS, "lax")

    def clear_pending_sign_in(self, request: Request, response: Response) -> None:
        """Delete the cookie, so that it serves for one answer only."""
        self._set(request, response, self._cookie_name(request, "sign-in"), "", 0, "lax")

    def _set(
        self,
        request: Request,
        response: Response,
        name: str,
        value: str,
        max_age: int,
        same_site: Literal["strict", "lax"] = "strict",
    ) -> None:
        response.set_cookie(
            name,
            value,
            max_age=max_age,
            httponly=True,
            samesite=same_site,
            secure=self._is_secure(request),
        )

    def _is_secure(self, request: Request) -> bool:
        setting = self._services.settings.secure_cookies
        return request.url.scheme == "https" if setting is None else setting

    def _cookie_name(self, request: Request, what: str = "session") -> str:
        """Return the cookie's name. Browsers accept `__Host-` cookies only over https, from this host."""
        return f"__Host-lethe-{what}" if self._is_secure(request) else f"lethe-{what}"

    def _find_caller(self, session: Session) -> Caller | None:
        with self._services.database.reading() as reading:
            if reading.get(SignOut, session.nonce) is not None:
                return None
            if session.key_id is None:
                stored = reading.get(PersonSession, session.nonce)
                return None if stored is None else self._caller_for(reading, stored)
            record = service.live_key(reading, session.key_id)
        return None if record is None else service.caller_of(record)

    def _caller_for(self, session: SqlSession, stored: PersonSession) -> Caller | None:
        """Return what a person may do under the current settings, or None if that is nothing."""
        grant = None if self.provider is None else grant_for(self.provider.groups, tuple(stored.groups))
        if grant is None:
            return None
        tenant_id = session.scalar(select(Tenant.id).where(Tenant.name == grant.tenant))
        if tenant_id is None:
            log.warning("LETHE_OIDC_GROUPS names a tenant that does not exist")
            return None
        actor = Actor(kind="person", id=stored.subject, name=stored.name)
        return Caller(tenant_id, None, grant.scopes, actor)


def sessions_of(request: Request) -> Sessions:
    """Return the application's `Sessions`."""
    sessions: Sessions = request.state.sessions
    return sessions


async def require_session(request: Request) -> Caller:
    """Return the caller who is signed in and count the request, or raise `SignInRequired`."""
    caller = await _session_caller(request)
    count_request(request, caller)
    return caller


async def _session_caller(request: Request) -> Caller:
    caller = await sessions_of(request).identify(request)
    if caller is None:
        raise SignInRequired
    request.state.caller = caller
    audit_log.set_actor(caller.actor)
    return caller


class RequireSession(Require):
    """The API's scope check, with the caller taken from the session instead of the Authorization header."""

    async def __call__(self, request: Request) -> Caller:
        return self.admit(request, await _session_caller(request))


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a URL-encoded form of at most `MAX_FORM_BYTES`. Files are not accepted."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/x-www-form-urlencoded":
        raise UnsupportedMedia("Send this request with the form on the page.")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM_BYTES:
            raise BodyTooLarge(f"The form is too large. The limit is {MAX_FORM_BYTES} bytes.")
    try:
        return dict(parse_qsl(body.decode(), strict_parsing=bool(body), max_num_fields=20))
    except ValueError:
        raise InvalidRequest("The form could not be read. Reload the page and send it again.") from None


def check_form_token(request: Request, form: dict[str, str], nonce: str) -> None:
    """Raise `Forbidden` unless the form carries the token that belongs to the nonce."""
    expected = sessions_of(request).form_token(nonce)
    if not nonce or not hmac.compare_digest(form.get(TOKEN_FIELD, "").encode(), expected.encode()):
        raise Forbidden(STALE_FORM)


async def read_own_form(request: Request) -> dict[str, str]:
    """Return the fields of a form that a page of this session sent."""
    session = sessions_of(request).read(request)
    if session is None:
        raise SignInRequired
    form = await read_form(request)
    check_form_token(request, form, session.nonce)
    return form


SignedIn = Annotated[Caller, Depends(require_session)]
OwnForm = Annotated[dict[str, str], Depends(read_own_form)]
ErasureReader = Annotated[Caller, Depends(RequireSession(Scope.ERASURES_READ))]
ErasureWriter = Annotated[Caller, Depends(RequireSession(Scope.ERASURES_WRITE))]
ModelReader = Annotated[Caller, Depends(RequireSession(Scope.MODELS_READ))]
ModelAdmin = Annotated[Caller, Depends(RequireSession(Scope.MODELS_ADMIN))]
CertificateReader = Annotated[Caller, Depends(RequireSession(Scope.CERTIFICATES_READ))]
WeightsReader = Annotated[Caller, Depends(RequireSession(Scope.CHECKPOINTS_READ))]
Auditor = Annotated[Caller, Depends(RequireSession(Scope.AUDIT_READ))]

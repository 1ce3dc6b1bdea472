"""Who is signed in. The cookie names a key and proves that we wrote it; the key itself is nowhere in it.

Every request looks the key up again, so a revoked key ends its sessions at once. Any gateway of the
deployment can read the cookie, and a sign-out holds for all of them.
"""

import hmac
import secrets
from dataclasses import dataclass
from uuid import UUID

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from sqlalchemy import delete

from app.access import repository
from app.access.cache import Caller
from app.bootstrap import Services
from app.clock import now
from app.db.tables import SignOut

_PURPOSE, _FORMS = "dashboard session", "dashboard form"


@dataclass(frozen=True)
class Session:
    key_id: UUID
    ends_at: int
    nonce: str

    def __str__(self) -> str:
        return f"{self.key_id.hex}.{self.ends_at}.{self.nonce}"


class Sessions:
    def __init__(self, services: Services) -> None:
        self._services = services

    def open(self, caller: Caller) -> Session:
        lasts = int(self._services.settings.session_hours * 3600)
        return Session(caller.key_id, int(now().timestamp()) + lasts, secrets.token_urlsafe(18))

    def read(self, request: Request) -> Session | None:
        """The session of the request's cookie, if it is one of ours and not over; it may have been left."""
        text, _, given = request.cookies.get(self._name(request), "").rpartition(".")
        if not text.isascii() or not given.isascii() or not hmac.compare_digest(given, self._mac(text)):
            return None
        key_id, ends_at, nonce = text.split(".")
        session = Session(UUID(key_id), int(ends_at), nonce)
        return None if session.ends_at <= now().timestamp() else session

    async def identify(self, request: Request) -> Caller | None:
        session = self.read(request)
        return None if session is None else await run_in_threadpool(self._caller, session)

    def leave(self, session: Session) -> None:
        """For good, on every gateway; sign-outs of sessions that are over anyway are forgotten."""
        with self._services.database.writing() as writing:
            writing.execute(delete(SignOut).where(SignOut.ends_at < int(now().timestamp())))
            writing.merge(SignOut(nonce=session.nonce, ends_at=session.ends_at))

    def form_token(self, nonce: str) -> str:
        """What a form must send back: nobody who cannot read our pages knows it."""
        return self._services.vault.keyed_hash(nonce, purpose=_FORMS).hex()

    # Cookies

    def keep(self, request: Request, response: Response, session: Session) -> None:
        lasts = session.ends_at - int(now().timestamp())
        self._set(request, response, self._name(request), f"{session}.{self._mac(str(session))}", lasts)

    def forget(self, request: Request, response: Response) -> None:
        self._set(request, response, self._name(request), "", 0)

    def visit(self, request: Request) -> str:
        """Ties the sign-in form to the browser that asked for it, before there is a session."""
        return request.cookies.get(self._name(request, "visit"), "")

    def remember_visit(self, request: Request, response: Response, nonce: str) -> None:
        self._set(request, response, self._name(request, "visit"), nonce, 3600)

    def _set(self, request: Request, response: Response, name: str, value: str, lasts: int) -> None:
        response.set_cookie(
            name,
            value,
            max_age=lasts,
            httponly=True,
            samesite="strict",
            secure=self._secure(request),
        )

    def _secure(self, request: Request) -> bool:
        wanted = self._services.settings.secure_cookies
        return request.url.scheme == "https" if wanted is None else wanted

    def _name(self, request: Request, what: str = "session") -> str:
        """A browser takes a cookie of the `__Host-` kind from this host alone, over https alone."""
        return f"__Host-lethe-{what}" if self._secure(request) else f"lethe-{what}"

    def _mac(self, text: str) -> str:
        return self._services.vault.keyed_hash(text, purpose=_PURPOSE).hex()

    def _caller(self, session: Session) -> Caller | None:
        with self._services.database.reading() as reading:
            if reading.get(SignOut, session.nonce) is not None:
                return None
            record = repository.live_key(reading, session.key_id)
        return None if record is None else Caller(record.tenant_id, record.id, frozenset(record.scopes))

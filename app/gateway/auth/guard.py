"""FastAPI dependencies that authenticate the caller and check its scopes."""

import asyncio
from functools import partial
from typing import Annotated

from fastapi import Depends, Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase

from app.core import logging
from app.db import audit_log
from app.gateway.auth import service
from app.gateway.auth.caller import Caller, CallerCache
from app.gateway.auth.scopes import Scope
from app.gateway.errors import Forbidden, Unauthenticated, Unavailable
from app.gateway.rate_limits import RequestRates, address_of
from app.services import Services

log = logging.get_logger("gateway")
NO_KEY = "The request has no API key. Send one as `Authorization: Bearer …`."


async def services_of(request: Request) -> Services:
    """Return the gateway's services."""
    services: Services = request.state.services
    return services


async def callers_of(request: Request) -> CallerCache:
    """Return the gateway's cache of callers."""
    callers: CallerCache = request.state.callers
    return callers


ServicesOf = Annotated[Services, Depends(services_of)]
CallersOf = Annotated[CallerCache, Depends(callers_of)]


class Require(SecurityBase):
    """A dependency that admits callers whose key has `scope`.

    It is a single dependency rather than a tree of them. Each one costs time on every request, and
    accepting an erasure takes microseconds.
    """

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.model = HTTPBearer(description="Send an API key as `Authorization: Bearer lethe_…`.")
        self.scheme_name = "ApiKey"

    async def __call__(self, request: Request) -> Caller:
        """Identify the caller by its API key, and admit or refuse it."""
        return self.admit(request, await identify(request))

    def admit(self, request: Request, caller: Caller | None) -> Caller:
        """Return the caller, or raise `Unauthenticated`, `TooManyRequests` or `Forbidden`.

        API and dashboard both decide here, however they identified the caller.
        """
        if caller is None:
            raise Unauthenticated(NO_KEY)
        count_request(request, caller)
        if not caller.may(self.scope):
            raise Forbidden(
                f"Your API key does not have the scope {self.scope}. Use a key that has it.",
                scope=str(self.scope),
            )
        return caller


class RequireKey(SecurityBase):
    """A dependency that admits every caller with a valid key, whatever its scopes."""

    def __init__(self) -> None:
        self.model = HTTPBearer(description="Send an API key as `Authorization: Bearer lethe_…`.")
        self.scheme_name = "ApiKey"

    async def __call__(self, request: Request) -> Caller:
        """Identify the caller by its API key, or raise `Unauthenticated`."""
        caller = await identify(request)
        if caller is None:
            raise Unauthenticated(NO_KEY)
        count_request(request, caller)
        return caller


class RequireOrPublic(Require):
    """As `Require`, but open to everyone if the operator set `public_certificates`. None is the public."""

    async def __call__(self, request: Request) -> Caller | None:  # type: ignore[override]
        """Return None for a request without a key where certificates are public. Otherwise check the key.

        Requests without a key are counted by address.
        """
        services: Services = request.state.services
        if services.settings.public_certificates and "authorization" not in request.headers:
            rates: RequestRates = request.state.rates
            rates.admit_stranger(address_of(request))
            return None
        return await super().__call__(request)


def count_request(request: Request, caller: Caller) -> None:
    """Count a request. Raise `TooManyRequests` if the caller's key or tenant sent too many."""
    rates: RequestRates = request.state.rates
    rates.admit(caller)


async def identify(request: Request) -> Caller | None:
    """Return the caller whose API key the request carries, or None if it carries none.

    Raises `Unauthenticated` if the key is unknown or revoked.
    """
    kind, _, credentials = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not credentials:
        return None
    services: Services = request.state.services
    callers: CallerCache = request.state.callers
    caller = callers.get(credentials)
    if caller is None:
        caller = await _look_up_in_time(services, callers, credentials)
    if caller is None:
        raise Unauthenticated(
            "The API key is unknown or revoked. Check that you copied all of it, or create a new key."
        )
    audit_log.set_actor(caller.actor)
    return caller


async def _look_up_in_time(services: Services, callers: CallerCache, credentials: str) -> Caller | None:
    """Look up a key in one of a few threads. Raise `Unavailable` if the database does not answer in time.

    A thread that waits for a database that hangs cannot be stopped. It must not be one of those that other
    requests need.
    """
    try:
        async with asyncio.timeout(services.settings.database_seconds):
            return await callers.look_up(credentials, partial(_look_up, services))
    except TimeoutError:
        log.error("the database does not answer", waiting_for="an API key")
        raise Unavailable(
            "The database does not answer. Try again in a few seconds.", headers={"Retry-After": "5"}
        ) from None


def _look_up(services: Services, credentials: str) -> Caller | None:
    with services.database.reading() as session:
        return service.authenticate(session, credentials)


HasKey = Annotated[Caller, Depends(RequireKey())]
CanWriteErasures = Annotated[Caller, Depends(Require(Scope.ERASURES_WRITE))]
CanReadErasures = Annotated[Caller, Depends(Require(Scope.ERASURES_READ))]
CanAdminModels = Annotated[Caller, Depends(Require(Scope.MODELS_ADMIN))]
CanReadModels = Annotated[Caller, Depends(Require(Scope.MODELS_READ))]
CanReadCheckpoints = Annotated[Caller, Depends(Require(Scope.CHECKPOINTS_READ))]
CanReadCertificates = Annotated[Caller, Depends(Require(Scope.CERTIFICATES_READ))]
CanAudit = Annotated[Caller, Depends(Require(Scope.AUDIT_READ))]
CanAdminWebhooks = Annotated[Caller, Depends(Require(Scope.WEBHOOKS_ADMIN))]
IsAdmin = Annotated[Caller, Depends(Require(Scope.ADMIN))]
MayBePublic = Annotated[Caller | None, Depends(RequireOrPublic(Scope.CERTIFICATES_READ))]

"""Who calls, and whether they may: dependencies of every endpoint."""

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from app.access import service
from app.access.cache import Caller
from app.access.scopes import Scope
from app.bootstrap import Services
from app.errors import Forbidden, Unauthenticated

_bearer = HTTPBearer(auto_error=False, description="An API key, as `Authorization: Bearer lethe_…`.")
Presented = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


async def services_of(request: Request) -> Services:
    services: Services = request.state.services
    return services


ServicesOf = Annotated[Services, Depends(services_of)]


async def identify(services: ServicesOf, presented: Presented) -> Caller | None:
    if presented is None:
        return None
    caller = services.callers.get(presented.credentials)
    if caller is None:
        caller = await run_in_threadpool(_look_up, services, presented.credentials)
    if caller is None:
        raise Unauthenticated("The API key is unknown or revoked.")
    return caller


def _look_up(services: Services, credentials: str) -> Caller | None:
    with services.database.reading() as session:
        caller = service.authenticate(session, credentials)
    if caller is not None:
        services.callers.put(credentials, caller)
    return caller


Identified = Annotated[Caller | None, Depends(identify)]


def require(scope: Scope) -> Callable[[Caller | None], Awaitable[Caller]]:
    async def guard(caller: Identified) -> Caller:
        if caller is None:
            raise Unauthenticated("Send an API key as `Authorization: Bearer …`.")
        if not caller.may(scope):
            raise Forbidden(f"This needs the scope {scope}.", scope=str(scope))
        return caller

    return guard


def require_or_public(scope: Scope) -> Callable[[Services, Caller | None], Awaitable[Caller | None]]:
    """Open to everyone where the operator said so; None stands for the public."""

    check = require(scope)

    async def guard(services: ServicesOf, caller: Identified) -> Caller | None:
        if caller is None and services.settings.public_certificates:
            return None
        return await check(caller)

    return guard


CanWriteErasures = Annotated[Caller, Depends(require(Scope.ERASURES_WRITE))]
CanReadErasures = Annotated[Caller, Depends(require(Scope.ERASURES_READ))]
CanAdminModels = Annotated[Caller, Depends(require(Scope.MODELS_ADMIN))]
CanReadModels = Annotated[Caller, Depends(require(Scope.MODELS_READ))]
CanReadCheckpoints = Annotated[Caller, Depends(require(Scope.CHECKPOINTS_READ))]
CanReadCertificates = Annotated[Caller, Depends(require(Scope.CERTIFICATES_READ))]
CanAudit = Annotated[Caller, Depends(require(Scope.AUDIT_READ))]
IsAdmin = Annotated[Caller, Depends(require(Scope.ADMIN))]
MayBePublic = Annotated[Caller | None, Depends(require_or_public(Scope.CERTIFICATES_READ))]

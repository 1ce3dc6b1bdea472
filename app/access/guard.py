"""Who calls, and whether they may: dependencies of every endpoint."""

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from app.access import service
from app.access.scopes import Scope
from app.access.service import Caller
from app.bootstrap import Services
from app.errors import Forbidden, Unauthenticated

_bearer = HTTPBearer(auto_error=False, description="An API key, as `Authorization: Bearer lethe_…`.")
Presented = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


def services_of(request: Request) -> Services:
    services: Services = request.state.services
    return services


ServicesOf = Annotated[Services, Depends(services_of)]


def identify(services: ServicesOf, presented: Presented) -> Caller | None:
    if presented is None:
        return None
    with services.database.reading() as session:
        caller = service.authenticate(session, presented.credentials)
    if caller is None:
        raise Unauthenticated("The API key is unknown or revoked.")
    return caller


Identified = Annotated[Caller | None, Depends(identify)]


def require(scope: Scope) -> Callable[[Caller | None], Caller]:
    def guard(caller: Identified) -> Caller:
        if caller is None:
            raise Unauthenticated("Send an API key as `Authorization: Bearer …`.")
        if not caller.may(scope):
            raise Forbidden(f"This needs the scope {scope}.", scope=str(scope))
        return caller

    return guard


def require_or_public(scope: Scope) -> Callable[[Services, Caller | None], Caller | None]:
    """Open to everyone where the operator said so; None stands for the public."""

    def guard(services: ServicesOf, caller: Identified) -> Caller | None:
        if caller is None and services.settings.public_certificates:
            return None
        return require(scope)(caller)

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

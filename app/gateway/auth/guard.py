"""Who calls, and whether they may: dependencies of every endpoint."""

from typing import Annotated

from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase

from app.access import service
from app.access.cache import Caller
from app.access.scopes import Scope
from app.bootstrap import Services
from app.errors import Forbidden, Unauthenticated


async def services_of(request: Request) -> Services:
    services: Services = request.state.services
    return services


ServicesOf = Annotated[Services, Depends(services_of)]


class Require(SecurityBase):
    """One dependency, not a tree of them: each costs every request, and intake is counted in microseconds."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.model = HTTPBearer(description="An API key, as `Authorization: Bearer lethe_…`.")
        self.scheme_name = "ApiKey"

    async def __call__(self, request: Request) -> Caller:
        return self.admit(await identify(request))

    def admit(self, caller: Caller | None) -> Caller:
        """The one decision, however the caller was identified."""
        if caller is None:
            raise Unauthenticated("Send an API key as `Authorization: Bearer …`.")
        if not caller.may(self.scope):
            raise Forbidden(f"This needs the scope {self.scope}.", scope=str(self.scope))
        return caller


class RequireOrPublic(Require):
    """Open to everyone where the operator said so; None stands for the public."""

    async def __call__(self, request: Request) -> Caller | None:  # type: ignore[override]
        services: Services = request.state.services
        if services.settings.public_certificates and "authorization" not in request.headers:
            return None
        return await super().__call__(request)


async def identify(request: Request) -> Caller | None:
    """Whose key came with the request; None when none did."""
    kind, _, credentials = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not credentials:
        return None
    services: Services = request.state.services
    caller = services.callers.get(credentials)
    if caller is None:
        caller = await run_in_threadpool(_look_up, services, credentials)
    if caller is None:
        raise Unauthenticated("The API key is unknown or revoked.")
    return caller


def _look_up(services: Services, credentials: str) -> Caller | None:
    with services.database.reading() as session:
        caller = service.authenticate(session, credentials)
    if caller is not None:
        services.callers.put(credentials, caller)
    return caller


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

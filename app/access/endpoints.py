from uuid import UUID

from fastapi import APIRouter

from app.access import service
from app.access.guard import IsAdmin, ServicesOf
from app.access.schemas import Key, KeyRequest, NewKey
from app.db.tables import ApiKey
from app.errors import NotFound

router = APIRouter(prefix="/v1/api-keys", tags=["access"])


@router.post("", status_code=201)
def create_api_key(body: KeyRequest, caller: IsAdmin, services: ServicesOf) -> NewKey:
    """Make a key for your own tenant. The secret is shown once."""
    with services.database.writing() as session:
        made = service.add_key(session, caller.tenant_id, name=body.name, scopes=body.scopes)
    return NewKey(**_shown(made.record).model_dump(), secret=made.secret)


@router.get("")
def list_api_keys(caller: IsAdmin, services: ServicesOf) -> list[Key]:
    """The keys of your tenant, without their secrets."""
    with services.database.reading() as session:
        return [_shown(record) for record, _ in service.list_keys(session, caller.tenant_id)]


@router.delete("/{key_id}")
def revoke_api_key(key_id: UUID, caller: IsAdmin, services: ServicesOf) -> Key:
    """Make a key useless at once."""
    with services.database.writing() as session:
        try:
            revoked = service.revoke_key(session, key_id, caller.tenant_id)
        except service.AccessError as problem:
            raise NotFound(str(problem)) from None
    services.callers.forget(key_id)
    return _shown(revoked)


def _shown(record: ApiKey) -> Key:
    return Key.model_validate(record, from_attributes=True)

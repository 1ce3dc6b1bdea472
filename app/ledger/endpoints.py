from fastapi import APIRouter

from app.access.guard import CanReadModels, ServicesOf
from app.ledger import service
from app.ledger.schemas import Ledger
from app.models import service as models
from app.models.schemas import ModelName

router = APIRouter(prefix="/v1/models/{name}/ledger", tags=["ledger"])


@router.get("")
def get_ledger(name: ModelName, caller: CanReadModels, services: ServicesOf) -> Ledger:
    """What each release spent, what the model has left, and what each batch's subjects have today."""
    with services.database.reading() as session:
        return service.ledger(session, models.get(session, caller.tenant_id, name))

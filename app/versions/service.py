"""Published checkpoints: only the current one can be had."""

import base64
import re
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy.orm import Session

from app.db.states import ModelState, VersionState
from app.db.tables import Version
from app.errors import Gone, NotFound, RangeNotSatisfiable
from app.models import service as models
from app.versions import repository

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


def downloadable(session: Session, tenant_id: UUID, name: str, number: str) -> Version:
    model = models.get(session, tenant_id, name)
    if model.state == ModelState.RETIRED:
        raise Gone("The model was retired.")
    current = repository.current(session, model.id)
    if number == "current":
        if current is None:
            raise NotFound("The model has no version yet.")
        return current
    version = repository.numbered(session, model.id, int(number))
    if version is None:
        raise NotFound(f"There is no version {number}.")
    if version.state != VersionState.CURRENT:
        assert current is not None
        where = f"/v1/models/{name}/versions/{current.number}/checkpoint"
        raise Gone(f"Version {number} was superseded by version {current.number}.", current=where)
    return version


@dataclass(frozen=True)
class Slice:
    start: int
    length: int
    partial: bool


def slice_of(header: str | None, size: int) -> Slice:
    """One byte range (RFC 9110, 14.2); anything but a single well-formed range means the whole file."""
    matched = _RANGE.fullmatch(header or "")
    if matched is None or matched.group() == "bytes=-":
        return Slice(0, size, partial=False)
    first, last = matched.groups()
    start = int(first) if first else max(size - int(last), 0)
    end = min(int(last), size - 1) if first and last else size - 1
    if start > end or (not first and int(last) == 0):
        raise RangeNotSatisfiable(f"The file has {size} bytes.", headers={"Content-Range": f"bytes */{size}"})
    return Slice(start, end - start + 1, partial=True)


def repr_digest(sha256: str) -> str:
    """RFC 9530."""
    return f"sha-256=:{base64.b64encode(bytes.fromhex(sha256)).decode()}:"

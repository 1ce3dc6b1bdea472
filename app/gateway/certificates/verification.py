"""The checklist as this server runs it: over the pack, the evidence, and the file where it is still here."""

from dataclasses import dataclass
from threading import BoundedSemaphore

from sqlalchemy.orm import Session

from app.bootstrap import Services
from app.certificates import service
from app.db.states import VersionState
from app.db.tables import Certificate, Version
from app.reports.repository import certified_version
from app.storage import StorageError
from certificate.pack import Pack
from certificate.verify import Report, verify

LARGEST_HASHED = 32 << 20  # nobody's visit may make a gateway read gigabytes
FILE_LINE = 3


_looking = BoundedSemaphore(2)  # each look holds a file and a copy of it


@dataclass(frozen=True)
class Material:
    """All that the checklist needs of the database: storage may be slow, and no connection waits for it."""

    pack: Pack
    evidence: bytes
    version: Version | None


def material(session: Session, certificate: Certificate) -> Material:
    pack = service.pack(session, certificate)
    return Material(pack, certificate.evidence, certified_version(session, certificate.id))


def checked(services: Services, given: Material) -> Report:
    """Run the checklist, with the file where it is still here and not too large."""
    with _looking:
        model, why = _file(services, given.version)
        return verify(given.pack, model=model, evidence=given.evidence, without_model=why)


def _file(services: Services, version: Version | None) -> tuple[bytes | None, str]:
    """Return the file, or None and the reason to show."""
    if version is None or version.state != VersionState.CURRENT:
        return None, "the file was superseded and is no longer kept here"
    if version.size > LARGEST_HASHED:
        return None, "the file is large; verify it offline"
    try:
        return b"".join(services.storage.read(version.path)), ""
    except (StorageError, OSError):
        return None, "the file cannot be read here at the moment"

"""The checklist as this server runs it: over the pack, the evidence, and the file where it is still here."""

from dataclasses import dataclass, replace
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
    with _looking:
        model, why = _file(services, given.version)
        report = verify(given.pack, model=model, evidence=given.evidence)
    if model is None:  # not a failure: nobody looked
        lines = tuple(
            replace(line, ok=None, detail=why) if line.number == FILE_LINE else line for line in report.lines
        )
        report = replace(report, lines=lines)
    return report


def _file(services: Services, version: Version | None) -> tuple[bytes | None, str]:
    if version is None or version.state != VersionState.CURRENT:
        return None, "not checked here: the file was superseded and is no longer kept"
    if version.size > LARGEST_HASHED:
        return None, "not checked here: the file is large; verify it offline"
    try:
        return b"".join(services.storage.read(version.path)), ""
    except (StorageError, OSError):
        return None, "not checked here: the file cannot be read at the moment"

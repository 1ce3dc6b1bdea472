"""The checklist as this server runs it: over the pack, the evidence, and the file where it is still here."""

from dataclasses import replace

from sqlalchemy.orm import Session

from app.bootstrap import Services
from app.certificates import service
from app.db.states import VersionState
from app.db.tables import Certificate, Version
from app.reports.repository import certified_version
from app.storage import StorageError
from certificate.verify import Report, verify

LARGEST_HASHED = 32 << 20  # nobody's visit may make a gateway read gigabytes
FILE_LINE = 3


def checked(services: Services, session: Session, certificate: Certificate) -> Report:
    model, why = _file(services, certified_version(session, certificate.id))
    report = verify(
        service.pack(session, certificate),
        model=model,
        evidence=certificate.evidence,
    )
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

"""Verifies a certificate on this server, with its evidence, and with the weights file if it is available."""

from dataclasses import dataclass
from threading import BoundedSemaphore

from sqlalchemy.orm import Session

from app.core.storage import StorageError
from app.db.states import VersionState
from app.db.tables import Certificate, Version
from app.gateway.certificates import service
from app.gateway.certificates.repository import certified_version
from app.gateway.sentences import describe_missing_evidence
from app.services import Services
from lethe.certificate.pack import Pack
from lethe.certificate.verify import VerificationReport, verify

MAX_FILE_BYTES = 32 << 20  # one visit to a page must not make a gateway read gigabytes
MAX_CONCURRENT = 2  # each verification has the file in memory
FILE_LINE = 3


@dataclass(frozen=True)
class Material:
    """Everything from the database that the checklist needs.

    It is loaded first, because the storage may be slow and must not keep a database connection busy.
    """

    pack: Pack
    evidence: bytes | None
    without_evidence: str
    """Why there is no evidence."""
    version: Version | None


def load_material(session: Session, certificate: Certificate) -> Material:
    """Load what the checklist needs from the database."""
    pack = service.pack(session, certificate)
    deleted_at = certificate.evidence_deleted_at
    return Material(
        pack,
        certificate.evidence if deleted_at is None else None,
        "" if deleted_at is None else describe_missing_evidence(deleted_at),
        certified_version(session, certificate.id),
    )


class Verifier:
    """Runs the checklist, for a limited number of certificates at a time."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._running = BoundedSemaphore(MAX_CONCURRENT)

    def run_checklist(self, material: Material) -> VerificationReport:
        """Run the checklist. The weights file is checked if it is available and not too large."""
        with self._running:
            weights, reason = _weights(self._services, material.version)
            return verify(
                material.pack,
                weights=weights,
                evidence=material.evidence,
                without_weights=reason,
                without_evidence=material.without_evidence,
            )


def _weights(services: Services, version: Version | None) -> tuple[bytes | None, str]:
    """Return the weights file, or None and the reason to show."""
    if version is None or version.state != VersionState.CURRENT:
        return None, "the file was superseded and is no longer kept here"
    if version.size > MAX_FILE_BYTES:
        return None, "the file is large; verify it offline"
    try:
        return b"".join(services.storage.read(version.path)), ""
    except (StorageError, OSError):
        return None, "the file cannot be read here at the moment"

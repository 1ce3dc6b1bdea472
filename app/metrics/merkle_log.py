"""Is the certificate log what its signed head says? A quick look; the whole proof is an auditor's."""

from collections.abc import Iterator
from functools import partial

from prometheus_client.metrics_core import Metric
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.certificates import repository
from app.db.tables import Certificate, LogHead
from app.metrics.families import gauge
from certificate import merkle
from certificate.errors import LogProofInvalid
from certificate.note import parse_checkpoint, parse_note


def figures(session: Session) -> Iterator[Metric]:
    head = repository.log_head(session)
    logged = session.scalar(select(func.count()).select_from(Certificate)) or 0
    size = head.size if head is not None else 0
    yield gauge("lethe_log_size", "Leaves of the certificate log.", size)
    statements = (head.statements or 0) if head is not None else 0
    whole = size == logged + statements
    consistent = whole and (head is None or size == 0 or _matches(session, head))
    text = "1: head, stored tree and number of entries agree. 0: something was changed behind the service."
    yield gauge("lethe_log_consistent", text, int(consistent))


def _matches(session: Session, head: LogHead) -> bool:
    """The root of the stored tree is the signed one."""
    try:
        signed = parse_checkpoint(parse_note(head.note)[0])
        root = repository.over_log(session, partial(merkle.root, head.size))
    except (LogProofInvalid, KeyError):
        return False
    return (signed.size, signed.root) == (head.size, root)

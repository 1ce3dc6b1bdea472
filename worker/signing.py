"""The signing key: from the environment, or from a file that is made on first start. Only workers hold it."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.tables import LogHead, SigningKeyRecord
from app.settings import Settings
from app.vault import write_private
from certificate.keys import Signer, SigningKey


def load_signer(settings: Settings) -> Signer:
    given = settings.signing_key.get_secret_value()
    if given:
        return SigningKey.from_pem(given)
    path = settings.signing_key_path
    if not path.exists():
        write_private(path, SigningKey.generate().to_pem().encode())
    return SigningKey.from_pem(path.read_text())


def announce_key(session: Session, signer: Signer, log_size: int) -> None:
    """Make the public half known; a new key takes over from the next place in the log.

    Called under the lock on the log's head, so that no leaf falls between two windows.
    """
    newest = session.scalar(select(SigningKeyRecord).where(SigningKeyRecord.valid_until.is_(None)))
    if newest is not None and newest.key_id == signer.key_id:
        return
    if session.get(SigningKeyRecord, signer.key_id) is not None:
        raise RuntimeError("this signing key was replaced by a newer one; a retired key signs nothing")
    if newest is not None:
        newest.valid_until = log_size
    session.add(SigningKeyRecord(key_id=signer.key_id, public_pem=signer.public_pem, valid_from=log_size))


def log_size(session: Session) -> int:
    head = session.get(LogHead, 1)
    return head.size if head else 0

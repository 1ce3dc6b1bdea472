"""The signing key: from the environment or from a file. Only workers hold it.

A key that the log does not know signs nothing: one is replaced on request, never because a file was lost.
"""

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.tables import SigningKeyRecord
from app.settings import Settings
from app.vault import KeyProblem, read_key, write_private
from certificate.keys import Signer, SigningKey


def load_signer(settings: Settings) -> Signer:
    given = settings.signing_key.get_secret_value()
    path = settings.signing_key_path
    if not given and not path.exists() and settings.may_create_keys:
        write_private(path, SigningKey.generate().to_pem().encode())
    try:
        return SigningKey.from_pem(given or read_key(path, "signing key"))
    except ValueError:
        raise KeyProblem("the signing key is not a P-256 key in PEM") from None


def announce_key(session: Session, signer: Signer, log_size: int) -> None:
    """Make the public half of the very first key known; any later one must be known already.

    Called under the lock on the log's head, so that no leaf falls between two windows.
    """
    current = _current(session)
    if current is None:
        session.add(SigningKeyRecord(key_id=signer.key_id, public_pem=signer.public_pem, valid_from=log_size))
    elif current.key_id != signer.key_id:
        raise KeyProblem(_stranger(session, signer))


def rotate(session: Session, signer: Signer, log_size: int) -> None:
    """Let this key take over, under the lock on the log's head.

    The new key signs from the next place, n, on. The old key's window ends after n, not before it: "no data
    held" statements of the first format are dated by the size of the log, so those it signed since the last
    leaf are dated n, and must verify for ever. At n both keys are valid. Whoever holds the old key gains
    nothing by that: leaves and tree heads of its own window it can sign anyway, and a second leaf at one
    place fails consistency proofs.
    """
    current = _current(session)
    if current is not None and current.key_id == signer.key_id:
        return
    if session.get(SigningKeyRecord, signer.key_id) is not None:
        raise KeyProblem(_stranger(session, signer))
    if current is not None:
        current.valid_until = log_size + 1
    session.add(SigningKeyRecord(key_id=signer.key_id, public_pem=signer.public_pem, valid_from=log_size))


def check_known(session: Session, settings: Settings) -> None:
    """Before any job: the key is there, and is the one in use, if one is."""
    current = _current(session)
    if current is not None and not settings.signing_key.get_secret_value():
        read_key(settings.signing_key_path, "signing key")  # one that is missing must not be made anew
    signer = load_signer(settings)
    if current is not None and current.key_id != signer.key_id:
        raise KeyProblem(_stranger(session, signer))


def _current(session: Session) -> SigningKeyRecord | None:
    return session.scalar(select(SigningKeyRecord).where(SigningKeyRecord.valid_until.is_(None)))


def _stranger(session: Session, signer: Signer) -> str:
    if session.get(SigningKeyRecord, signer.key_id) is not None:
        return "this signing key was replaced by a newer one; a retired key signs nothing"
    return (
        "this signing key is not the one in use; if it shall replace it, "
        "run `lethe worker --rotate-signing-key` once"
    )

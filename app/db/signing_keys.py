"""The signing keys of the certificate log: their public halves and the log indices each may sign at."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.core.vault import KeyProblem
from app.db.tables import SigningKeyRecord
from lethe.certificate.keys import Signer

PLACES = "LETHE_SIGNING_KEY, or in the file that LETHE_SIGNING_KEY_FILE names"


def announce_key(session: Session, signer: Signer, log_size: int) -> None:
    """Add the public half of the log's first key. Raise `KeyProblem` if another key is already in use.

    Call this with the tree head's row locked, so that no leaf falls between the windows of two keys.
    """
    current = current_key(session)
    if current is None:
        session.add(SigningKeyRecord(key_id=signer.key_id, public_pem=signer.public_pem, valid_from=log_size))
    elif current.key_id != signer.key_id:
        raise KeyProblem(describe_unknown_key(session, signer))


def rotate(session: Session, signer: Signer, log_size: int, place: str = PLACES) -> None:
    """Let this key take over the log. The caller holds the tree head's lock and signs the head again.

    The new key signs from the next index, n, on. The old key's window ends after n, not before it: "no data
    held" statements of the first format are dated by the size of the log, so those signed since the last leaf
    are dated n and must always verify. At n both keys are valid. This gives the holder of the old key no
    advantage: a tree head by a retired key is accepted only with a proof that leads from it to a head by the
    key in use, and no such proof exists for a leaf that is not in this log.

    `place` says where the key was read from, for error messages. Raises `KeyProblem` if the key is in use or
    retired.
    """
    current = current_key(session)
    if current is not None and current.key_id == signer.key_id:
        raise KeyProblem(
            f"nothing was rotated: the signing key in {place} is already the one in use. "
            "Put the new key there and run the command again"
        )
    if session.get(SigningKeyRecord, signer.key_id) is not None:
        raise KeyProblem(describe_unknown_key(session, signer, place))
    if current is not None:
        current.valid_until = log_size + 1
    session.add(SigningKeyRecord(key_id=signer.key_id, public_pem=signer.public_pem, valid_from=log_size))


def current_key(session: Session) -> SigningKeyRecord | None:
    """Return the key in use, or None if the log has none yet."""
    return session.scalar(select(SigningKeyRecord).where(SigningKeyRecord.valid_until.is_(None)))


def describe_unknown_key(session: Session, signer: Signer, place: str = PLACES) -> str:
    """Explain why this key may not sign, and what to do, in one line."""
    if session.get(SigningKeyRecord, signer.key_id) is not None:
        return (
            f"the signing key in {place} was replaced by a newer one, and a retired key may not sign. "
            "Put the new key there"
        )
    return (
        f"the signing key in {place} is not the one in use; put that key there, or, to replace it, run "
        "`lethe worker --rotate-signing-key` once with the new key"
    )

"""The signing key, read from the environment or from a file. Only workers hold it.

A key that the certificate log does not know signs nothing. Keys are rotated on request; a lost file is never
replaced by a new key.
"""

from sqlalchemy.orm import Session

from app.core.settings import Settings
from app.core.vault import KeyProblem, read_key, write_private
from app.db import signing_keys
from lethe.certificate.keys import Signer, SigningKey


def load_signer(settings: Settings) -> Signer:
    """Load the signing key. Create its file first if there is none and the settings allow that."""
    pem = settings.signing_key.get_secret_value()
    path = settings.signing_key_path
    if not pem and not path.exists() and settings.may_create_keys:
        write_private(path, SigningKey.generate().to_pem().encode())
    try:
        return SigningKey.from_pem(pem or read_key(path, "signing key"))
    except ValueError:
        raise KeyProblem("the signing key is not a P-256 key in PEM") from None


def key_place(settings: Settings) -> str:
    """Describe to an operator where this process reads its signing key from."""
    if settings.signing_key.get_secret_value():
        return "the environment variable LETHE_SIGNING_KEY"
    return f"the file {settings.signing_key_path}, which LETHE_SIGNING_KEY_FILE can change"


def check_known(session: Session, settings: Settings) -> None:
    """Raise `KeyProblem` unless the signing key exists and is the one in use, if there is one yet."""
    current = signing_keys.current_key(session)
    if current is not None and not settings.signing_key.get_secret_value():
        read_key(settings.signing_key_path, "signing key")  # a missing key must not be replaced by a new one
    signer = load_signer(settings)
    if current is not None and current.key_id != signer.key_id:
        raise KeyProblem(signing_keys.describe_unknown_key(session, signer, key_place(settings)))

"""The key and certificate that sign OpenDSR answers and callbacks. They belong to the operator's domain.

This is not the signing key of certificates, which only workers hold. Whoever holds it can answer OpenDSR
requests in the operator's name, but cannot sign a certificate.
"""

import base64
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from app.core.settings import Settings, SettingsError

DOMAIN_HEADER, SIGNATURE_HEADER = "X-OpenDSR-Processor-Domain", "X-OpenDSR-Signature"


@dataclass(frozen=True)
class OpenDsrKey:
    """A private key with the certificate for `domain`."""

    domain: str
    certificate: bytes
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey

    def signed_headers(self, body: bytes) -> dict[str, str]:
        """Return the headers that authenticate a body: the domain, and a signature over its SHA-256."""
        if isinstance(self.key, rsa.RSAPrivateKey):
            signature = self.key.sign(body, padding.PKCS1v15(), hashes.SHA256())
        else:
            signature = self.key.sign(body, ec.ECDSA(hashes.SHA256()))
        return {DOMAIN_HEADER: self.domain, SIGNATURE_HEADER: base64.b64encode(signature).decode()}


def load_opendsr_key(settings: Settings) -> OpenDsrKey | None:
    """Load the key that the settings name, or return None if OpenDSR is off.

    Raises `SettingsError` if the files do not fit together or to the domain of LETHE_PUBLIC_URL.
    """
    if settings.opendsr_key_file is None and settings.opendsr_certificate_file is None:
        return None
    if settings.opendsr_key_file is None or settings.opendsr_certificate_file is None:
        raise SettingsError("LETHE_OPENDSR_KEY_FILE: set it together with LETHE_OPENDSR_CERTIFICATE_FILE")
    domain = urlsplit(settings.public_url).hostname
    if not domain:
        raise SettingsError("LETHE_PUBLIC_URL: must be set for OpenDSR")
    raw = _read(settings.opendsr_certificate_file, "LETHE_OPENDSR_CERTIFICATE_FILE")
    try:
        key = serialization.load_pem_private_key(
            _read(settings.opendsr_key_file, "LETHE_OPENDSR_KEY_FILE"), password=None
        )
    except (ValueError, TypeError):
        raise SettingsError("LETHE_OPENDSR_KEY_FILE: is not a private key in PEM") from None
    if not isinstance(key, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
        raise SettingsError("LETHE_OPENDSR_KEY_FILE: must be an RSA or elliptic-curve key")
    try:
        certificate = x509.load_pem_x509_certificate(raw)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        raise SettingsError("LETHE_OPENDSR_CERTIFICATE_FILE: is not a certificate with host names") from None
    if certificate.public_key() != key.public_key():
        raise SettingsError("LETHE_OPENDSR_CERTIFICATE_FILE: belongs to another key")
    if domain not in names.get_values_for_type(x509.DNSName):
        raise SettingsError("LETHE_OPENDSR_CERTIFICATE_FILE: is not for the host of LETHE_PUBLIC_URL")
    return OpenDsrKey(domain, raw, key)


def _read(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        raise SettingsError(f"{name}: cannot be read ({type(problem).__name__})") from None

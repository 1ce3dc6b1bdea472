"""Signs a weights file so that the OpenSSF tool `model_signing` can verify it.

The format is https://model_signing/signature/v1.0: an in-toto statement in a DSSE envelope in a Sigstore
bundle. A model that is one file has the single resource ".", and the subject's digest is the SHA-256 over the
digests of the resources.
"""

from __future__ import annotations

import hashlib

from lethe.certificate.envelope import sign, to_bundle
from lethe.certificate.keys import Signer
from lethe.certificate.records import canonical_json
from lethe.certificate.statement import STATEMENT_TYPE

PREDICATE_TYPE = "https://model_signing/signature/v1.0"


def sign_model(*, file_name: str, sha256: str, signer: Signer) -> bytes:
    """Return the contents of `model.sig` for a weights file with this SHA-256."""
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [
            {"name": file_name, "digest": {"sha256": hashlib.sha256(bytes.fromhex(sha256)).hexdigest()}}
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "serialization": {
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": False,
                "ignore_paths": [],
            },
            "resources": [{"name": ".", "algorithm": "sha256", "digest": sha256}],
        },
    }
    # The tool finds a key by the digest of its PEM text. Our key ids are digests of the DER form.
    hint = hashlib.sha256(signer.public_pem.encode()).hexdigest()
    return canonical_json(to_bundle(sign(canonical_json(statement), signer), hint=hint))

"""A signature over the checkpoint file that the OpenSSF `model_signing` tool verifies.

Format: https://model_signing/signature/v1.0, an in-toto statement in DSSE in a Sigstore bundle. A model that
is one file has the single resource "."; the subject's digest is the SHA-256 over the resources' digests.
"""

from __future__ import annotations

import hashlib

from certificate.envelope import sign, to_bundle
from certificate.keys import Signer
from certificate.records import canonical_json
from certificate.statement import STATEMENT_TYPE

PREDICATE_TYPE = "https://model_signing/signature/v1.0"


def sign_model(*, file_name: str, sha256: str, signer: Signer) -> bytes:
    """The contents of `model.sig`, for a checkpoint with this SHA-256."""
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
    # The tool looks a key up by the digest of its PEM text, not of its DER as key ids here are.
    hint = hashlib.sha256(signer.public_pem.encode()).hexdigest()
    return canonical_json(to_bundle(sign(canonical_json(statement), signer), hint=hint))

"""Makes the golden files of format version 1, once. They are kept for ever, so this refuses to run again.

    python tests/golden/make_v1.py

The private key exists in this process only; what is written cannot be extended, only verified.
"""

from __future__ import annotations

import hashlib
import sys
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = HERE / "v1"


def main() -> None:
    if FOLDER.exists():
        sys.exit(f"{FOLDER} exists: golden files are never made again")
    sys.path.insert(0, str(HERE.parent / "unit" / "certificate"))
    from certificate_cases import Issuer
    from certificate_evidence_cases import KINDS

    from certificate.keys import SigningKey
    from certificate.receipt import issue_no_data_held

    key = SigningKey.generate()
    for kind in KINDS:
        write_kind(Issuer(key, strangers=5), kind)
    issuer = Issuer(key)
    (FOLDER / "keys.json").write_bytes(issuer.keys.to_bytes())
    (FOLDER / "public-key.pem").write_text(key.public_pem)
    held = issue_no_data_held(
        request_id="request-1",
        subject_id="subject-0",
        model=issuer.model,
        model_id=issuer.model_id,
        log_size=6,
        issued_at=datetime(2025, 1, 2, tzinfo=UTC),
        signer=key,
    )
    (FOLDER / "no-data-held.json").write_bytes(held.raw)


def write_kind(issuer, kind: str) -> None:
    """A release, a discarded draw, a retrain and another release, then the certificate itself."""
    from certificate.model_signature import sign_model

    for earlier in ("tr-proved", "discarded-conditional", "retrain-proved", "tr-conditional"):
        issuer.issue(earlier)
    issued = issuer.issue(kind)
    folder = FOLDER / kind
    folder.mkdir(parents=True)
    (folder / "pack.json").write_bytes(issuer.pack().to_bytes())
    (folder / "evidence.json").write_bytes(issued.evidence.to_bytes())
    (folder / "receipt.json").write_bytes(issued.receipts[0].to_bytes())
    (folder / "earlier-head.txt").write_text(issuer.head(3), encoding="utf-8")
    if issued.model is not None:
        (folder / "model.safetensors").write_bytes(issued.model)
        sha256 = hashlib.sha256(issued.model).hexdigest()
        signature = sign_model(file_name="model.safetensors", sha256=sha256, signer=issuer.key)
        (folder / "model.sig").write_bytes(signature)


if __name__ == "__main__":
    main()

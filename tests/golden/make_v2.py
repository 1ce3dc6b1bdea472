"""Makes the golden files of format version 2, once. They are kept for ever, so this refuses to run again.

    python tests/golden/make_v2.py

The private key exists in this process only; what is written cannot be extended, only verified.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = HERE / "v2"


def main() -> None:
    if FOLDER.exists():
        sys.exit(f"{FOLDER} exists: golden files are never made again")
    sys.path.insert(0, str(HERE.parent / "unit" / "certificate"))
    from certificate_cases import Issuer
    from certificate_evidence_cases import KINDS

    from certificate.assurance import CONVEX_FAMILIES
    from certificate.keys import SigningKey

    key = SigningKey.generate()
    for kind, (_, _, _, family, _) in KINDS.items():
        convex = family in CONVEX_FAMILIES
        write_kind(Issuer(key, strangers=5, family=family if convex else "mlp"), kind, convex=convex)
    issuer = Issuer(key)
    (FOLDER / "keys.json").write_bytes(issuer.keys.to_bytes())
    (FOLDER / "public-key.pem").write_text(key.public_pem)
    write_no_data_held(issuer)


def write_kind(issuer, kind: str, *, convex: bool) -> None:
    """A release, a discarded draw, a retrain and another release, then the certificate itself."""
    from certificate.model_signature import sign_model
    from certificate.statement import weights_file_name

    tier = "proved" if convex else "conditional"
    for earlier in (f"tr-{tier}", f"discarded-{tier}", "retrain-proved", f"tr-{tier}"):
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
        name = weights_file_name(issuer.model, issued.predicate.version)
        (folder / "model.sig").write_bytes(sign_model(file_name=name, sha256=sha256, signer=issuer.key))


def write_no_data_held(issuer) -> None:
    """A logged statement with its place, as a person receives it."""
    from certificate_cases import BEGUN

    from certificate.merkle import leaf_hash
    from certificate.receipt import issue_no_data_held, no_data_receipt

    envelope = issue_no_data_held(
        request_id="request-1",
        subject_id="subject-0",
        model=issuer.model,
        model_id=issuer.model_id,
        issued_at=BEGUN,
        signer=issuer.key,
    )
    index = issuer.log.append(leaf_hash(bytes.fromhex(envelope.digest)))
    path = [step.hex() for step in issuer.log.inclusion_proof(index)]
    receipt = no_data_receipt(envelope, checkpoint=issuer.head(), index=index, path=path, keys=issuer.keys)
    (FOLDER / "no-data-held.json").write_bytes(receipt.to_bytes())


if __name__ == "__main__":
    main()

"""Makes the golden files of format version 2. They are kept forever, so this refuses to run again.

    python -m tests.golden.make_v2

The private key exists only in this process, so the files can be verified but never extended.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = HERE / "v2"


def main() -> None:
    """Write all golden files, unless they exist."""
    if FOLDER.exists():
        sys.exit(f"{FOLDER} already exists, and golden files are never made again")
    from lethe.certificate.assurance import CONVEX_FAMILIES
    from lethe.certificate.keys import SigningKey
    from tests.unit.certificate.certificate_cases import Issuer
    from tests.unit.certificate.certificate_evidence_cases import KINDS

    key = SigningKey.generate()
    for kind, (_, _, _, family, _) in KINDS.items():
        convex = family in CONVEX_FAMILIES
        write_kind(Issuer(key, strangers=5, family=family if convex else "mlp"), kind, convex=convex)
    issuer = Issuer(key)
    (FOLDER / "keys.json").write_bytes(issuer.keys.to_bytes())
    (FOLDER / "public-key.pem").write_text(key.public_pem)
    write_no_data_held(issuer)


def write_kind(issuer, kind: str, *, convex: bool) -> None:
    """Write the files of one kind, after a release, a discarded draw, a retrain and another release."""
    from lethe.certificate.model_signature import sign_model
    from lethe.certificate.statement import weights_file_name

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
    if issued.weights is not None:
        (folder / "model.safetensors").write_bytes(issued.weights)
        sha256 = hashlib.sha256(issued.weights).hexdigest()
        name = weights_file_name(issuer.model, issued.predicate.version)
        (folder / "model.sig").write_bytes(sign_model(file_name=name, sha256=sha256, signer=issuer.key))


def write_no_data_held(issuer) -> None:
    """Write a logged "no data held" statement with its place, as a person receives it."""
    from lethe.certificate.merkle import leaf_hash
    from lethe.certificate.receipt import build_no_data_receipt, issue_no_data_held
    from tests.unit.certificate.certificate_cases import BEGUN

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
    receipt = build_no_data_receipt(
        envelope, tree_head=issuer.head(), index=index, path=path, keys=issuer.keys
    )
    (FOLDER / "no-data-held.json").write_bytes(receipt.to_bytes())


if __name__ == "__main__":
    main()

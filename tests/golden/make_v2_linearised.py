"""Makes golden files of linearised networks. They are kept forever, so this refuses to run again.

    python -m tests.golden.make_v2_linearised

The private key exists only in this process, so the files can be verified but never extended.
"""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "v2-linearised"
MODELS: dict[str, tuple[str, tuple[str, ...]]] = {
    "mlp": ("mlp", ()),
    "allcnn-head": ("allcnn", ("layers.3", "head")),
    "resnet18": ("resnet18", ("blocks.7", "head")),
    "plug-in": ("vision-transformer", ()),
}


def main() -> None:
    """Write all golden files, unless they exist."""
    if FOLDER.exists():
        sys.exit(f"{FOLDER} already exists, and golden files are never made again")
    from lethe.certificate.keys import SigningKey
    from tests.unit.certificate.certificate_cases import Issuer

    key = SigningKey.generate()
    for name, (family, layers) in MODELS.items():
        issuer = Issuer(key, strangers=5, family=family, layers=layers)
        for earlier in ("tr-proved", "discarded-proved", "retrain-proved", "tr-proved"):
            issuer.issue(earlier)
        issued = issuer.issue("tr-proved")
        folder = FOLDER / name
        folder.mkdir(parents=True)
        (folder / "pack.json").write_bytes(issuer.pack().to_bytes())
        (folder / "evidence.json").write_bytes(issued.evidence.to_bytes())
        (folder / "receipt.json").write_bytes(issued.receipts[0].to_bytes())
        (folder / "earlier-head.txt").write_text(issuer.head(3), encoding="utf-8")
        assert issued.weights is not None
        (folder / "model.safetensors").write_bytes(issued.weights)
    (FOLDER / "keys.json").write_bytes(issuer.keys.to_bytes())


if __name__ == "__main__":
    main()

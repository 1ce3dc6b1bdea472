"""Makes golden files of exported models. They are kept forever, so this refuses to run again.

    python -m tests.golden.make_v2_onnx

The private key exists only in this process, so the files can be verified but never extended.
"""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "v2-onnx"


def main() -> None:
    """Write all golden files, unless they exist."""
    if FOLDER.exists():
        sys.exit(f"{FOLDER} already exists, and golden files are never made again")
    from lethe.certificate.keys import SigningKey
    from lethe.certificate.representation import CertifiedRepresentation
    from tests.unit.certificate.certificate_cases import Issuer
    from tests.unit.certificate.onnx_graphs import ROW, WIDTH, image_graph, text_graph, vector_graph
    from tests.unit.certificate.representation_cases import IMAGE, TEXT, certified

    key = SigningKey.generate()
    vector, image, text = vector_graph(), image_graph(17), text_graph(21)
    models: dict[str, tuple[str, bytes | None, CertifiedRepresentation | None]] = {
        "vector": (
            "softmax",
            vector,
            certified(ROW, graph=vector, outputs=("hidden",), normalisation="unit"),
        ),
        "image": ("softmax", image, certified(IMAGE, graph=image, outputs=("wide", "means"))),
        "text": ("softmax", text, certified(TEXT, graph=text, outputs=("mean",))),
        "plain-softmax": ("softmax", None, None),
        "plain-logistic": ("logistic", None, None),
        "plain-ridge": ("ridge", None, None),
    }
    for name, (family, graph, representation) in models.items():
        shape = (10, WIDTH) if family == "softmax" else (1, 999)
        issuer = Issuer(key, strangers=5, family=family, representation=representation, shape=shape)
        write_model(issuer, name, graph)
    (FOLDER / "keys.json").write_bytes(issuer.keys.to_bytes())


def write_model(issuer, name: str, graph: bytes | None) -> None:
    """Write the files of one model, after a release, a discarded draw, a retrain and another release."""
    from lethe.certificate.onnx_file import head_of, join

    for earlier in ("tr-proved", "discarded-proved", "retrain-proved", "tr-proved"):
        issuer.issue(earlier)
    issued = issuer.issue("tr-proved")
    folder = FOLDER / name
    folder.mkdir(parents=True)
    (folder / "pack.json").write_bytes(issuer.pack().to_bytes())
    (folder / "evidence.json").write_bytes(issued.evidence.to_bytes())
    (folder / "receipt.json").write_bytes(issued.receipts[0].to_bytes())
    (folder / "earlier-head.txt").write_text(issuer.head(3), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(issued.weights)
    (folder / "model.onnx").write_bytes(join(graph, head_of(issued.weights, issued.predicate)))


if __name__ == "__main__":
    main()

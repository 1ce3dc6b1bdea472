"""Representations as certificates state them, over files that need not be real graphs."""

from __future__ import annotations

import hashlib

from lethe.certificate.representation import (
    CertifiedRepresentation,
    ImageInput,
    Representation,
    RowInput,
    TextInput,
    VectorInput,
)

GRAPH = b"the bytes of a graph"
TOKENIZER = b'{"version":"1.0"}'

IMAGE = ImageInput(kind="image", shape=(3, 8, 8), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
TEXT = TextInput(kind="text", max_length=128)
VECTOR = VectorInput(kind="vector", width=12)


def certified(
    row: RowInput = IMAGE,
    *,
    graph: bytes = GRAPH,
    outputs: tuple[str, ...] = ("features",),
    normalisation: str = "none",
    origin: str = "EfficientNet-Lite0, trained on ImageNet-1k",
) -> CertifiedRepresentation:
    """Return a representation with this graph, and with a tokenizer if its rows are texts."""
    declaration = Representation.model_validate(
        {
            "input": row,
            "outputs": outputs,
            "normalisation": normalisation,
            "origin": origin,
            "licence": "Apache-2.0",
        }
    )
    graph_sha256 = hashlib.sha256(graph).hexdigest()
    tokenizer = hashlib.sha256(TOKENIZER).hexdigest() if declaration.needs_tokenizer else None
    return CertifiedRepresentation(
        digest=declaration.digest(graph_sha256, tokenizer),
        declaration=declaration,
        graph_sha256=graph_sha256,
        graph_bytes=len(graph),
        tokenizer_sha256=tokenizer,
        row_check="rows-run-alone" if declaration.needs_tokenizer else "batches-compared",
    )

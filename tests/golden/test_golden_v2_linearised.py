"""Certificates of linearised networks verify forever. Their files are never made again."""

from __future__ import annotations

from pathlib import Path

import pytest

from lethe.certificate.verify import verify

FOLDER = Path(__file__).parent / "v2-linearised"
MODELS = ["allcnn-head", "mlp", "plug-in", "resnet18"]


def test_one_certificate_per_kind_of_network_is_kept():
    assert sorted(path.name for path in FOLDER.iterdir() if path.is_dir()) == MODELS


@pytest.mark.parametrize("name", MODELS)
def test_a_golden_certificate_of_a_linearised_network_verifies(name):
    folder = FOLDER / name
    report = verify(
        (folder / "pack.json").read_bytes(),
        weights=folder / "model.safetensors",
        evidence=(folder / "evidence.json").read_bytes(),
        receipt=(folder / "receipt.json").read_bytes(),
        since=(folder / "earlier-head.txt").read_bytes(),
        keys=(FOLDER / "keys.json").read_bytes(),
        subject="subject-0",
    )
    assert report.verified, report
    assert report.verdict == "verified"
    assurance = next(line.detail for line in report.lines if line.number == 5)
    assert "linearised at its anchor" in assurance

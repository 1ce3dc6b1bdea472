"""Certificates with a representation, and exported ONNX files, verify forever. They are never made again."""

from __future__ import annotations

from pathlib import Path

import pytest

from lethe.certificate.cli import run_verify
from lethe.certificate.verify import verify

FOLDER = Path(__file__).parent / "v2-onnx"
MODELS = ["image", "plain-logistic", "plain-ridge", "plain-softmax", "text", "vector"]


def test_one_export_per_input_kind_and_family_is_kept():
    assert sorted(path.name for path in FOLDER.iterdir() if path.is_dir()) == MODELS


@pytest.mark.parametrize("name", MODELS)
def test_a_golden_certificate_verifies_with_its_weights_with_its_onnx_file_and_with_both(name):
    folder = FOLDER / name
    weights, onnx = folder / "model.safetensors", folder / "model.onnx"
    for files in ({"weights": weights}, {"onnx": onnx}, {"weights": weights, "onnx": onnx}):
        report = verify(
            folder / "pack.json",
            evidence=folder / "evidence.json",
            receipt=folder / "receipt.json",
            since=folder / "earlier-head.txt",
            keys=FOLDER / "keys.json",
            subject="subject-0",
            **files,
        )
        assert report.verdict == "verified", report.failed
        assert [line.number for line in report.lines] == list(range(1, 11 if "onnx" in files else 10))
        assert bool(report.representation) != name.startswith("plain")


@pytest.mark.parametrize("name", MODELS)
def test_a_golden_certificate_fails_with_another_onnx_file(name, tmp_path):
    other = tmp_path / "model.onnx"
    other.write_bytes((FOLDER / name / "model.onnx").read_bytes() + b"\0")
    lines: list[str] = []
    assert run_verify(pack=FOLDER / name / "pack.json", onnx=other, write=lines.append) == 1
    assert any(line.startswith("✗ 10.") for line in lines)


def test_no_private_key_is_kept():
    assert not [path for path in FOLDER.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]

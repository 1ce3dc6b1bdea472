"""Certificates of format version 2 verify forever. Their files are never made again."""

from __future__ import annotations

from pathlib import Path

import pytest

from lethe.certificate.cli import run_verify
from lethe.certificate.keys import KeySet, PublicKey
from lethe.certificate.receipt import verify_no_data_held
from lethe.certificate.verify import verify

FOLDER = Path(__file__).parent / "v2"
KINDS = [
    "discarded-conditional",
    "discarded-proved",
    "guo2020-as-published",
    "retrain-proved",
    "tr-conditional",
    "tr-heuristic",
    "tr-paper-as-published",
    "tr-proved",
    "tr-proved-classical",
    "zhang2024-as-published",
]


def test_one_certificate_per_mechanism_and_tier_is_kept():
    assert sorted(path.name for path in FOLDER.iterdir() if path.is_dir()) == KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_a_golden_certificate_verifies_with_and_without_its_file(kind):
    folder = FOLDER / kind
    model = folder / "model.safetensors"
    for file in (model if model.exists() else None, None):
        report = verify(
            (folder / "pack.json").read_bytes(),
            weights=file,
            evidence=(folder / "evidence.json").read_bytes(),
            receipt=(folder / "receipt.json").read_bytes(),
            since=(folder / "earlier-head.txt").read_bytes(),
            keys=(FOLDER / "keys.json").read_bytes(),
            subject="subject-0",
        )
        assert report.verified, report
        gone = kind.startswith("discarded")
        whole = file is not None or gone
        assert report.verdict == ("verified" if whole else "verified without the model file")
        assert [line.number for line in report.lines if line.ok is None] == ([] if whole else [3])
    assert model.exists() != gone


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("discarded")])
def test_a_golden_certificate_fails_with_another_file(kind, tmp_path):
    other = tmp_path / "model.safetensors"
    other.write_bytes((FOLDER / kind / "model.safetensors").read_bytes() + b"\0")
    lines: list[str] = []
    assert run_verify(pack=FOLDER / kind / "pack.json", model=other, write=lines.append) == 1
    assert any(line.startswith("✗ 3.") for line in lines)


def test_golden_keys_and_receipt_verify():
    keys = KeySet.read((FOLDER / "keys.json").read_bytes(), "keys")
    assert keys.keys[0] == PublicKey.from_pem((FOLDER / "public-key.pem").read_text())
    held = verify_no_data_held((FOLDER / "no-data-held.json").read_bytes(), keys, subject_id="subject-0")
    assert held.request_id == "request-1"


def test_no_private_key_is_kept():
    assert not [path for path in FOLDER.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]

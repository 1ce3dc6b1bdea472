"""`lethe.verify` is the verifier as a function, over paths, bytes or parsed objects."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lethe
from lethe.certificate.evidence import EvidenceRecord
from lethe.certificate.keys import KeySet
from lethe.certificate.pack import EarlierHead, LogConsistency, read_pack
from lethe.certificate.receipt import NoDataReceipt, Receipt

GOLDEN = Path(__file__).parents[2] / "golden" / "v2"
FOLDER = GOLDEN / "tr-proved"
FILES = {
    "pack": FOLDER / "pack.json",
    "keys": GOLDEN / "keys.json",
    "evidence": FOLDER / "evidence.json",
    "receipt": FOLDER / "receipt.json",
    "since": FOLDER / "earlier-head.txt",
    "weights": FOLDER / "model.safetensors",
}


def verify(inputs: dict[str, Any]) -> lethe.VerificationReport:
    """Call `lethe.verify` with everything that it takes."""
    return lethe.verify(inputs.pop("pack"), subject="subject-0", **inputs)


def parsed(data: dict[str, bytes]) -> dict[str, Any]:
    return {
        "pack": read_pack(data["pack"]),
        "keys": KeySet.read(data["keys"], "keys"),
        "evidence": EvidenceRecord.read(data["evidence"], "evidence"),
        "receipt": Receipt.read(data["receipt"], "receipt"),
        "since": EarlierHead(checkpoint=data["since"].decode()),
        "weights": data["weights"],
    }


def dictionaries(data: dict[str, bytes]) -> dict[str, Any]:
    documents = {name: json.loads(data[name]) for name in ("pack", "keys", "evidence", "receipt")}
    return {**documents, "since": {"checkpoint": data["since"].decode()}, "weights": data["weights"]}


def test_every_form_of_the_inputs_gives_the_same_report() -> None:
    data = {name: path.read_bytes() for name, path in FILES.items()}
    report = verify(dict(FILES))
    assert report.verdict == "verified"
    assert [line.ok for line in report.lines] == [True] * 9
    assert report.keys == "given"
    texts = {name: str(path) for name, path in FILES.items()}
    for inputs in (texts, data, parsed(data), dictionaries(data)):
        assert verify(dict(inputs)) == report


def test_the_report_says_what_was_not_checked() -> None:
    report = lethe.verify(FILES["pack"])
    assert isinstance(report, lethe.VerificationReport)
    assert report.verdict == "verified without the model file"
    assert (report.keys, report.failed) == ("from the pack", ())
    refused = lethe.verify(FILES["pack"], weights=b"another file")
    assert (refused.verified, [line.number for line in refused.failed]) == (False, [3])


def test_a_no_data_statement_and_a_log_answer_are_taken_as_objects() -> None:
    document = (GOLDEN / "no-data-held.json").read_bytes()
    pack = read_pack(FILES["pack"].read_bytes())
    for receipt in (document, NoDataReceipt.read(document, "receipt"), json.loads(document)):
        report = lethe.verify(pack, receipt=receipt, subject="subject-0")
        assert report.lines[-1].number == 9
        assert report.lines[-1].ok, report.lines[-1].detail
    kept = FILES["since"].read_text()
    proof = next(entry for entry in pack.consistency if entry.old_size == 3)
    answer = LogConsistency(old_size=3, new_size=pack.log.index + 1, path=proof.path, checkpoint=kept)
    assert lethe.verify(pack, since=answer).verified


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_read_is_unusable_and_named(name: str, tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(lethe.UnusableInput, match=re.escape(path.name)) as refusal:
            verify(FILES | {name: path})
        assert "Errno" not in str(refusal.value)


@pytest.mark.parametrize("name", ["pack", "keys", "evidence", "receipt"])
@pytest.mark.parametrize("document", [b"\x00 not JSON", {"format": "another"}, {"number": float("nan")}])
def test_a_document_of_another_kind_is_unusable(name: str, document: Any) -> None:
    with pytest.raises(lethe.UnusableInput, match=f"^{name}: "):
        verify(FILES | {name: document})


def test_a_text_is_a_path_and_never_the_document_itself() -> None:
    with pytest.raises(lethe.UnusableInput, match=r"^earlier tree head: cannot "):
        lethe.verify(FILES["pack"], since=FILES["since"].read_text())


def test_importing_the_package_is_light_and_its_names_come_when_they_are_used() -> None:
    code = (
        "import sys, lethe; heavy = {'httpx', 'pydantic', 'cryptography', 'typer', 'rich'}; "
        "assert heavy.isdisjoint(sys.modules), heavy & set(sys.modules); "
        "from lethe import Lethe, AsyncLethe, verify; "
        "assert set(lethe.__all__) <= set(dir(lethe)); "
        "[getattr(lethe, name) for name in lethe.__all__]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError):
        lethe.nothing  # noqa: B018

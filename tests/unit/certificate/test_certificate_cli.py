"""The command writes ✓ and ✗ lines or JSON, and has three exit statuses."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest

from lethe.certificate.assurance import NOT_COVERED, assumptions_for
from lethe.certificate.cli import main, render
from lethe.certificate.verify import verify
from lethe.certificate.vocabulary import ASSUMPTIONS, LIMITS
from tests.unit.certificate.certificate_cases import Issuer

ISSUER = Issuer()
ISSUED = ISSUER.issue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert ISSUED.weights is not None
    (tmp_path / "pack.json").write_bytes(ISSUER.pack().to_bytes())
    (tmp_path / "model.safetensors").write_bytes(ISSUED.weights)
    (tmp_path / "evidence.json").write_bytes(ISSUED.evidence.to_bytes())
    (tmp_path / "receipt.json").write_bytes(ISSUED.receipts[0].to_bytes())
    (tmp_path / "keys.json").write_bytes(ISSUER.keys.to_bytes())
    (tmp_path / "head").write_text(ISSUER.head(2), encoding="utf-8")
    return tmp_path


def everything(folder: Path) -> list[str]:
    return [
        "verify", str(folder / "pack.json"), "--model", str(folder / "model.safetensors"),
        "--evidence", str(folder / "evidence.json"), "--receipt", str(folder / "receipt.json"),
        "--subject", "subject-0", "--since", str(folder / "head"), "--keys", str(folder / "keys.json"),
    ]  # fmt: skip


def test_verified_is_status_zero_with_a_tick_per_line(folder, capsys):
    assert main(everything(folder)) == 0
    out = capsys.readouterr().out
    assert out.count("✓") == 9
    assert "VERIFIED. This proves:" in out
    assert "It does not prove" in out


def test_declarations_warnings_assumptions_and_limits_are_printed():
    issuer = Issuer()
    issuer.issue(
        edit={
            "objective": {"warnings": ("features-look-standardised",)},
            "guarantee": {
                "assurance": "conditional",
                "assumptions": assumptions_for("B1", "conditional", warnings=("features-look-standardised",)),
            },
            "lifetime": {"assurance": "conditional"},
        }
    )
    report = verify(issuer.pack())
    assert report.verified, report.failed
    out = "\n".join(render(report))
    for sentence in (
        "features: as recorded",
        f"warning from registration: {ASSUMPTIONS['features-look-standardised']}",
    ):
        assert f"  · {sentence}" in out
    assert all(LIMITS[name] in out for name in NOT_COVERED)
    assert ASSUMPTIONS["declared-origins"] in out
    assert ASSUMPTIONS["published-analysis"] not in out


def test_not_verified_is_status_one_and_names_the_check(folder, capsys):
    (folder / "model.safetensors").write_bytes(b"other")
    assert main(everything(folder)) == 1
    out = capsys.readouterr().out
    assert "✗ 3. The model file is the one certified" in out
    assert "NOT VERIFIED: check 3 failed" in out
    assert out.startswith("NOT VERIFIED, because of check 3. The certificate states: ")


def test_a_tampered_pack_is_headlined_as_tampered_with(folder, capsys):
    pack = json.loads((folder / "pack.json").read_bytes())
    envelope = json.loads(base64.b64decode(pack["envelope"]))
    payload = base64.b64decode(envelope["payload"]).replace(b"epsilon", b"epsilom")
    envelope["payload"] = base64.b64encode(payload).decode()
    raw = json.dumps(envelope, separators=(",", ":"), sort_keys=True).encode()
    (folder / "pack.json").write_text(json.dumps(pack | {"envelope": base64.b64encode(raw).decode()}))
    assert main(everything(folder)) == 1
    out = capsys.readouterr().out
    assert out.startswith("TAMPERED WITH: the signature does not match the certificate")
    assert (out.count("✗"), out.count("✓"), out.count("not checked")) == (1, 0, 8)
    assert "NOT VERIFIED: check 1 failed" in out


def test_an_identifier_without_a_receipt_is_an_error(folder, capsys):
    arguments = everything(folder)
    at = arguments.index("--receipt")
    without = arguments[:at] + arguments[at + 2 :]
    subject = [] if "--subject" in without else ["--subject", "ada"]
    assert main([*without, *subject]) == 2
    assert "add --receipt" in capsys.readouterr().out


def test_a_pack_verified_under_its_own_keys_says_so_in_the_verdict(folder, capsys):
    unpinned = everything(folder)[:-2]
    assert main(unpinned) == 0
    assert "VERIFIED under the key that came with the pack. This proves:" in capsys.readouterr().out
    assert main([*unpinned, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["keys"] == "from the pack"


@pytest.mark.parametrize("name", ["pack.json", "evidence.json", "receipt.json", "keys.json"])
def test_unusable_input_is_status_two_in_one_line(folder, capsys, name):
    (folder / name).write_bytes(b"\x00 not json")
    assert main(everything(folder)) == 2
    assert capsys.readouterr().out.startswith(f"unusable input: {name.removesuffix('.json')}")
    (folder / name).unlink()
    assert main(everything(folder)) == 2


def test_json_is_one_document_for_every_status(folder, capsys):
    assert main([*everything(folder), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["verified"] is True
    assert report["keys"] == "given"
    assert [line["number"] for line in report["lines"]] == list(range(1, 10))
    (folder / "pack.json").write_bytes(b"{}")
    assert main([*everything(folder), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["verified"] is False


def test_the_module_runs_alone_on_a_terminal_without_unicode(folder):
    """A fresh interpreter, which must not load torch, a database or the command's own dependencies."""
    code = (
        "import sys; from lethe.certificate.cli import main; status = main(sys.argv[1:]); "
        "loaded = {'torch', 'numpy', 'sqlalchemy', 'typer', 'rich', 'httpx'} & set(sys.modules); "
        "sys.exit(99 if loaded else status)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *everything(folder)],
        env={"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert b"VERIFIED" in result.stdout
    module = subprocess.run(
        [sys.executable, "-m", "lethe.certificate", *everything(folder)], capture_output=True, check=False
    )
    assert module.returncode == 0, module.stderr

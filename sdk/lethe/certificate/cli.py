"""`python -m certificate verify pack.json --model model.safetensors`: the checklist on a terminal.

Exit status: 0 verified, 1 not verified, 2 the input could not be used. Without `--keys` a pack is verified
under its own keys, and without `--model` no file is checked: the verdict says so, in JSON as `"keys": "from
the pack"` and `"verdict": "verified without the model file"`, and the status is still 0.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from certificate.errors import UnusableInput
from certificate.evidence import EvidenceRecord
from certificate.records import MAX_DOCUMENT, printable
from certificate.verify import Line, Report, verify

VERIFIED, NOT_VERIFIED, UNUSABLE = 0, 1, 2
_MARKS = {True: "✓", False: "✗", None: "–"}


def run_verify(
    *,
    pack: Path,
    model: Path | None = None,
    evidence: Path | None = None,
    receipt: Path | None = None,
    since: Path | None = None,
    keys: Path | None = None,
    subject: str | None = None,
    as_json: bool = False,
    write: Callable[[str], object],
) -> int:
    """Verify files and write the report, line by line; the exit status."""
    try:
        report = verify(
            _read(pack, "pack"),
            model=model,
            evidence=_read_optional(evidence, "evidence"),
            receipt=_read_optional(receipt, "receipt"),
            since=_read_optional(since, "earlier tree head"),
            keys=_read_optional(keys, "keys"),
            subject=subject,
        )
    except UnusableInput as error:
        message = printable(error)
        write(
            json.dumps({"verified": False, "unusable": message}) if as_json else f"unusable input: {message}"
        )
        return UNUSABLE
    for line in [json.dumps(report.to_dict(), indent=2, ensure_ascii=False)] if as_json else render(report):
        write(line)
    return VERIFIED if report.verified else NOT_VERIFIED


def render(report: Report) -> list[str]:
    """The report as lines of text."""
    lines = [report.headline, "", *(_render_line(line) for line in report.lines), ""]
    if report.verified:
        own = " under the key that came with the pack" if report.keys == "from the pack" else ""
        lines.append(f"{report.verdict.upper()}{own}. This proves:")
        lines.extend(f"  + {sentence}" for sentence in report.proves)
        lines.append("It does not prove:")
        lines.extend(f"  - {sentence}" for sentence in report.does_not_prove)
        stated = (
            ("It rests on these assumptions:", report.rests_on),
            ("The model's owner declared:", report.declared),
            ("The guarantee does not cover:", report.not_covered),
        )
        for title, sentences in stated:
            lines.append(title)
            lines.extend(f"  · {sentence}" for sentence in sentences)
    else:
        failed = ", ".join(str(line.number) for line in report.failed)
        lines.append(f"NOT VERIFIED: check {failed} failed. Nothing above can be relied on.")
    return lines


def _render_line(line: Line) -> str:
    return f"{_MARKS[line.ok]} {line.number}. {line.title}: {line.detail}"


def _read(path: Path, what: str) -> bytes:
    try:
        with path.open("rb") as stream:
            data = stream.read(EvidenceRecord.room * MAX_DOCUMENT + 1)
    except (OSError, ValueError) as error:
        raise UnusableInput(f"{what}: {error}") from None
    return data


def _read_optional(path: Path | None, what: str) -> bytes | None:
    return None if path is None else _read(path, what)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="certificate", description="Verify a certificate offline.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("verify", help="run the checklist over a pack")
    command.add_argument("pack", type=Path, help="pack.json")
    command.add_argument("--model", type=Path, help="the model file the certificate is about")
    command.add_argument("--evidence", type=Path, help="the restricted evidence record")
    command.add_argument("--receipt", type=Path, help="a data subject's receipt")
    command.add_argument("--subject", help="the identifier the receipt is about, to open its commitment")
    command.add_argument("--since", type=Path, help="a signed tree head you hold, with or without its proof")
    command.add_argument(
        "--keys", type=Path, help="the issuer's published keys, instead of those in the pack"
    )
    command.add_argument("--json", action="store_true", dest="as_json", help="the report as JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = vars(_parser().parse_args(argv))
    del arguments["command"]
    # A terminal that cannot show a character must not turn a verdict into a traceback.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    return run_verify(**arguments, write=lambda line: sys.stdout.write(line + "\n"))

"""The verifier on the command line: `python -m lethe.certificate verify pack.json --model model.safetensors`.

The exit status is 0 for verified, 1 for not verified, and 2 for input that cannot be used. Without `--keys`,
the keys in the pack are used. Without `--model` and `--onnx`, no file is checked. The verdict says so in
both cases (in JSON, `"keys": "from the pack"` and `"verdict": "verified without the model file"`), and the
status is still 0.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from lethe.certificate.errors import UnusableInput
from lethe.certificate.records import printable
from lethe.certificate.verify import CheckResult, VerificationReport, verify

VERIFIED, NOT_VERIFIED, UNUSABLE = 0, 1, 2
_MARKS = {True: "✓", False: "✗", None: "–"}


def run_verify(
    *,
    pack: Path,
    model: Path | None = None,
    onnx: Path | None = None,
    evidence: Path | None = None,
    receipt: Path | None = None,
    since: Path | None = None,
    keys: Path | None = None,
    subject: str | None = None,
    digest: str | None = None,
    as_json: bool = False,
    write: Callable[[str], object],
) -> int:
    """Verify files, write the report line by line with `write`, and return the exit status.

    The parameters are the options of the command.
    """
    try:
        report = verify(
            pack,
            weights=model,
            onnx=onnx,
            evidence=evidence,
            receipt=receipt,
            since=since,
            keys=keys,
            subject=subject,
            digest=digest,
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


def render(report: VerificationReport) -> list[str]:
    """Return the report as lines of text."""
    lines = [report.headline, "", *(_render_check(line) for line in report.lines), ""]
    if not report.verified:
        return [*lines, f"NOT VERIFIED: {_failed_checks(report)} failed. Do not rely on anything above."]
    own_keys = " under the key that came with the pack" if report.keys == "from the pack" else ""
    sections = [
        ("+", f"{report.verdict.upper()}{own_keys}. This proves:", report.proves),
        ("-", "It does not prove:", report.does_not_prove),
        ("·", "It rests on these assumptions:", report.rests_on),
        ("·", "The model's owner declared:", report.declared),
        ("·", "The guarantee does not cover:", report.not_covered),
    ]
    if report.representation:
        sections.insert(4, ("·", "The features come from this representation:", report.representation))
    for mark, title, sentences in sections:
        lines.append(title)
        lines.extend(f"  {mark} {sentence}" for sentence in sentences)
    return lines


def _render_check(line: CheckResult) -> str:
    return f"{_MARKS[line.ok]} {line.number}. {line.title}: {line.detail}"


def _failed_checks(report: VerificationReport) -> str:
    """Name the failed checks by number: "check 3", or "checks 3, 6 and 7"."""
    *others, last = [str(line.number) for line in report.failed]
    return f"checks {', '.join(others)} and {last}" if others else f"check {last}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="certificate",
        description="Verify a certificate offline. Exit status: 0 verified, 1 not verified, 2 bad input.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("verify", help="verify a pack, check by check")
    command.add_argument("pack", type=Path, help="the pack of the certificate (pack.json)")
    command.add_argument(
        "--model", type=Path, help="the model file (safetensors) that the certificate is about"
    )
    command.add_argument(
        "--onnx", type=Path, help="the model as an ONNX file, in place of --model or besides"
    )
    command.add_argument("--evidence", type=Path, help="the restricted evidence record")
    command.add_argument("--receipt", type=Path, help="a data subject's receipt")
    command.add_argument("--subject", help="the identifier that the receipt must be about")
    command.add_argument(
        "--since", type=Path, help="a signed tree head that you kept, with or without its proof"
    )
    command.add_argument(
        "--keys", type=Path, help="the issuer's published keys, used instead of those in the pack"
    )
    command.add_argument("--digest", help="the digest that the certificate must have, or its QR code's text")
    command.add_argument("--json", action="store_true", dest="as_json", help="write the report as JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments and return its exit status."""
    arguments = vars(_parser().parse_args(argv))
    del arguments["command"]
    # A terminal that cannot display a character must not turn a verdict into a traceback.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    return run_verify(**arguments, write=lambda line: sys.stdout.write(line + "\n"))

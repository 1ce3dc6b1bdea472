"""A hostile document does not exhaust the memory of the machine that verifies it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from lethe.certificate.errors import UnusableInput
from lethe.certificate.evidence import EvidenceRecord
from lethe.certificate.pack import Consistency, EarlierHead, Pack, Predecessor
from lethe.certificate.records import MAX_CONTAINERS, MAX_DOCUMENT, MAX_ITEMS, Record
from tests.unit.certificate.certificate_cases import Issuer

_READ = """
import resource, sys
from lethe.certificate.errors import UnusableInput
from lethe.certificate.pack import Pack

document = {document}
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
try:
    Pack.read(document, "pack")
except UnusableInput as error:
    print(error)
"""

HOSTILE = {
    "objects": """b'{"predecessors":[' + b"{}," * (5 * 2**20) + b"{}]}" """,
    "lists": """b'{"predecessors":[' + b"[]," * (5 * 2**20) + b"[]]}" """,
    "numbers": """b'{"predecessors":[' + b"1," * (8 * 2**20 - 20) + b"1]}" """,
    "keys": """b"{" + b",".join(b'"%x":0' % k for k in range(10**6)) + b"}" """,
    "keys, as many as may be": """b"{" + b",".join(b'"%x":0' % k for k in range(199_000)) + b"}" """,
    "nesting": """b'{"predecessors":' + b"[" * 10**6 + b"]" * 10**6 + b"}" """,
    "text": """b'{"envelope":"' + b"A" * (16 * 2**20 - 20) + b'"}' """,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_reading_a_hostile_pack_stays_within_a_gigabyte(kind):
    code = _READ.format(document=HOSTILE[kind].strip())
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    assert done.stdout.startswith("pack: ")


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (b'{"envelope":"' + b"A" * MAX_DOCUMENT + b'"}', "larger than"),
        (b'{"predecessors":[' + b"{}," * MAX_CONTAINERS + b"{}]}", "objects and lists"),
        (b'{"predecessors":[' + b"1," * MAX_ITEMS + b"1,1]}", "items"),
        (b"{" + b",".join(b'"%x":0' % k for k in range(2000)) + b"}", "problems"),
    ],
)
def test_size_is_refused_in_one_line_before_anything_is_parsed(document, words):
    with pytest.raises(UnusableInput, match=words) as refusal:
        Pack.read(document, "pack")
    assert len(str(refusal.value)) < 200


def test_lists_have_a_length_no_honest_document_reaches():
    issuer = Issuer()
    issued = issuer.issue()
    pack, evidence = issuer.pack(), issued.evidence
    too_long: list[tuple[type[Record], Record, dict[str, Any]]] = [
        (Pack, pack, {"predecessors": (Predecessor(envelope="e", index=0, path=()),) * 10_001}),
        (Pack, pack, {"consistency": (Consistency(old_size=1, path=()),) * 65}),
        (EarlierHead, EarlierHead(checkpoint="c"), {"path": ("0" * 64,) * 65}),
        (EvidenceRecord, evidence, {"trace": evidence.trace * 5001}),
        (EvidenceRecord, evidence, {"solver": {f"s{k}": k for k in range(1001)}}),
    ]
    for kind, honest, change in too_long:
        fields = {name: getattr(honest, name) for name in kind.model_fields}
        kind.model_validate(fields)
        with pytest.raises(ValidationError, match="too_long"):
            kind.model_validate(fields | change)

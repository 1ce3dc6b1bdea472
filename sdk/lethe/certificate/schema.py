"""JSON Schemas of all documents, for verifiers in other languages.

`python -m lethe.certificate.schema [folder]` writes them, by default to `docs/schema`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from lethe.certificate.audit_log import AuditLogHead, AuditLogHeads, ExportedEntry
from lethe.certificate.evidence import EvidenceRecord
from lethe.certificate.keys import KeySet
from lethe.certificate.pack import EarlierHead, LogConsistency, Pack, PackV1
from lethe.certificate.receipt import NoDataHeld, NoDataHeldV1, NoDataReceipt, Receipt, ReceiptV1
from lethe.certificate.records import Record
from lethe.certificate.statement import Statement, StatementV1

DOCUMENTS: dict[str, type[Record]] = {
    "statement-v1": StatementV1,
    "statement-v2": Statement,
    "evidence-v1": EvidenceRecord,
    "pack-v1": PackV1,
    "pack-v2": Pack,
    "receipt-v1": ReceiptV1,
    "receipt-v2": Receipt,
    "no-data-held-v1": NoDataHeldV1,
    "no-data-held-v2": NoDataHeld,
    "no-data-receipt-v2": NoDataReceipt,
    "keys-v1": KeySet,
    "earlier-head-v1": EarlierHead,
    "log-consistency-v1": LogConsistency,
    "audit-log-entry-v1": ExportedEntry,
    "audit-log-head-v1": AuditLogHead,
    "audit-log-heads-v1": AuditLogHeads,
}


def schema_text(name: str) -> str:
    """Return the JSON Schema of one document as text."""
    schema = DOCUMENTS[name].model_json_schema(by_alias=True)
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:lethe:schema:{name}",
        **schema,
    }
    return json.dumps(schema, indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def main(arguments: Sequence[str]) -> None:
    """Write every schema to the folder in `arguments`, or to `docs/schema`."""
    folder = Path(arguments[0] if arguments else "docs/schema")
    folder.mkdir(parents=True, exist_ok=True)
    for name in DOCUMENTS:
        (folder / f"{name}.json").write_text(schema_text(name), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

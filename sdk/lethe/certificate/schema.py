"""JSON Schemas of the documents, for readers in other languages: `python -m certificate.schema`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from certificate.evidence import EvidenceRecord
from certificate.keys import KeySet
from certificate.pack import EarlierHead, LogConsistency, Pack, PackV1
from certificate.receipt import NoDataHeld, NoDataHeldV1, NoDataReceipt, Receipt, ReceiptV1
from certificate.records import Record
from certificate.statement import Statement, StatementV1

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
}


def schema_text(name: str) -> str:
    schema = DOCUMENTS[name].model_json_schema(by_alias=True)
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:lethe:schema:{name}",
        **schema,
    }
    return json.dumps(schema, indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def main(arguments: Sequence[str]) -> None:
    folder = Path(arguments[0] if arguments else "docs/schema")
    folder.mkdir(parents=True, exist_ok=True)
    for name in DOCUMENTS:
        (folder / f"{name}.json").write_text(schema_text(name), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

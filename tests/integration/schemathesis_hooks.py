"""How generated bodies of our streamed media types become bytes."""

from typing import Any

import schemathesis


@schemathesis.serializer("application/x-ndjson", "text/csv", "application/vnd.apache.parquet")
def as_bytes(_: schemathesis.SerializationContext, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")

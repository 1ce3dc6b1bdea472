"""The endpoints for the audit log."""

from pathlib import Path

import httpx

from lethe.certificate.audit_log import AuditLogHeads
from lethe.client.endpoints import EndpointGroup
from lethe.client.operations import D, ItemStream, Procedure, Request, listing, operation, read_chunk
from lethe.client.responses import AuditEntry
from lethe.client.transport import exchange, unreachable

MEDIA_TYPES = {"ndjson": "application/x-ndjson", "csv": "text/csv"}
MOST_HEADS = 200


class AuditLog(EndpointGroup[D]):
    """Who did what in your tenant. Needs the scope `audit:read`."""

    @listing
    def list(self, *, action: str | None = None, limit: int | None = None) -> ItemStream[AuditEntry]:
        """Iterate over the entries, newest first, optionally of one action."""
        return self._get_pages("/v1/audit-log", AuditEntry, limit, action=action)

    @operation
    def export(self, to: Path, format: str = "ndjson") -> Procedure[Path]:  # noqa: A002
        """Save the whole log as NDJSON, which can be verified, or as CSV. An existing file is replaced."""
        request = Request("GET", "/v1/audit-log", headers={"Accept": MEDIA_TYPES[format]})
        reply = yield from exchange(request, self._retry, stream=True)
        partial = to.with_name(f"{to.name}.part")
        try:
            with partial.open("wb") as file:
                while chunk := (yield from read_chunk(reply)):
                    file.write(chunk)
        except httpx.TransportError as error:
            partial.unlink()
            raise unreachable(error) from error
        partial.replace(to)
        return to

    @operation
    def heads(self) -> Procedure[AuditLogHeads]:
        """Return the newest signed heads of the log, with their proofs of inclusion."""
        raw = yield from self._get_bytes(f"/v1/audit-log/heads?limit={MOST_HEADS}")
        return AuditLogHeads.read(raw, "heads")

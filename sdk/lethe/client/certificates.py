"""The endpoints for certificates, their audits and the certificate log."""

from pathlib import Path
from typing import Any

from lethe.certificate.keys import KeySet
from lethe.certificate.pack import Pack
from lethe.certificate.verify import VerificationReport, verify
from lethe.client.endpoints import EndpointGroup, Id, path
from lethe.client.operations import D, ItemStream, Procedure, listing, operation
from lethe.client.responses import Audit, Certificate, ConsistencyProof, InclusionProof, Membership


class Certificates(EndpointGroup[D]):
    """Fetch certificates and verify them."""

    @listing
    def list(self, *, limit: int | None = None) -> ItemStream[Certificate]:
        """Iterate over the certificates, newest first."""
        return self._get_pages("/v1/certificates", Certificate, limit)

    @operation
    def get(self, certificate_id: Id) -> Procedure[bytes]:
        """Return the signed DSSE envelope, byte for byte."""
        return self._get_bytes(path("certificates", certificate_id))

    @operation
    def pack(self, certificate_id: Id) -> Procedure[Pack]:
        """Return everything needed to verify the certificate offline. `to_bytes()` gives `pack.json`."""
        return self._get_pack(certificate_id)

    @operation
    def bundle(self, certificate_id: Id) -> Procedure[dict[str, Any]]:
        """Return the signature as a Sigstore bundle."""
        return self._get(path("certificates", certificate_id, "bundle"), dict[str, Any])

    @operation
    def evidence(self, certificate_id: Id) -> Procedure[bytes]:
        """Return the evidence record for auditors, byte for byte.

        It holds the exact figures that the certificate commits to. Raises `Gone` once the policy's
        `evidence_days` have passed.
        """
        return self._get_bytes(path("certificates", certificate_id, "evidence"))

    @operation
    def membership(self, certificate_id: Id) -> Procedure[Membership]:
        """Return the membership test. Raises `NotFound` if the policy did not ask for one."""
        return self._get(path("certificates", certificate_id, "membership"), Membership)

    @operation
    def verify(
        self,
        certificate_id: Id,
        weights: Path | bytes,
        *,
        keys: KeySet | bytes | None = None,
        evidence: bytes | None = None,
    ) -> Procedure[VerificationReport]:
        """Fetch the pack of a certificate and verify it on this machine, together with the weights.

        Without `keys`, the verification relies on the keys in the pack, and the report says so.
        """
        pack = yield from self._get_pack(certificate_id)
        return verify(pack, weights=weights, keys=keys, evidence=evidence)

    def _get_pack(self, certificate_id: Id) -> Procedure[Pack]:
        raw = yield from self._get_bytes(path("certificates", certificate_id, "pack"))
        return Pack.read(raw, "pack")


class Audits(EndpointGroup[D]):
    """Audits of the noise in a published version."""

    @operation
    def start(self, certificate_id: Id) -> Procedure[Audit]:
        """Start replaying the release and testing its noise. Only the current version can be audited."""
        return self._post(_audits(certificate_id), Audit)

    @operation
    def get(self, certificate_id: Id, audit_id: Id) -> Procedure[Audit]:
        """Return one audit."""
        return self._get(f"{_audits(certificate_id)}/{audit_id}", Audit)

    @listing
    def list(self, certificate_id: Id, *, limit: int | None = None) -> ItemStream[Audit]:
        """Iterate over the audits of a certificate, newest first."""
        return self._get_pages(_audits(certificate_id), Audit, limit)

    @operation
    def wait(self, certificate_id: Id, audit_id: Id, *, timeout: float | None = None) -> Procedure[Audit]:
        """Wait until the audit has completed or failed, and return it."""
        url = f"{_audits(certificate_id)}/{audit_id}"
        return self._watch(url, Audit, lambda report: report.ended, timeout=timeout)


class CertificateLog(EndpointGroup[D]):
    """The append-only log that holds every certificate."""

    @operation
    def tree_head(self) -> Procedure[str]:
        """Return the signed tree head. Keep it: it lets you prove later that the log has only grown."""
        return (yield from self._get_bytes("/v1/log/checkpoint")).decode()

    @operation
    def inclusion(self, index: int) -> Procedure[InclusionProof]:
        """Return the proof that the entry at `index` is in the log."""
        return self._get("/v1/log/inclusion", InclusionProof, index=index)

    @operation
    def consistency(self, old_size: int) -> Procedure[ConsistencyProof]:
        """Return the proof that the log has only grown since it had `old_size` entries."""
        return self._get("/v1/log/consistency", ConsistencyProof, old_size=old_size)

    @operation
    def keys(self) -> Procedure[KeySet]:
        """Return the issuer's public keys, with the log entries that each key may sign."""
        return KeySet.read((yield from self._get_bytes("/v1/keys")), "keys")


def _audits(certificate_id: Id) -> str:
    return path("certificates", certificate_id, "audits")

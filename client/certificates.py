"""Certificates and the log they stand in: fetched here, verified offline by `certificate.verify`."""

from pathlib import Path
from typing import Any

from certificate.keys import KeySet
from certificate.pack import Pack
from certificate.verify import Report, verify
from client.answers import Certificate, ConsistencyProof, InclusionProof
from client.flow import D, Flow, Items, listing, operation
from client.report_answers import Membership
from client.resource import Id, Noun, at


class Certificates(Noun[D]):
    @listing
    def list(self, *, most: int | None = None) -> Items[Certificate]:
        """Newest first."""
        return self._pages("/v1/certificates", Certificate, most)

    @operation
    def get(self, certificate_id: Id) -> Flow[bytes]:
        """The signed envelope (DSSE), byte for byte."""
        return self._bytes(at("certificates", certificate_id))

    @operation
    def pack(self, certificate_id: Id) -> Flow[Pack]:
        """Everything that verification needs; `to_bytes()` is `pack.json`."""
        return self._pack(certificate_id)

    @operation
    def bundle(self, certificate_id: Id) -> Flow[dict[str, Any]]:
        """The same signature as a Sigstore bundle."""
        return self._get(at("certificates", certificate_id, "bundle"), dict[str, Any])

    @operation
    def evidence(self, certificate_id: Id) -> Flow[bytes]:
        """The exact figures that the certificate commits to, byte for byte: for auditors."""
        return self._bytes(at("certificates", certificate_id, "evidence"))

    @operation
    def membership(self, certificate_id: Id) -> Flow[Membership]:
        """What the membership test found, where the policy asked for one."""
        return self._get(at("certificates", certificate_id, "membership"), Membership)

    @operation
    def verify(
        self,
        certificate_id: Id,
        model: Path | bytes,
        *,
        keys: KeySet | bytes | None = None,
        evidence: bytes | None = None,
    ) -> Flow[Report]:
        """Fetch the pack and check it here, with the file. Without `keys` it rests on those in the pack."""
        pack = yield from self._pack(certificate_id)
        return verify(pack, model=model, keys=keys, evidence=evidence)

    def _pack(self, certificate_id: Id) -> Flow[Pack]:
        raw = yield from self._bytes(at("certificates", certificate_id, "pack"))
        return Pack.read(raw, "pack")


class Log(Noun[D]):
    @operation
    def checkpoint(self) -> Flow[str]:
        """The signed tree head. Keep it: it shows later that the log has only grown."""
        return (yield from self._bytes("/v1/log/checkpoint")).decode()

    @operation
    def inclusion(self, index: int) -> Flow[InclusionProof]:
        return self._get("/v1/log/inclusion", InclusionProof, index=index)

    @operation
    def consistency(self, old_size: int) -> Flow[ConsistencyProof]:
        return self._get("/v1/log/consistency", ConsistencyProof, old_size=old_size)

    @operation
    def keys(self) -> Flow[KeySet]:
        """The issuer's public keys, each with the places of the log it may sign."""
        return KeySet.read((yield from self._bytes("/v1/keys")), "keys")

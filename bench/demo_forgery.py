"""Four ways to forge a release, and what the verifier says to each."""

import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lethe.certificate.envelope import parse, sign
from lethe.certificate.keys import SigningKey
from lethe.certificate.records import canonical_json
from lethe.certificate.verify import CheckResult, verify


@dataclass(frozen=True)
class Forgery:
    """A forged release, and the checks that refused it."""

    name: str
    verified: bool
    refusals: tuple[str, ...]


def try_forgeries(*, pack: Path, model: Path, keys: Path, other_model: Path, folder: Path) -> list[Forgery]:
    """Forge a verified release in four ways, and verify each forgery with the issuer's published keys.

    `other_model` is a model file that the certificate is not about, such as the one from before the erasure.
    """
    genuine = json.loads(pack.read_text())
    forger = SigningKey.generate()
    attempts: list[tuple[str, Path, dict[str, Any]]] = [
        ("The model from before the erasure, with the new certificate", other_model, genuine),
        ("One bit of the released weights is changed", _flip_bit(model, folder / "bit.safetensors"), genuine),
        ("The certificate states ε = 0.1 instead of ε = 1", model, _restate(genuine, _claim_smaller_epsilon)),
        ("The same false statement, signed with the forger's own key", model, _sign_again(genuine, forger)),
    ]
    forgeries = []
    for number, (name, file, document) in enumerate(attempts):
        forged = folder / f"forged-{number}.json"
        forged.write_text(json.dumps(document))
        report = verify(forged, weights=file, keys=keys)
        forgeries.append(Forgery(name, report.verified, tuple(map(_refusal, report.failed))))
    return forgeries


def _refusal(check: CheckResult) -> str:
    """Return a failed check in one line, with digests cut short."""
    detail = re.sub(r"[0-9a-f]{64}", lambda digest: f"{digest[0][:12]}…", check.detail)
    return f"check {check.number}: {detail}"


def _flip_bit(model: Path, target: Path) -> Path:
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    target.write_bytes(content)
    return target


def _restate(pack: dict[str, Any], change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Return the pack with a changed statement under the old signature."""
    envelope = json.loads(base64.b64decode(pack["envelope"]))
    statement = json.loads(base64.b64decode(envelope["payload"]))
    change(statement)
    envelope["payload"] = base64.b64encode(canonical_json(statement)).decode()
    return pack | {"envelope": base64.b64encode(canonical_json(envelope)).decode()}


def _claim_smaller_epsilon(statement: dict[str, Any]) -> None:
    statement["predicate"]["guarantee"]["epsilon"] = 0.1


def _sign_again(pack: dict[str, Any], forger: SigningKey) -> dict[str, Any]:
    """Return the pack with a changed statement, the forger's signature and the forger's key."""
    changed = _restate(pack, _claim_smaller_epsilon)
    statement = parse(base64.b64decode(changed["envelope"])).payload
    own_key = pack["keys"]["keys"][0] | {"key_id": forger.key_id, "pem": forger.public_pem}
    return pack | {
        "envelope": base64.b64encode(sign(statement, forger).raw).decode(),
        "keys": pack["keys"] | {"keys": [own_key]},
    }

"""Independent software verifies our certificates."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from securesystemslib.dsse import Envelope as OtherEnvelope
from securesystemslib.exceptions import VerificationError as OtherError
from securesystemslib.signer import SSlibKey  # type: ignore[attr-defined]

from lethe.certificate.envelope import pae, to_bundle
from lethe.certificate.model_signature import sign_model
from tests.unit.certificate.certificate_cases import Issuer

ISSUER = Issuer()
ISSUED = ISSUER.issue("tr-conditional")
CACHE = Path.home() / ".cache" / "lethe-tests" / "sigstore-verify"
# Pinned, so that a release of theirs does not change what this test means.
NPM_PACKAGES = ("@sigstore/verify@3.1.1", "@sigstore/bundle@4.0.0")

VERIFY_WITH_SIGSTORE = """
const { bundleFromJSON } = require('@sigstore/bundle');
const { Verifier, toSignedEntity, toTrustMaterial } = require('@sigstore/verify');
const crypto = require('crypto');
const { bundle, pem, hint } = JSON.parse(require('fs').readFileSync(0));
const key = { publicKey: crypto.createPublicKey(pem), validFor: () => true };
const trust = toTrustMaterial(
  { certificateAuthorities: [], timestampAuthorities: [], tlogs: [], ctlogs: [] },
  (asked) => { if (asked !== hint) throw new Error('another key: ' + asked); return key; });
const verifier = new Verifier(trust, { tlogThreshold: 0, ctlogThreshold: 0, timestampThreshold: 0 });
verifier.verify(toSignedEntity(bundleFromJSON(bundle)));
console.log('accepted');
"""


@pytest.fixture(scope="module")
def sigstore() -> Path:
    """A folder where node finds the packages; fetched once, outside the repository."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("NOT VERIFIED BY @sigstore/verify: node and npm are not installed")
    if not (CACHE / "node_modules" / "@sigstore" / "verify").is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(CACHE), *NPM_PACKAGES]
        try:
            fetched = subprocess.run(command, capture_output=True, timeout=180, check=False, cwd=CACHE)
        except subprocess.TimeoutExpired:
            pytest.skip("NOT VERIFIED BY @sigstore/verify: npm did not answer in time")
        if fetched.returncode:
            pytest.skip(f"NOT VERIFIED BY @sigstore/verify: npm failed, {fetched.stderr[-300:]!r}")
    return CACHE


def ask_sigstore(folder: Path, bundle: dict[str, object]) -> subprocess.CompletedProcess[bytes]:
    question = {"bundle": bundle, "pem": ISSUER.key.public_pem, "hint": ISSUER.key.key_id}
    return subprocess.run(
        ["node", "-e", VERIFY_WITH_SIGSTORE],
        input=json.dumps(question).encode(),
        cwd=folder,
        capture_output=True,
        timeout=240,
        check=False,
    )


def test_sigstore_accepts_the_bundle_and_refuses_a_changed_one(sigstore):
    bundle = to_bundle(ISSUED.envelope)
    answer = ask_sigstore(sigstore, bundle)
    assert answer.returncode == 0, answer.stderr.decode()
    assert answer.stdout == b"accepted\n"
    payload = bundle["dsseEnvelope"]["payload"]
    bundle["dsseEnvelope"]["payload"] = ("A" if payload[0] != "A" else "B") + payload[1:]
    answer = ask_sigstore(sigstore, bundle)
    assert answer.returncode != 0
    assert b"signature verification failed" in answer.stderr


def test_openssl_verifies_the_pre_authentication_encoding(tmp_path):
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("NOT VERIFIED BY openssl: it is not installed")
    (tmp_path / "key.pem").write_text(ISSUER.key.public_pem)
    (tmp_path / "sig").write_bytes(ISSUED.envelope.signatures[0].value)
    command = [openssl, "dgst", "-sha256", "-verify", "key.pem", "-signature", "sig", "message"]
    message = pae(ISSUED.envelope.payload_type, ISSUED.envelope.payload)
    for data, accepted in [(message, True), (message + b" ", False)]:
        (tmp_path / "message").write_bytes(data)
        answer = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
        assert (answer.returncode == 0) is accepted, answer


def test_securesystemslib_verifies_the_envelope():
    public = serialization.load_pem_public_key(ISSUER.key.public_pem.encode())
    key = SSlibKey.from_crypto(public, keyid=ISSUER.key.key_id)
    other = OtherEnvelope.from_dict(json.loads(ISSUED.envelope.raw))
    assert other.pae() == pae(ISSUED.envelope.payload_type, ISSUED.envelope.payload)
    assert list(other.verify([key], 1)) == [ISSUER.key.key_id]
    other.payload += b" "
    with pytest.raises(OtherError):
        other.verify([key], 1)


def model_signing() -> list[str]:
    """The tool's command. `LETHE_TEST_MODEL_SIGNING` names one installed elsewhere."""
    if named := os.environ.get("LETHE_TEST_MODEL_SIGNING"):
        return [named]
    if find_spec("model_signing") is None or find_spec("OpenSSL") is None:
        pytest.skip("NOT VERIFIED BY model_signing: it is not installed (it needs pyopenssl, undeclared)")
    return [sys.executable, "-m", "model_signing"]


def test_model_signing_accepts_the_signature_of_the_weights_file(tmp_path):
    command = model_signing()
    assert ISSUED.weights is not None
    sha256 = hashlib.sha256(ISSUED.weights).hexdigest()
    signature = sign_model(file_name="model.safetensors", sha256=sha256, signer=ISSUER.key)
    (tmp_path / "model.sig").write_bytes(signature)
    (tmp_path / "key.pem").write_text(ISSUER.key.public_pem)
    arguments = ["verify", "key", "model.safetensors", "--signature", "model.sig", "--public_key", "key.pem"]
    for data, accepted in [(ISSUED.weights, True), (ISSUED.weights + b"\0", False)]:
        (tmp_path / "model.safetensors").write_bytes(data)
        answer = subprocess.run([*command, *arguments], cwd=tmp_path, capture_output=True, check=False)
        assert (answer.returncode == 0) is accepted, answer

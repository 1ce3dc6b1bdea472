"""DSSE envelopes over exact bytes, signed by keys that are valid for a range of places in the log."""

from __future__ import annotations

import base64
import json

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from lethe.certificate.envelope import check_signature, pae, parse, sign, to_bundle
from lethe.certificate.errors import SignatureInvalid, UnusableInput
from lethe.certificate.keys import KeySet, PublicKey, SigningKey
from tests.unit.certificate.certificate_cases import Issuer


@pytest.fixture(scope="module")
def key() -> SigningKey:
    return SigningKey.generate()


def keyset(*keys: PublicKey) -> KeySet:
    return KeySet(keys=keys)


def test_pre_authentication_encoding_of_the_specification():
    """The example in DSSE's protocol document."""
    assert (
        pae("http://example.com/HelloWorld", b"hello world")
        == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )


def test_what_is_signed_verifies_and_the_payload_is_the_exact_bytes(key):
    payload = b'{ "spaces":   "kept", "order": 1}'
    envelope = parse(sign(payload, key).raw)
    assert envelope.payload == payload
    assert check_signature(envelope, keyset(PublicKey.of(key)), position=0).key_id == key.key_id


def test_a_signature_holds_inside_the_keys_window_only(key):
    envelope = sign(b"{}", key)
    keys = keyset(PublicKey.of(key, valid_from=5, valid_until=9))
    for position in range(12):
        if 5 <= position < 9:
            check_signature(envelope, keys, position=position)
        else:
            with pytest.raises(SignatureInvalid, match="valid for places"):
                check_signature(envelope, keys, position=position)


def test_unknown_key_other_payload_type_and_second_bad_signature_are_refused(key):
    envelope, keys = sign(b"{}", key), keyset(PublicKey.of(key))
    with pytest.raises(SignatureInvalid, match="unknown key"):
        check_signature(envelope, keyset(PublicKey.of(SigningKey.generate())), position=None)
    with pytest.raises(SignatureInvalid, match="payload type is"):
        check_signature(sign(b"{}", key, "text/plain"), keys, position=None)
    document = json.loads(envelope.raw)
    document["signatures"].append({"keyid": key.key_id, "sig": base64.b64encode(b"bad").decode()})
    with pytest.raises(SignatureInvalid, match="did not sign"):
        check_signature(parse(json.dumps(document).encode()), keys, position=None)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"payload":"e30=","payloadType":"x","signatures":[]}',
        b'{"payload":"e31=","payloadType":"x","signatures":[{"keyid":"a","sig":""}]}',  # not canonical
        b'{"payload":"e30","payloadType":"x","signatures":[{"keyid":"a","sig":""}]}',
        b'{"payload":"e30=","payload":"e30=","payloadType":"x","signatures":[{"keyid":"a","sig":""}]}',
        b'{"payload":"e30=","payloadType":"x","signatures":[{"keyid":"a","sig":"","more":1}]}',
        b'{"payload":"e30=","payloadType":"x","signatures":[{"keyid":1,"sig":""}]}',
        b'{"payload":"e30=","payloadType":"x","signatures":[{"keyid":"a","sig":""}],"more":1}',
        b"[" * 100_000,
    ],
)
def test_malformed_envelopes_are_refused(raw):
    with pytest.raises(SignatureInvalid):
        parse(raw)


def test_private_key_survives_its_text_and_stays_out_of_repr(key):
    again = SigningKey.from_pem(key.to_pem())
    assert again.key_id == key.key_id
    assert "PRIVATE" not in repr(again)


def test_only_p256_keys_are_taken():
    with pytest.raises(ValueError, match="P-256"):
        SigningKey(ec.generate_private_key(ec.SECP384R1()))
    other = ed25519.Ed25519PrivateKey.generate()
    private = other.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    with pytest.raises(ValueError, match="elliptic"):
        SigningKey.from_pem(private)
    public = other.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    with pytest.raises(ValueError, match="P-256"):
        PublicKey.from_pem(public.decode())


def test_published_keys_have_one_shape_and_cannot_lie_about_their_id(key):
    keys = keyset(PublicKey.of(key, valid_until=7))
    document = json.loads(keys.to_bytes())
    assert document == {
        "keys": [
            {
                "key_id": key.key_id,
                "algorithm": "ecdsa-p256-sha256",
                "pem": key.public_pem,
                "valid_from": 0,
                "valid_until": 7,
            }
        ]
    }
    assert KeySet.read(keys.to_bytes(), "keys") == keys
    document["keys"][0]["key_id"] = "0" * 64
    with pytest.raises(UnusableInput, match="key_id"):
        KeySet.read(json.dumps(document).encode(), "keys")
    with pytest.raises(ValueError, match="twice"):
        keyset(PublicKey.of(key), PublicKey.of(key))


def test_bundle_carries_the_same_envelope():
    issued = Issuer().issue()
    bundle = to_bundle(issued.envelope)
    assert bundle["mediaType"] == "application/vnd.dev.sigstore.bundle.v0.3+json"
    assert bundle["dsseEnvelope"] == json.loads(issued.envelope.raw)
    assert bundle["verificationMaterial"]["publicKey"]["hint"] == issued.envelope.signatures[0].key_id

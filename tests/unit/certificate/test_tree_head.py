"""Signed tree heads in the C2SP formats."""

from __future__ import annotations

import base64
import hashlib

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from lethe.certificate.errors import LogProofInvalid
from lethe.certificate.keys import KeySet, PublicKey, SigningKey
from lethe.certificate.merkle import EMPTY_ROOT
from lethe.certificate.tree_head import (
    TreeHead,
    VerifiedTreeHead,
    sign_tree_head,
    split_signatures,
    verify_signatures,
    verify_tree_head,
)

KEY = SigningKey.generate()
KEYS = KeySet(keys=(PublicKey.of(KEY),))
HEAD = TreeHead("lethe.example/log", 12, b"\x07" * 32)
SIGNED = sign_tree_head(HEAD, KEY)


def test_a_signed_tree_head_has_the_layout_of_the_specification():
    text, signature = SIGNED.split("\n\n")
    assert text == "lethe.example/log\n12\n" + base64.b64encode(HEAD.root).decode()
    dash, name, blob = signature.removesuffix("\n").split(" ")
    assert (dash, name) == ("\u2014", "lethe.example/log")
    public = serialization.load_pem_public_key(KEY.public_pem.encode())
    assert isinstance(public, ec.EllipticCurvePublicKey)
    der = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    raw = base64.b64decode(blob)
    assert raw[:4] == hashlib.sha256(der).digest()[:4]
    public.verify(raw[4:], (text + "\n").encode(), ec.ECDSA(hashes.SHA256()))


def test_a_signed_head_verifies_and_an_empty_log_has_one():
    assert verify_tree_head(SIGNED, KEYS) == HEAD
    empty = TreeHead("lethe.example/log", 0, EMPTY_ROOT)
    assert verify_tree_head(sign_tree_head(empty, KEY), KEYS) == empty


def test_a_witness_signature_is_ignored_and_a_foreign_one_alone_is_not_enough():
    witness = SigningKey.generate()
    text, own = SIGNED.split("\n\n")
    blob = base64.b64encode(b"wit!" + witness.sign(text.encode())).decode()
    assert verify_tree_head(f"{text}\n\n\u2014 witness.example {blob}\n{own}", KEYS) == HEAD
    with pytest.raises(LogProofInvalid, match="known key"):
        verify_tree_head(f"{text}\n\n\u2014 witness.example {blob}\n", KEYS)


def test_a_key_signs_heads_up_to_the_place_where_it_ends_and_its_successor_may_sign_that_head_again():
    def keys(valid_from: int, valid_until: int | None) -> KeySet:
        return KeySet(keys=(PublicKey.of(KEY, valid_from=valid_from, valid_until=valid_until),))

    assert verify_signatures(SIGNED, keys(0, 12)) == VerifiedTreeHead(HEAD, retired=True)
    assert verify_signatures(SIGNED, keys(12, None)) == VerifiedTreeHead(HEAD, retired=False)
    assert verify_tree_head(SIGNED, keys(12, None)) == HEAD
    with pytest.raises(LogProofInvalid, match="retired key"):
        verify_tree_head(SIGNED, keys(0, 12))
    for outside in (keys(0, 11), keys(13, None)):
        with pytest.raises(LogProofInvalid, match="valid for places"):
            verify_tree_head(SIGNED, outside)


@given(st.integers(0, len(SIGNED.encode()) - 1), st.integers(1, 255))
def test_any_changed_byte_is_refused(place, flip):
    data = bytearray(SIGNED.encode())
    data[place] ^= flip
    with pytest.raises(LogProofInvalid):
        verify_tree_head(data.decode(errors="replace"), KEYS)


@given(st.text(max_size=200))
def test_arbitrary_text_is_refused(text):
    with pytest.raises(LogProofInvalid):
        verify_tree_head(text, KEYS)


@pytest.mark.parametrize("origin", ["", "two words", "a+b", "line\nbreak"])
def test_an_origin_that_cannot_be_a_key_name_is_not_signed(origin):
    with pytest.raises(ValueError, match="origin"):
        sign_tree_head(TreeHead(origin, 1, EMPTY_ROOT), KEY)


def test_too_many_signatures_are_refused():
    text, own = SIGNED.split("\n\n")
    with pytest.raises(LogProofInvalid, match="between 1 and 16 signatures"):
        split_signatures(f"{text}\n\n{own * 17}")

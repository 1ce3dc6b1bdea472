"""Data keys protect task keys and hashes; each belongs to one row, and each file to one key."""

import pytest

from app.core.clock import new_id
from app.core.data_key import (
    DataKey,
    new_secret,
    new_task_key,
    open_file,
    receipt_key_row,
    seal_file,
    subject_key_row,
)
from app.core.vault import RowCipher, Vault

VAULT = Vault(bytes(range(32)))


def test_a_task_key_opens_for_its_own_task_and_purpose_only() -> None:
    data_key, other, task_id = DataKey(new_id(), new_secret()), DataKey(new_id(), new_secret()), new_id()
    task_key = new_task_key()
    wrapped = data_key.wrap(task_key, row=subject_key_row(task_id))
    assert data_key.unwrap(wrapped, row=subject_key_row(task_id)) == task_key
    for key, row in (
        (data_key, subject_key_row(new_id())),
        (data_key, receipt_key_row(task_id)),
        (other, subject_key_row(task_id)),
    ):
        with pytest.raises(ValueError, match="cannot be decrypted"):
            key.unwrap(wrapped, row=row)


def test_hashes_are_equal_under_one_data_key_and_meaningless_under_another() -> None:
    one, two = DataKey(new_id(), new_secret()), DataKey(new_id(), new_secret())
    assert one.hash_person(b"p" * 16) == one.hash_person(b"p" * 16)
    hashes = {key.hash_person(b"p" * 16) for key in (one, two)}
    hashes |= {key.hash_fingerprint(b"p" * 16) for key in (one, two)}
    assert len(hashes | {b"p" * 16}) == 5


def test_a_file_opens_as_the_key_it_belongs_to() -> None:
    key_id, secret = new_id(), new_secret()
    content = seal_file(VAULT, key_id, secret)
    assert secret not in content
    assert open_file(VAULT, key_id, content) == secret
    for vault, name in ((VAULT, new_id()), (Vault(bytes(32)), key_id)):
        with pytest.raises(ValueError, match="cannot be decrypted"):
            open_file(vault, name, content)


def test_what_an_older_key_encrypted_opens_too_and_is_renewed_once() -> None:
    old, new = bytes(range(32)), bytes(range(1, 33))
    sealed = Vault(old).encrypt("ada", row="r")
    both = Vault(new, previous=old)
    assert both.decrypt(sealed, row="r") == "ada"
    renewed = both.renew(sealed, row="r")
    assert renewed is not None
    assert both.renew(renewed, row="r") is None
    assert Vault(new).decrypt(renewed, row="r") == "ada"
    with pytest.raises(ValueError, match="cannot be decrypted"):
        both.renew(sealed, row="another")


def test_the_check_value_is_of_the_deployment_key_and_hashes_of_the_hash_key() -> None:
    old, new = Vault(bytes(range(32))), bytes(range(1, 33))
    kept = Vault(new, hash_key=old.open_hash_key(old.seal_hash_key()))
    assert kept.keyed_hash("x", purpose="p") == old.keyed_hash("x", purpose="p")
    assert kept.check_value("p") != old.check_value("p")
    assert old.check_value("p") == old.keyed_hash("", purpose="p"), "as earlier versions stored it"


def test_the_cipher_of_a_task_falls_back_to_an_older_one() -> None:
    cipher = RowCipher(new_task_key(), older=VAULT)
    assert cipher.decrypt(VAULT.encrypt("ada", row="r"), row="r") == "ada"
    with pytest.raises(ValueError, match="cannot be decrypted"):
        cipher.decrypt(RowCipher(new_task_key()).encrypt("ada", row="r"), row="r")

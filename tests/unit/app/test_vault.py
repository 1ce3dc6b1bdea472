import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.clock import new_id
from app.core.vault import KeyProblem, Vault, create, load, write_private

KEY = bytes(range(32))


@given(st.text(max_size=300), st.text(max_size=50))
def test_an_identifier_opens_in_its_own_row_only(subject: str, row: str) -> None:
    vault = Vault(KEY)
    sealed = vault.encrypt(subject, row=row)
    assert vault.decrypt(sealed, row=row) == subject
    with pytest.raises(ValueError, match="cannot be decrypted"):
        vault.decrypt(sealed, row=row + "x")


def test_the_same_identifier_never_looks_the_same_twice() -> None:
    vault = Vault(KEY)
    assert vault.encrypt("ada", row="1") != vault.encrypt("ada", row="1")
    assert b"ada" not in vault.encrypt("ada", row="1")


def test_hashes_differ_by_purpose_and_by_key() -> None:
    hashes = {
        Vault(KEY).keyed_hash("ada", purpose="a"),
        Vault(KEY).keyed_hash("ada", purpose="b"),
        Vault(bytes(32)).keyed_hash("ada", purpose="a"),
    }
    assert len(hashes) == 3


def test_the_key_is_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "deployment.key"
    create(path)
    sealed = Vault(load(path)).encrypt("ada", row="r")
    create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Vault(load(path)).decrypt(sealed, row="r") == "ada"
    assert list(path.parent.iterdir()) == [path]


def test_a_secret_file_is_never_overwritten(tmp_path: Path) -> None:
    write_private(tmp_path / "k", b"first")
    write_private(tmp_path / "k", b"second")
    assert (tmp_path / "k").read_bytes() == b"first"


@pytest.mark.parametrize("content", [None, b"", b"not hex", b"ab" * 31, b"\xff\xfe"])
def test_a_missing_or_malformed_key_is_one_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "deployment.key"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(KeyProblem, match="deployment key") as problem:
        load(path)
    assert "\n" not in str(problem.value)


def test_a_salt_and_a_statement_open_in_their_own_row_and_as_what_they_are() -> None:
    vault, task, other = Vault(KEY), new_id(), new_id()
    salt, statement = "5a" * 16, b'{"payload":"e30=","payloadType":"x","signatures":[]}'
    sealed = vault.seal_salt(salt, task_id=task, ordinal=3)
    assert vault.open_salt(sealed, task_id=task, ordinal=3) == salt
    signed = vault.seal_statement(statement, task_id=task, ordinal=3)
    assert vault.open_statement(signed, task_id=task, ordinal=3) == statement
    assert bytes.fromhex(salt) not in sealed
    for task_id, ordinal in ((task, 4), (other, 3)):
        with pytest.raises(ValueError, match="cannot be decrypted"):
            vault.open_salt(sealed, task_id=task_id, ordinal=ordinal)
        with pytest.raises(ValueError, match="cannot be decrypted"):
            vault.open_statement(signed, task_id=task_id, ordinal=ordinal)
    with pytest.raises(ValueError, match="cannot be decrypted"):
        vault.open_statement(sealed, task_id=task, ordinal=3)


def test_what_was_stored_in_the_clear_before_is_still_read() -> None:
    vault, task = Vault(KEY), new_id()
    assert vault.open_salt(bytes(16), task_id=task, ordinal=0) == "00" * 16
    plain = b'{"payload":"e30=","payloadType":"x","signatures":[]}'
    assert vault.open_statement(plain, task_id=task, ordinal=0) == plain

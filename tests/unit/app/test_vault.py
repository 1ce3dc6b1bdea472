import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.vault import KeyProblem, Vault, create, load, write_private

KEY = bytes(range(32))


@given(st.text(max_size=300), st.text(max_size=50))
def test_an_identifier_opens_in_its_own_row_only(subject: str, row: str) -> None:
    vault = Vault(KEY)
    sealed = vault.encrypt(subject, row=row)
    assert vault.decrypt(sealed, row=row) == subject
    with pytest.raises(ValueError, match="does not open"):
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
    sealed = load(path).encrypt("ada", row="r")
    create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load(path).decrypt(sealed, row="r") == "ada"
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

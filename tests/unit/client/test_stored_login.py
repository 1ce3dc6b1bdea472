"""A stored login is private, used where nothing else is said, and sent to its own address only."""

import stat
from pathlib import Path

import pytest

from lethe import Lethe
from lethe.client.stored_login import Login, delete_login, find_access, login_file, read_login, save_login

HERE, ELSEWHERE = "https://lethe.example.org", "https://other.example.org"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("LETHE_URL", "LETHE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_only_its_owner_can_read_the_file(home: Path) -> None:
    old = save_login(Login(HERE, "first"))
    file = save_login(Login(HERE, "secret"))
    assert file == old == home / "config" / "lethe" / "login.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["login.json"]
    assert read_login() == Login(HERE, "secret")
    assert delete_login()
    assert not delete_login()
    assert read_login() is None


def test_a_damaged_file_is_no_login() -> None:
    save_login(Login(HERE, "secret"))
    for text in ("", "[]", '{"url": "x"}', "\xff"):
        login_file().write_text(text)
        assert read_login() is None


def test_arguments_and_environment_take_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_access(None, None) == (None, None)
    save_login(Login(HERE, "stored"))
    assert find_access(None, None) == (HERE, "stored")
    assert find_access(f"{HERE}/", None) == (HERE, "stored")
    assert find_access(None, "given") == (HERE, "given")
    monkeypatch.setenv("LETHE_API_KEY", "from the environment")
    assert find_access(None, None) == (HERE, "from the environment")
    assert find_access(ELSEWHERE, "given") == (ELSEWHERE, "given")


def test_a_stored_key_is_never_sent_to_another_address(monkeypatch: pytest.MonkeyPatch) -> None:
    save_login(Login(HERE, "stored"))
    assert find_access(ELSEWHERE, None) == (ELSEWHERE, None)
    with Lethe(ELSEWHERE) as lethe:
        assert "authorization" not in lethe.http.headers
    monkeypatch.setenv("LETHE_URL", ELSEWHERE)
    assert find_access(None, None) == (ELSEWHERE, None)
    monkeypatch.delenv("LETHE_URL")
    with Lethe() as lethe:
        assert lethe.http.headers["authorization"] == "Bearer stored"
        assert lethe.http.base_url.host == "lethe.example.org"

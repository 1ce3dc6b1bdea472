from pathlib import Path

import pytest

from app.core import settings_page
from app.core.settings import Settings, SettingsError, load_settings


def test_defaults_need_nothing() -> None:
    settings = load_settings({})
    assert settings.database.startswith("sqlite:///")
    assert settings.storage.startswith("file://")
    assert settings.dead_after == 6 * settings.heartbeat_seconds


def test_every_setting_is_documented() -> None:
    undocumented = [name for name, field in Settings.model_fields.items() if not field.description]
    assert undocumented == []


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        ({"LETHE_PROT": "1"}, "LETHE_PROT: unknown setting"),
        ({"LETHE_PORT": "high"}, "LETHE_PORT: must be a whole number"),
        ({"LETHE_PORT": "70000"}, "LETHE_PORT: must be at most 65535"),
        ({"LETHE_PORT": "-1"}, "LETHE_PORT: must be at least 0"),
        ({"LETHE_LEASE_SECONDS": "0"}, "LETHE_LEASE_SECONDS: must be greater than 0"),
        ({"LETHE_LEASE_SECONDS": "soon"}, "LETHE_LEASE_SECONDS: must be a number"),
        ({"LETHE_DASHBOARD": "maybe"}, "LETHE_DASHBOARD: must be true or false"),
        ({"LETHE_DEVICE": "tpu"}, "LETHE_DEVICE: must be 'auto', 'cpu', 'cuda' or 'mps'"),
        ({"LETHE_QUEUE_NAME": "A B"}, "LETHE_QUEUE_NAME: does not have the required form"),
        ({"LETHE_DATABASE_URL": "mysql://x"}, "LETHE_DATABASE_URL: the URL must start with sqlite:/// or "),
    ],
)
def test_a_bad_setting_stops_with_one_line_that_names_it(environ: dict[str, str], line: str) -> None:
    with pytest.raises(SettingsError) as problem:
        load_settings(environ)
    assert str(problem.value).startswith(line)
    assert "\n" not in str(problem.value)


def test_variables_of_the_client_are_not_ours() -> None:
    assert load_settings({"LETHE_URL": "http://x", "LETHE_API_KEY": "k", "OTHER": "1"}).port == 8420


def test_environment_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LETHE_DATA_DIR", str(tmp_path))
    assert load_settings().data_dir == tmp_path


def test_secrets_do_not_show() -> None:
    assert "BEGIN" not in repr(load_settings({"LETHE_SIGNING_KEY": "-----BEGIN"}))


def test_the_page_of_settings_is_up_to_date() -> None:
    assert settings_page.PAGE.read_text() == settings_page.render(), "run: python -m app.core.settings_page"

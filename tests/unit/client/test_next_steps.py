"""What the command line suggests after an error."""

from pathlib import Path
from uuid import UUID

import httpx
import pytest
from typer.testing import CliRunner

from lethe import BatchHeld, Lethe, Retry
from lethe.cli.context import CommandContext
from lethe.cli.exit_status import next_step
from lethe.cli.main import app

BATCH = UUID("01a1eee5-7d97-77e9-aef4-4be6da8833fa")


@pytest.mark.parametrize("reason", ["quality_gate", "unpublished"])
def test_a_draw_on_hold_is_approved_or_discarded(reason: str) -> None:
    step = next_step(BatchHeld(BATCH, reason))
    assert f"`lethe batch approve {BATCH}`" in step
    assert f"`lethe batch discard {BATCH}`" in step
    assert "retry" not in step


@pytest.mark.parametrize("reason", ["budget", "not_certifiable", "cancelled", None])
def test_a_batch_on_hold_without_a_draw_is_retried(reason: str | None) -> None:
    assert next_step(BatchHeld(BATCH, reason)).endswith(f"run `lethe batch retry {BATCH}`.")


def test_keys_of_a_service_without_certificates_are_not_saved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With an empty file, every later verification would fail."""
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json={"keys": []}))
    lethe = Lethe("http://x", "k", transport=transport, retry=Retry(times=0))
    monkeypatch.setattr(CommandContext, "api", lethe)
    done = CliRunner().invoke(app, ["keys", "--to", str(tmp_path / "keys.json")])
    assert (done.exit_code, done.stdout) == (1, "")
    assert "has not issued a certificate" in done.stderr
    assert not (tmp_path / "keys.json").exists()

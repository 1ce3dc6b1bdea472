"""What commands print, with canned responses of the service."""

import json
from io import StringIO
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from lethe import Lethe, Retry
from lethe.cli.context import CommandContext, UsageError
from lethe.cli.ids import find_id
from lethe.cli.main import app
from lethe.cli.progress import batch_progress
from lethe.cli.tables import table
from lethe.client.errors import NotFound
from lethe.client.responses import Batch, Event

# As the gateway answers for a model whose policy is `method: retrain`.
RETRAINED = {
    "model": "clinic",
    "delta": 1e-5,
    "lifetime_epsilon": 8.0,
    "running_shift": 0.0,
    "running_epsilon": 0.0,
    "remaining_epsilon": 8.0,
    "releases_left": None,
    "entries": [
        {
            "certificate_id": str(uuid4()),
            "version": 1,
            "mechanism": "retrain",
            "shift": 0.0,
            "delta": 1e-5,
            "running_shift": 0.0,
            "running_epsilon": 0.0,
            "subjects_shift": 0.0,
            "subjects_epsilon": 0.0,
            "issued_at": "2026-01-31T09:00:00Z",
        }
    ],
}


def _run(monkeypatch: pytest.MonkeyPatch, answer: Any, *words: str) -> Result:
    """Run a command against a service that always returns the same document."""
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=answer))
    lethe = Lethe("http://x", "k", transport=transport, retry=Retry(times=0))
    monkeypatch.setattr(CommandContext, "api", lethe)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, (done.stderr, done.exception)
    return done


def test_the_ledger_of_a_model_that_always_retrains_has_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    output = _run(monkeypatch, RETRAINED, "ledger", "clinic").stdout
    assert "no limit: the policy retrains for every batch" in output
    assert "2026-01-31 09:00 UTC" in output
    document = json.loads(_run(monkeypatch, RETRAINED, "ledger", "clinic", "--json").stdout)
    assert document["releases_left"] is None


def test_the_ledger_counts_the_releases_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    output = _run(monkeypatch, RETRAINED | {"releases_left": 3}, "ledger", "clinic").stdout
    assert ["Releases", "left", "3"] in [line.split() for line in output.splitlines()]


def test_an_unknown_total_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = RETRAINED | {"running_epsilon": None, "remaining_epsilon": None}
    assert "unknown, because it includes an estimate" in _run(monkeypatch, answer, "ledger", "x").stdout


@pytest.mark.parametrize(
    ("people", "message"),
    [
        (0, "Nobody is waiting."),
        (1, "A batch of 1 person is being sealed."),
        (2, "A batch of 2 people is being sealed."),
    ],
)
def test_people_are_counted_in_singular_and_plural(
    monkeypatch: pytest.MonkeyPatch, people: int, message: str
) -> None:
    answer = {"waiting_subjects": people}
    assert _run(monkeypatch, answer, "model", "flush", "clinic").stdout.strip() == message


def test_the_features_of_appended_rows_are_not_shown_as_steps_of_the_solver(
    capsys: pytest.CaptureFixture[str],
) -> None:
    features = {"step": "features", "part": "part2", "percent": 42.0, "eta_seconds": 31.0}
    solver = {"step": 1, "gradient_norm": 1e-3, "distance": 2e-2, "target": 1e-4, "percent": 10}
    fields: dict[str, Any] = dict.fromkeys(Batch.model_fields)
    fields |= {"id": uuid4(), "model": "clinic", "step": "resolve"}
    batch = Batch.model_construct(None, **fields)
    with batch_progress(CommandContext(None, None, as_json=False)) as display:
        display.show_event(batch, Event(id="1", kind="progress", data=features))
        display.show_batch(batch.model_copy(update={"progress": features | {"percent": 50.0}}))
        display.show_batch(batch.model_copy(update={"progress": features, "step": "solve"}))
        display.show_event(batch, Event(id="2", kind="progress", data=solver))
    assert capsys.readouterr().err.splitlines() == [
        "clinic: features part2  42 %  about 31 s left",
        "clinic: features part2  50 %  about 31 s left",
        "clinic: solve",
        "clinic: solve  ‖g‖ 1.0e-03  Δ 2.0e-02  → Δ* 1.0e-04  10 %",
    ]


def test_an_id_may_be_abbreviated_to_its_end_as_the_dashboard_shows_it() -> None:
    items = [SimpleNamespace(id=UUID(int=number)) for number in (0xABCD1234, 0xABCE1234, 0xABCD9999)]
    assert find_id("…abcd1234", "batch", lambda: items, "lethe batch list") == UUID(int=0xABCD1234)
    with pytest.raises(UsageError, match=r"is the end of several IDs: .*; write more characters"):
        find_id("...1234", "batch", lambda: items, "lethe batch list")
    with pytest.raises(NotFound, match="there is no batch whose ID ends with …00ff"):
        find_id("…00ff", "batch", lambda: items, "lethe batch list")


def test_an_id_in_a_table_is_not_broken_on_a_narrow_terminal() -> None:
    identifier = uuid4()
    rows = [(identifier, "a state", "a long reason that has to be broken into several lines")]
    console = Console(width=70, file=StringIO())
    console.print(table(("Batch", "State", "Reason"), rows))
    assert str(identifier) in console.file.getvalue()  # type: ignore[attr-defined]

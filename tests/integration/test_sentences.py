"""State of the system → what the API, the command line and the dashboard say about it."""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lethe.certificate.vocabulary import ASSURANCES
from tests.integration.sentence_states import Observer, observer

ON_HOLD = "On hold, needs a decision"
ERASED = "erased from the model"
RECORDED = "This request has been recorded and is waiting for the next batch."
IN_PROGRESS = "The batch with this request is in progress."
STAYS_OPEN = "A batch with this request is on hold. The request stays open until the model's team decides"


@pytest.fixture(scope="module")
def seen(
    tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path, redis_url: str
) -> Iterator[Observer]:
    with observer(tmp_path_factory.mktemp("sentences"), sqlite_template, redis_url) as found:
        yield found


def text_of(page: str) -> str:
    """Return the words of a page, without its menu and its tags."""
    main = page[page.index("<main") :]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", main)).split())


@dataclass(frozen=True)
class Said:
    """What is said about a request in one state. `command` and `page` are said besides the summary."""

    state: str
    summary: str
    command: tuple[str, ...] = ()
    page: tuple[str, ...] = ()
    late: tuple[int, bool] = (0, False)
    """`late_days` and `overdue`."""
    decisions: tuple[str, ...] = ()


REQUESTS = {
    "waiting": Said("received", f"Received. {RECORDED}"),
    "overdue": Said(
        "received",
        f"Received. {RECORDED}",
        command=("(overdue by 2 days)",),
        page=("overdue by 2 days",),
        late=(2, True),
    ),
    "sealed": Said("batched", "Scheduled. This request is part of a batch that has not started yet."),
    "queued": Said("batched", "Scheduled. This request is part of a batch that has not started yet."),
    "solving": Said("running", f"In progress. {IN_PROGRESS}"),
    "purging": Said("running", f"In progress. {IN_PROGRESS}"),
    "gated": Said(
        "running",
        f"{ON_HOLD}. {STAYS_OPEN}",
        command=("on hold, needs a decision", "lethe batch approve {batch} or lethe batch discard {batch}"),
        page=("Decide…",),
        decisions=("approve", "discard"),
    ),
    "over_budget": Said(
        "running",
        f"{ON_HOLD}. {STAYS_OPEN}",
        command=("on hold, needs a decision", "To decide, run: lethe batch retry {batch}"),
        page=("Decide…",),
        decisions=("retry",),
    ),
    "cancelled": Said(
        "batched",
        f"{ON_HOLD}. {STAYS_OPEN}",
        command=("on hold, needs a decision", "lethe batch retry {batch}"),
        decisions=("retry",),
    ),
    "failed": Said("failed", "Needs attention. The batch with this request failed."),
    "discarded": Said("failed", "Needs attention. The batch with this request failed."),
    "completed": Said(
        "completed", "Done. This request is complete.", command=("erased 1",), page=(f"1 person : {ERASED}",)
    ),
    "late": Said(
        "completed",
        "Done. This request is complete.",
        command=("(late by 1 day)", "erased 1"),
        page=("late by 1 day", f"1 person : {ERASED}"),
        late=(1, False),
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_what_is_said_about_a_request(seen: Observer, name: str) -> None:
    said, erasure_id = REQUESTS[name], str(seen.states.erasures[name])
    batch = str(seen.states.batches.get(name, ""))
    shown = seen.get(f"/v1/erasures/{erasure_id}")
    assert (shown["state"], shown["late_days"], shown["overdue"]) == (said.state, *said.late)
    assert shown["summary"].startswith(said.summary)
    assert shown["tasks"][0]["decisions"] == list(said.decisions)
    assert (shown["completed_at"] is not None) == (said.state == "completed")
    command = seen.command("status", erasure_id)
    assert command == seen.command("erasure", "show", erasure_id)
    page = text_of(seen.page(f"/erasures/{erasure_id}"))
    title, _, meaning = said.summary.partition(". ")
    assert f"{title} {meaning}" in page
    for words in (shown["summary"], *(words.format(batch=batch) for words in said.command)):
        assert words in command
    for words in said.page:
        assert words in page
    if said.decisions:
        assert f'href="/batches/{batch}"' in seen.page(f"/erasures/{erasure_id}")
        assert ON_HOLD in text_of(seen.page("/erasures"))
    if said.state != "completed":
        assert shown["tasks"][0]["outcomes"] == {}
        assert ERASED not in page
        assert "Version 1" not in page, "a version is not free of anyone before the purge"
        assert "erased 1" not in command


@dataclass(frozen=True)
class BatchSaid:
    """What is said about a batch in one state."""

    state: str
    summary: str
    decisions: tuple[str, ...] = ()
    never: tuple[str, ...] = field(default=("Cancel the batch",))


WAITS_FOR_WORKER = ("Queued", "waiting for a free worker", "Waiting for a worker")
BUTTONS = {
    "approve": "Publish as it is…",
    "discard": "Discard the draw…",
    "retry": "Try again…",
    "cancel": "Cancel the batch…",
}
ENDED_WITHOUT = (
    "Failed. This batch ended without a new version. The requests stay open until someone tries it"
)
BATCHES = {
    "sealed": BatchSaid("sealed", "Sealed. The requests in this batch are fixed.", ("cancel",), ()),
    "queued": BatchSaid("queued", "Queued. This batch is waiting for a free worker.", ("cancel",), ()),
    "solving": BatchSaid(
        "running", "Running. A worker is removing the data from the model.", ("cancel",), WAITS_FOR_WORKER
    ),
    "drawing": BatchSaid("running", "Running. A worker is removing the data from the model."),
    "delayed": BatchSaid(
        "sealed",
        "Sealed. A fault of the infrastructure delays this batch. It is retried by itself",
        ("cancel",),
        (),
    ),
    "gated": BatchSaid("held", f"{ON_HOLD}. The new version scores lower", ("approve", "discard")),
    "over_budget": BatchSaid(
        "held", f"{ON_HOLD}. The model's lifetime privacy budget is used up", ("retry",)
    ),
    "cancelled": BatchSaid("held", f"{ON_HOLD}. Someone cancelled this batch.", ("retry",)),
    "failed": BatchSaid("failed", ENDED_WITHOUT, ("retry",)),
    "approved": BatchSaid("sealed", "Sealed. Someone decided to publish the new version as it is."),
    "discarding": BatchSaid("sealed", "Sealed. Someone decided to discard the new version."),
    "discarded": BatchSaid("failed", ENDED_WITHOUT, ("retry",)),
    "purging": BatchSaid("purging", "Cleaning up. The new version is published.", (), WAITS_FOR_WORKER),
    "completed": BatchSaid(
        "completed",
        "Completed. The new version is published and the old data has been deleted.",
        (),
        (*WAITS_FOR_WORKER, "Cancel the batch"),
    ),
}


@pytest.mark.parametrize("name", BATCHES)
def test_what_is_said_about_a_batch(seen: Observer, name: str) -> None:
    said, batch_id = BATCHES[name], str(seen.states.batches[name])
    shown = seen.get(f"/v1/batches/{batch_id}")
    assert (shown["state"], shown["decisions"]) == (said.state, list(said.decisions))
    assert shown["summary"].startswith(said.summary)
    command, page = seen.command("batch", "show", batch_id), text_of(seen.page(f"/batches/{batch_id}"))
    assert shown["summary"] in command
    now, _, history = page.partition("History")
    assert shown["summary"].replace(". ", " ", 1) in now
    for decision, button in BUTTONS.items():
        assert (button in now) == (decision in said.decisions)
    for words in said.never:
        assert words not in now
        assert words not in command
    if said.state in ("held", "failed"):
        assert all(f"lethe batch {decision} {batch_id}" in command for decision in said.decisions)
    assert history.count("Sealed") <= 1, "an event is listed once"


DECISIONS = {
    "discarded": (
        "discard",
        "the score is too low",
        "Ana discarded the version on hold: “the score is too low”",
    ),
    "cancelled": ("cancel", "too early", "Ana cancelled the batch: “too early”"),
}


@pytest.mark.parametrize("name", DECISIONS)
def test_who_decided_and_why_is_shown(seen: Observer, name: str) -> None:
    decision, reason, history = DECISIONS[name]
    batch_id = str(seen.states.batches[name])
    decided = seen.get(f"/v1/batches/{batch_id}")["decided"]
    assert (decided["decision"], decided["by"], decided["reason"]) == (decision, "Ana", reason)
    assert f"{decision} by Ana" in seen.command("batch", "show", batch_id)
    assert history in text_of(seen.page(f"/batches/{batch_id}"))


def test_a_request_over_six_models_claims_only_what_is_done(seen: Observer) -> None:
    erasure_id = str(seen.states.erasures["six"])
    shown = seen.get(f"/v1/erasures/{erasure_id}")
    assert shown["state"] == "received"
    assert shown["summary"].endswith("1 of 6 models is done.")
    assert [task["outcomes"] for task in shown["tasks"]] == [{"erased": 1}, {}, {}, {}, {}, {}]
    page = text_of(seen.page(f"/erasures/{erasure_id}"))
    summary, _, rows = page.partition("Results by model")
    assert ERASED not in summary
    assert rows.count(ERASED) == 1
    assert rows.count("Not known yet") == 5
    assert seen.command("status", erasure_id).count("erased 1") == 1


@dataclass(frozen=True)
class ModelSaid:
    """What is said about a model, and what must not be."""

    says: tuple[str, ...]
    page: tuple[str, ...]
    never: tuple[str, ...] = ()


SURE = "can become at most 73 % sure"
ESTIMATE = ASSURANCES["heuristic"]
MODELS = {
    "proved": ModelSaid((ASSURANCES["proved"], "ε = 1, δ = 1e-05 for each release"), (SURE,)),
    "estimated": ModelSaid(
        (ESTIMATE, "Guarantee none."), (ESTIMATE,), (SURE, "73 %", "Guarantee ε = 1", "carries enough noise")
    ),
    "retrained": ModelSaid((ASSURANCES["proved"], "Guarantee ε = 0"), ("(ε = 0)",), (SURE, "73 %")),
    "rejected": ModelSaid(
        (), ("There are no releases before the model is registered.",), ("more releases are possible",)
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_is_said_about_a_model(seen: Observer, name: str) -> None:
    said = MODELS[name]
    shown, command = seen.get(f"/v1/models/{name}"), seen.command("model", "show", name)
    page = text_of(seen.page(f"/models/{name}"))
    assert shown["assurance_text"] == ASSURANCES[shown["assurance"]]
    assert shown["assurance_text"] in command
    assert shown["assurance_text"] in page
    for words in said.says:
        assert words in command
    for words in said.page:
        assert words in page
    for words in said.never:
        assert words not in command
        assert words not in page
    left = seen.get(f"/v1/models/{name}/ledger")["releases_left"]
    assert (left == 0) == (name == "rejected")


def test_a_reason_by_command_or_api_is_kept_with_the_batch(seen: Observer) -> None:
    approved, discarded = (str(seen.states.batches[name]) for name in ("to_approve", "to_discard"))
    shown = seen.command("batch", "approve", approved, "--reason", "the score is fine")
    assert "approve by test" in shown
    assert "the score is fine" in shown
    refused = seen.post(f"/v1/batches/{discarded}/discard", {"reason": "x" * 201})
    assert refused.status_code == 422
    decided = seen.post(f"/v1/batches/{discarded}/discard", {"reason": "too weak"}).json()["decided"]
    assert (decided["decision"], decided["by"], decided["reason"]) == ("discard", "test", "too weak")
    assert seen.get(f"/v1/batches/{approved}")["decided"]["reason"] == "the score is fine"
    page = text_of(seen.page(f"/batches/{approved}"))
    assert page.count("test approved the version on hold: “the score is fine”") == 1
    entries = seen.get("/v1/audit-log")["items"]
    for action in ("batch.approved", "batch.discarded"):
        (entry,) = [e for e in entries if e["action"] == action and e["actor"]["name"] == "test"]
        assert entry["details"]["reason"] == "in the history of the batch"
    assert "reason in the history of the batch" in seen.command("audit-log", "list")
    assert "too weak" not in str(entries), "the audit log can never be changed, so it holds no free text"


def test_the_reason_of_a_withdrawal_is_shown_with_the_request(seen: Observer) -> None:
    erasure_id = str(seen.states.erasures["to_withdraw"])
    shown = seen.command("erasure", "withdraw", erasure_id, "--reason", "sent twice")
    assert "Withdrawn because sent twice" in shown
    assert seen.get(f"/v1/erasures/{erasure_id}")["withdrawal_reason"] == "sent twice"
    page = text_of(seen.page(f"/erasures/{erasure_id}"))
    assert "Withdrawn This request was withdrawn before it was carried out." in page
    assert "Withdrawn because sent twice" in page
    (entry,) = seen.get("/v1/audit-log?action=erasure.withdrawn")["items"]
    assert entry["details"] == {"reason": "in the erasure"}


def test_a_request_for_a_model_that_is_not_registered_ends_at_once_and_says_why(seen: Observer) -> None:
    asked = seen.post("/v1/erasures", {"subjects": ["a", "b"], "models": ["rejected"]})
    assert asked.status_code == 202, asked.text
    erasure_id = asked.json()["id"]
    shown = seen.get(f"/v1/erasures/{erasure_id}")
    assert shown["summary"] == "Done. This request is complete."
    assert shown["tasks"][0]["outcomes"] == {"model_not_registered": 2}
    command, page = seen.command("status", erasure_id), text_of(seen.page(f"/erasures/{erasure_id}"))
    assert "model not registered 2" in command
    assert "2 people: the model was not registered" in page
    for place in (shown["tasks"][0]["notice"], command, page):
        assert "its files were not searched" in place
        assert "Lethe does not remember them and will not remind you." in place
    assert ERASED not in page

"""Everything that people do with the dashboard, in a real browser. All tests share one service."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from app.core.clock import now
from app.dispatcher.loop import Dispatcher
from app.gateway.auth.scopes import Scope
from tests.browser.accessibility import problems
from tests.browser.conftest import sign_in, start_site
from tests.browser.site import Site
from tests.browser.test_dashboard_path import HARD, Steps, steps
from tests.integration.harness import MANIFEST, dataset

__all__ = ["steps"]  # a fixture
pytestmark = pytest.mark.slow
READ_ONLY = (Scope.ERASURES_READ, Scope.MODELS_READ, Scope.CERTIFICATES_READ)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path, redis_url: str) -> Iterator[Site]:
    """Start one site for the module, with a model that collects 50 people before it starts a batch."""
    running = start_site(tmp_path_factory.mktemp("site"), sqlite_template, redis_url)
    running.register("scans", batch_subjects=50, min_batch_subjects=3)
    yield running
    running.close()


def _enter(page: Page, reference: str, *people: str, **more: str) -> None:
    """Enter a request for the model `scans` with the form."""
    page.goto("/erasures/new")
    page.get_by_label("Whom to erase").fill("\n".join(people))
    page.get_by_label("Your reference").fill(reference)
    for label, value in more.items():
        page.get_by_label(label).fill(value)
    if page.get_by_label("scans", exact=True).count():
        page.get_by_label("scans", exact=True).check()


def _send(page: Page) -> None:
    page.get_by_role("button", name="Enter the request").click()


def _fact(page: Page, label: str) -> Any:
    return page.locator(f"dt:text-is('{label}') + dd").first


def test_a_request_is_entered_extended_and_withdrawn(signed_in: Page) -> None:
    page = signed_in
    page.get_by_role("link", name="New request").click()
    assert problems(page) == []
    asked = now() - timedelta(days=40)
    _enter(page, "case-1", "s1", Jurisdiction="GDPR", **{"Received on": f"{asked:%Y-%m-%d}"})
    _send(page)
    expect(page.get_by_role("heading", name="Request case-1")).to_be_visible()
    expect(page.get_by_role("heading", name="Received", exact=True)).to_be_visible()
    expect(_fact(page, "Received")).to_contain_text(f"{asked.day} {asked:%b %Y}, 00:00 UTC")
    expect(_fact(page, "Answer due")).to_contain_text("overdue by")
    expect(_fact(page, "Completed")).to_have_text("Not yet")

    page.get_by_role("link", name="Extend the deadline…").click()
    assert problems(page) == []
    page.get_by_label("Why the request needs more time").fill("Three systems have to be searched.")
    page.get_by_role("button", name="Extend the deadline").click()
    expect(_fact(page, "Deadline extended because")).to_have_text("Three systems have to be searched.")
    expect(page.get_by_text("overdue")).to_have_count(0)
    expect(page.get_by_role("link", name="Extend the deadline…")).to_have_count(0)

    page.get_by_role("link", name="Withdraw…").click()
    page.get_by_role("button", name="Withdraw the request").click()
    expect(page.get_by_role("heading", name="Withdrawn")).to_be_visible()
    expect(_fact(page, "Completed")).to_have_text("Withdrawn")
    expect(page.get_by_role("link", name="Withdraw…")).to_have_count(0)


def test_a_csv_file_is_uploaded_and_a_wrong_one_explained(
    signed_in: Page, site: Site, tmp_path: Path
) -> None:
    page = signed_in
    wrong, right = tmp_path / "wrong.csv", tmp_path / "right.csv"
    wrong.write_text("name\ns4\n")
    right.write_text("note,subject_id\nx,s4\ny,s5\n")
    _enter(page, "case-2")
    _send(page)
    expect(page.get_by_role("alert")).to_have_text("Enter at least one identifier, or choose a CSV file.")
    expect(page.get_by_label("Your reference")).to_have_value("case-2")
    assert problems(page) == []
    page.get_by_label("Or a CSV file").set_input_files(wrong)
    _send(page)
    expect(page.get_by_role("status")).to_have_text("The first line must name the column subject_id.")
    page.get_by_label("Or a CSV file").set_input_files(right)
    _send(page)
    expect(page.get_by_role("heading", name="Request case-2")).to_be_visible()
    expect(_fact(page, "People")).to_have_text("2")
    assert len(site.call("GET", "/v1/erasures?reference=case-2")["items"]) == 1


def test_identifiers_that_look_mistyped_are_pointed_out(signed_in: Page) -> None:
    page = signed_in
    _enter(page, "case-3", "s6 ")
    _send(page)
    expect(page.get_by_role("heading", name="Request recorded")).to_be_visible()
    expect(page.get_by_text("1 identifier begins or ends with white space")).to_be_visible()
    assert problems(page) == []
    page.get_by_role("link", name="View the request").click()
    expect(page.get_by_role("heading", name="Request case-3")).to_be_visible()


def test_few_people_are_flushed_only_on_purpose(signed_in: Page, site: Site) -> None:
    site.register("few", batch_subjects=50, min_batch_subjects=10)
    erasure = site.erase("s1", models=["few"], reference="case-4")
    page = signed_in
    page.goto("/models/few")
    expect(page.get_by_text("1 person is waiting for the next batch.")).to_be_visible()
    page.get_by_role("link", name="Start the batch now…").click()
    expect(page.get_by_text("Only 1 person is waiting, and the policy requires at least 10.")).to_be_visible()
    assert problems(page) == []
    page.get_by_label("Start it anyway").check()
    page.get_by_role("button", name="Start the batch now").click()
    expect(page.get_by_role("heading", name="few")).to_be_visible()
    page.goto(f"/erasures/{erasure}")
    expect(page.get_by_text("Receipts appear here when the request is done")).to_be_visible()
    page.evaluate("window.kept = true")
    site.work()
    expect(page.get_by_role("heading", name="Done")).to_be_visible()
    expect(page.get_by_role("link", name="Letter for person 1")).to_be_visible()
    expect(page.get_by_role("link", name="Withdraw…")).to_have_count(0)
    assert page.evaluate("window.kept"), "the page must not have been loaded again"
    expect(_fact(page, "Completed")).to_contain_text("UTC")
    expect(page.get_by_text("late by")).to_have_count(0)


def test_a_model_is_registered_with_its_files(signed_in: Page, site: Site, tmp_path: Path) -> None:
    page = signed_in
    rows = tmp_path / "rows.parquet"
    rows.write_bytes(dataset())
    page.goto("/models")
    page.get_by_role("link", name="Register a model").click()
    page.get_by_label("Name").fill("fresh")
    name, manifest = (page.get_by_label(label, exact=True).bounding_box() for label in ("Name", "Manifest"))
    assert name is not None
    assert manifest is not None
    assert name["width"] == manifest["width"]
    page.get_by_label("Manifest", exact=True).fill('family = "softmax"\nwidth = 0\n')
    page.get_by_role("button", name="Create the model").click()
    expect(page.get_by_role("alert")).to_contain_text("width: must be at least 1")
    expect(page.get_by_role("alert")).to_contain_text("origins: is required")
    assert problems(page) == []
    page.get_by_label("Manifest", exact=True).fill(_toml())
    page.get_by_role("button", name="Create the model").click()
    expect(page.get_by_role("heading", name="fresh")).to_be_visible()
    expect(page.get_by_role("button", name="Check and register")).to_have_count(0)
    page.get_by_label("File", exact=True).set_input_files(rows)
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_role("row", name="Training rows (Parquet): part0")).to_be_visible()
    assert problems(page) == []
    page.get_by_role("button", name="Check and register").click()
    expect(page.get_by_text("A worker is checking the data and weights.")).to_be_visible()
    site.work()
    expect(page.get_by_text("Lethe can erase people from this model.")).to_be_visible()  # without a reload


def _toml() -> str:
    lines = [f'family = "{MANIFEST["family"]}"', "width = 6", "classes = 3", "lambda = 0.05"]
    origins = [f'{name} = "{text}"' for name, text in MANIFEST["origins"].items()]
    return "\n".join([*lines, "[origins]", *origins, "[policy]", "target_distance = 1e-4"])


def test_the_progress_of_an_upload_is_shown(signed_in: Page, site: Site, tmp_path: Path) -> None:
    """The request is held back, so that the page shows what it shows during an upload."""
    site.call("POST", "/v1/models", json={"name": "large", "manifest": MANIFEST})
    page = signed_in
    rows = tmp_path / "rows.parquet"
    rows.write_bytes(dataset())
    page.goto("/models/large")
    expect(page.locator("progress")).to_be_hidden()
    uploads: list[Route] = []
    page.route("**/models/large/files", lambda route: uploads.append(route))
    page.get_by_label("File", exact=True).set_input_files(rows)
    page.get_by_role("button", name="Upload").click()
    expect(page.locator("progress")).to_be_visible()
    expect(page.get_by_role("button", name="Upload")).to_be_disabled()
    assert problems(page) == []
    uploads[0].continue_()
    expect(page.get_by_role("row", name="Training rows (Parquet): part0")).to_be_visible()


@pytest.mark.parametrize(
    ("button", "title", "label", "after", "event"),
    [
        (
            "Publish as it is…",
            "Publish as it is",
            "Why this version may be published",
            "Completed",
            "approved",
        ),
        ("Discard the draw…", "Discard the draw", "Why this version is discarded", "Failed", "discarded"),
    ],
)
def test_a_decision_names_who_made_it_and_why(
    signed_in: Page, site: Site, browser: Browser, button: str, title: str, label: str, after: str, event: str
) -> None:
    """Someone else who has the page open sees the decision and its result without a reload."""
    name = f"gated-{event}"
    erasure, batch = site.hold(name, "s1", "s2", reference=f"case-{event}")
    watcher = browser.new_context(base_url=site.url).new_page()
    sign_in(watcher, site.key)
    watcher.goto(f"/batches/{batch}")
    expect(watcher.get_by_role("link", name=button)).to_be_visible()
    page = signed_in
    page.goto(f"/erasures/{erasure}")
    expect(page.get_by_role("heading", name="On hold, needs a decision")).to_be_visible()
    expect(page.get_by_text("Not known yet")).to_be_visible()
    page.get_by_role("link", name="Decide…").click()
    page.get_by_role("link", name=button).click()
    assert problems(page) == []
    page.get_by_role("button", name=title).click()
    assert page.get_by_label(label).evaluate("field => !field.validity.valid"), "a reason is required"
    page.get_by_label(label).fill("The board agreed.")
    page.get_by_role("button", name=title).click()
    expect(page.get_by_text(f"test {event} the version on hold: “The board agreed.”")).to_be_visible()
    expect(watcher.get_by_text(f"test {event} the version on hold")).to_be_visible()
    expect(watcher.get_by_role("link", name=button)).to_have_count(0)
    site.work()
    expect(watcher.get_by_role("heading", name=after)).to_be_visible()
    watcher.context.close()


def test_the_page_of_a_batch_follows_it_without_a_reload(signed_in: Page, site: Site, steps: Steps) -> None:
    site.register("followed", batch_subjects=2, **HARD)
    site.erase("s1", "s2", models=["followed"])
    Dispatcher(site.services).seal_due()
    (batch,) = [b["id"] for b in site.call("GET", "/v1/batches")["items"] if b["model"] == "followed"]
    page = signed_in
    page.goto(f"/batches/{batch}")
    expect(page.get_by_role("heading", name="Sealed")).to_be_visible()
    expect(page.get_by_role("link", name="Cancel the batch…")).to_be_visible()
    page.evaluate("window.kept = true")
    worker = threading.Thread(target=site.work)
    worker.start()
    try:
        expect(page.get_by_role("heading", name="Running")).to_be_visible()
        expect(page.get_by_text("A worker is removing the data from the model.")).to_be_visible()
        expect(page.get_by_text("waiting for a free worker")).to_have_count(0)
        expect(page.locator("[data-batch-step=solve]")).to_have_class("now")
        expect(page.locator("circle.gradient")).to_have_count(1)
        assert problems(page) == []
    finally:
        steps.allow(1000)
        worker.join()
    expect(page.get_by_role("heading", name="Completed")).to_be_visible()
    expect(
        page.get_by_text("The new version is published and the old data has been deleted.")
    ).to_be_visible()
    expect(page.get_by_role("link", name="Cancel the batch…")).to_have_count(0)
    expect(page.get_by_role("link", name="View the certificate")).to_be_visible()
    assert page.evaluate("window.kept"), "the page must not have been loaded again"


def test_search_finds_everything_by_its_name(signed_in: Page, site: Site) -> None:
    page = signed_in
    erasure = site.erase("s9", models=["scans"], reference="case-8")
    site.erase("s9", models=["scans"], reference="twice")
    site.erase("s9", models=["scans"], reference="twice")
    for text, heading in (("case-8", "Request case-8"), (erasure, "Request case-8"), ("scans", "scans")):
        page.goto("/")
        page.get_by_role("searchbox").fill(text)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name=heading, exact=True)).to_be_visible()
    page.goto("/search?q=twice")
    expect(page.get_by_text("2 results")).to_be_visible()
    page.goto("/search?q=nothing+at+all")
    expect(page.get_by_text("Nothing was found.")).to_be_visible()
    assert problems(page) == []


def test_a_reader_sees_no_buttons(page: Page, site: Site) -> None:
    erasure = site.erase("s10", models=["scans"], reference="case-10")
    site.call("POST", "/v1/models", json={"name": "unfinished", "manifest": MANIFEST})
    _, key = site.new_key("clinic", *READ_ONLY)
    sign_in(page, key)
    for path in ("/", "/erasures", f"/erasures/{erasure}", "/models", "/models/scans", "/models/unfinished"):
        page.goto(path)
        expect(page.locator("main form[method=post]")).to_have_count(0)
        for name in ("New request", "Register", "Withdraw", "Extend", "Start the batch", "Upload"):
            expect(page.get_by_role("link", name=name)).to_have_count(0)
            expect(page.get_by_role("button", name=name)).to_have_count(0)

"""Pages stay usable when there is no data, a lot of data, a failure, or a small screen."""

import re
from datetime import timedelta
from typing import Any, Literal

from playwright.sync_api import Browser, Page, expect
from sqlalchemy import insert, select

from app.core.clock import new_id, now
from app.db.states import TaskState
from app.db.tables import Batch, BatchEvent, Erasure, Job, Model, Task
from app.gateway.auth.scopes import Scope
from tests.browser.accessibility import problems
from tests.browser.conftest import PATIENCE, sign_in
from tests.browser.site import Site
from tests.integration.harness import MANIFEST, UNREACHABLE

SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
EMPTY = {
    "/": "There are no open requests",
    "/erasures": "There are no requests yet",
    "/batches": "There are no batches yet",
    "/models": "There are no models yet",
    "/certificates": "There are no certificates yet",
}


def test_an_empty_system_shows_what_to_do(signed_in: Page) -> None:
    for path, message in EMPTY.items():
        signed_in.goto(path)
        expect(signed_in.get_by_text(message).first).to_be_visible()
        assert problems(signed_in) == [], path


def test_a_failed_batch_shows_the_reason_and_can_be_retried(signed_in: Page, site: Site) -> None:
    page = signed_in
    site.register()
    site.erase("s1", "s2")
    batch = _fail(site)
    page.goto("/batches")
    page.get_by_role("row", name="Failed").get_by_role("link").first.click()
    expect(page.get_by_role("heading", name="Failed")).to_be_visible()
    expect(page.get_by_text("the disk is full")).to_be_visible()
    expect(page.locator("circle.gradient")).to_have_count(3)  # a failed batch keeps its steps
    assert problems(page) == []
    page.get_by_role("link", name="Try again…").click()
    expect(page.get_by_role("heading", name="Try again?")).to_be_visible()
    assert problems(page) == []
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("heading", name="Sealed")).to_be_visible()
    site.work()
    page.goto(f"/batches/{batch}")
    expect(page.get_by_role("heading", name="Completed")).to_be_visible()


def _fail(site: Site) -> Any:
    """Store a batch as the dispatcher leaves it after the last attempt failed."""
    with site.services.database.writing() as session:
        model = session.scalars(select(Model)).one()
        job = Job(id=new_id(), kind="unlearn", model_id=model.id, state="failed", finished_at=now())
        session.add(job)
        session.flush()
        batch = Batch(
            id=new_id(),
            model_id=model.id,
            job_id=job.id,
            state="failed",
            error="the disk is full",
            sealed_because="count",
            policy=dict(model.manifest["policy"]),
            subjects=2,
        )
        session.add(batch)
        session.flush()
        for task in session.scalars(select(Task)):
            task.batch_id, task.state = batch.id, TaskState.FAILED
        for step in range(3):
            figures = {"step": step, "gradient_norm": 10.0**-step, "distance": 20 * 10.0**-step}
            more = {"target": 1e-4, "passes": step, "seconds": step / 10}
            session.add(BatchEvent(batch_id=batch.id, kind="progress", data=figures | more))
    return batch.id


def test_a_thousand_requests_are_paged(signed_in: Page, site: Site) -> None:
    site.call("POST", "/v1/models", json={"name": "toy", "manifest": MANIFEST})
    _fill(site, 1000)
    page = signed_in
    page.goto("/")
    expect(page.get_by_role("link", name="1,000+ open requests")).to_be_visible()
    expect(page.get_by_role("link", name="40 overdue")).to_be_visible()
    assert page.get_by_role("row").count() == 7  # six requests and the header
    page.get_by_role("link", name="1,000+ open requests").click()
    expect(page.get_by_text("1,000+ requests, newest first")).to_be_visible()
    seen: set[str] = set()
    older = ""
    page.get_by_role("link", name="Older").click()
    expect(page.get_by_role("link", name="← Newest")).to_be_visible()
    while True:
        text = page.request.get(older or page.url).text()  # without rendering the remaining pages
        seen |= set(re.findall(r">(case-\d+)</a>", text))
        if (found := re.search(r'rel="next" href="(\?cursor=[^"]+)"', text)) is None:
            break
        older = f"/erasures{found.group(1)}"
    assert len(seen) == 950
    page.get_by_role("link", name="← Newest").click()
    page.get_by_label("Request id or your reference").fill("case-500")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_text("1 request found")).to_be_visible()
    page.get_by_label("Request id or your reference").fill("")
    page.get_by_label("Overdue only").check()
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_text("40 requests found")).to_be_visible()
    assert problems(page) == []


def _fill(site: Site, number: int) -> None:
    """Store requests, of which every 25th is overdue."""
    with site.services.database.writing() as session:
        model = session.scalars(select(Model)).one()
        ids = [new_id() for _ in range(number)]
        due = [now() + timedelta(days=-2 if n % 25 == 0 else 5 + n % 20) for n in range(number)]
        session.execute(
            insert(Erasure),
            [
                {
                    "id": ids[n],
                    "tenant_id": model.tenant_id,
                    "reference": f"case-{n}",
                    "subjects": 1,
                    "received_at": now(),
                    "due_at": due[n],
                }
                for n in range(number)
            ],
        )
        session.execute(
            insert(Task),
            [
                {"id": new_id(), "erasure_id": ids[n], "model_id": model.id, "subjects": 1, "due_at": due[n]}
                for n in range(number)
            ],
        )


def test_every_page_is_readable_on_a_small_screen_in_light_and_dark(browser: Browser, site: Site) -> None:
    paths = _everything(site)
    context = browser.new_context(base_url=site.url, viewport={"width": 360, "height": 740})
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    page.goto("/login")
    assert problems(page) == []
    sign_in(page, site.key)
    for path in paths:
        answer = page.goto(path)
        assert answer is not None
        assert answer.status in (200, 404), path
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            assert problems(page) == [], (path, scheme)
        if path in ("/", "/reports"):  # the first and the last
            _check_navigation(page)
    context.close()


def _check_navigation(page: Page) -> None:
    """The links are in one row, which can be scrolled and begins where the current page is in view."""
    links = page.get_by_role("navigation", name="Main").get_by_role("link")
    boxes = [box for link in links.all() if (box := link.bounding_box()) is not None]
    assert len({box["y"] for box in boxes}) == 1
    current = page.locator("nav [aria-current]").bounding_box()
    assert current is not None
    assert 0 <= current["x"] <= current["x"] + current["width"] <= 360


def _everything(site: Site) -> list[str]:
    """Return the path of one page of each kind, with content."""
    site.register(rows=600, subjects=120, batch_subjects=20)
    erasure = site.erase(*(f"s{n}" for n in range(20)), reference="case-17", jurisdiction="GDPR")
    site.work()
    site.call("PATCH", "/v1/models/toy", json={"policy": {"quality_gate": UNREACHABLE}})
    site.erase(*(f"s{n}" for n in range(40, 60)))
    site.work()
    (task,) = site.call("GET", f"/v1/erasures/{erasure}")["tasks"]
    held = site.call("GET", "/v1/batches")["items"][0]
    assert held["state"] == "held"
    lists = ["/", "/erasures", "/batches", "/models", "/certificates"]
    return [
        *lists,
        f"/erasures/{erasure}",
        "/models/toy",
        f"/batches/{held['id']}",
        f"/batches/{held['id']}/discard",
        f"/batches/{task['batch_id']}",
        f"/certificates/{task['certificate_id']}",
        f"/certificates/{task['certificate_id']}/print",
        f"/erasures/{erasure}/letter/0",
        f"/reports/{now():%Y-%m}",
        "/reports",
        "/erasures/new",
        "/register",
        "/models/toy/flush",
        "/search?q=nothing",
        f"/erasures/{new_id()}",
    ]


def test_a_request_on_hold_does_not_claim_that_anyone_was_erased(signed_in: Page, site: Site) -> None:
    _everything(site)
    page = signed_in
    page.goto("/")
    row = page.get_by_role("row", name="On hold, needs a decision").first
    row.get_by_role("link").first.click()
    expect(page.get_by_role("heading", name="On hold, needs a decision")).to_be_visible()
    expect(page.get_by_text("Not known yet")).to_be_visible()
    expect(page.get_by_text("erased from the model")).to_have_count(0)


def test_a_key_with_one_scope_sees_only_what_it_allows(page: Page, site: Site) -> None:
    _, key = site.new_key("clinic", Scope.ERASURES_READ)
    sign_in(page, key)
    expect(page.get_by_role("navigation", name="Main").get_by_role("link")).to_have_count(3)
    expect(page.get_by_text("It needs the scope")).to_have_count(2)
    assert problems(page) == []

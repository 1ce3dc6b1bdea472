"""The main path in a real browser: sign in, watch an erasure, read the certificate and verify it offline."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from lethe.certificate.cli import run_verify
from tests import eventually
from tests.browser.accessibility import problems
from tests.browser.conftest import sign_in
from tests.browser.site import Site
from worker import context as job_context
from worker.context import JobContext

pytestmark = pytest.mark.slow

HARD: dict[str, Any] = {"lam": 1e-3, "target_distance": 1e-8}  # the solver needs several steps


class Steps:
    """Makes the solver report every step, and wait before the next one until the test allows it."""

    def __init__(self) -> None:
        self._permits = threading.Semaphore(0)

    def wait(self) -> None:
        assert self._permits.acquire(timeout=240), "the test did not allow another step"

    def allow(self, number: int = 1) -> None:
        self._permits.release(number)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    report: Callable[..., None] = JobContext.progress
    steps = Steps()

    def report_and_wait(self: JobContext, data: Any) -> None:
        report(self, data)
        steps.wait()

    monkeypatch.setattr(job_context, "PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr(JobContext, "progress", report_and_wait)
    return steps


@contextmanager
def _at_work(site: Site, steps: Steps) -> Iterator[None]:
    """Run the jobs in another thread. The solver has reported a step when the block begins."""
    worker = threading.Thread(target=site.work)
    worker.start()
    try:
        eventually(lambda: any(batch["progress"] for batch in site.call("GET", "/v1/batches")["items"]))
        yield
    finally:
        steps.allow(1000)
        worker.join()


def test_from_the_request_to_offline_verification(
    signed_in: Page, site: Site, tmp_path: Path, steps: Steps
) -> None:
    page = signed_in
    site.register(**HARD)
    erasure = site.erase("s1", "s2", reference="case-17")

    page.goto("/")
    page.get_by_role("link", name="case-17").click()
    expect(page.get_by_role("heading", name="Received")).to_be_visible()

    page.goto("/")
    with _at_work(site, steps):
        _watch(page, steps)
    page.goto(f"/erasures/{erasure}")
    expect(page.get_by_role("heading", name="Done")).to_be_visible()
    receipt = _download(page, "Download the receipt of person 1 for toy", tmp_path)
    page.get_by_role("link", name="Certificate", exact=True).click()

    expect(page.get_by_role("heading", name="Verified", exact=True)).to_be_visible()
    assert page.locator(".checks .ok").count() == 8
    assert page.locator(".checks .failed").count() == 0
    assert problems(page) == []
    files: dict[str, Any] = {
        name: _download(page, link, tmp_path)
        for name, link in {"pack": "Pack", "model": "Weights", "keys": "Public keys"}.items()
    }
    _download(page, "Signature", tmp_path)
    _download(page, "Sigstore bundle", tmp_path)
    command = page.get_by_label("Command").inner_text()
    assert all(path.name in command for path in files.values())
    output: list[str] = []
    assert run_verify(**files, receipt=receipt, subject="s1", write=output.append) == 0, output
    assert any(line.startswith("VERIFIED. This proves") for line in output)


def _watch(page: Page, steps: Steps) -> None:
    """The chart grows with each step, without a reload, on the overview and on the batch page."""
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()  # loaded before the batch started
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # as if the tab was opened again
    status, points = page.get_by_role("status"), page.locator("circle.gradient")
    expect(status).to_contain_text("Step")
    expect(points).to_have_count(1)
    steps.allow()
    expect(points).to_have_count(2)
    page.get_by_role("link", name="View the batch").click()
    expect(points).to_have_count(2)
    expect(page.locator("line.target")).to_have_count(1)
    expect(page.get_by_role("img", name="Gradient norm")).to_be_visible()
    expect(page.locator("[data-batch-step=solve]")).to_have_class("now")
    assert problems(page) == []
    steps.allow(1000)
    expect(page.get_by_role("heading", name="Completed")).to_be_visible()
    assert page.locator("[data-steps] tr").count() >= 2
    page.get_by_role("link", name="View the result").click()
    expect(page.get_by_role("link", name="View the certificate")).to_be_visible()


def _download(page: Page, name: str, folder: Path) -> Path:
    with page.expect_download() as waiting:
        page.get_by_role("link", name=name, exact=True).click()
    path = folder / waiting.value.suggested_filename
    waiting.value.save_as(path)
    return path


def test_the_main_path_by_keyboard_alone(page: Page, site: Site) -> None:
    site.register()
    site.erase("s1", "s2", reference="case-17")
    site.work()
    page.goto("/")
    expect(page.get_by_label("API key")).to_be_focused()  # a key typed before that would lose its beginning
    page.keyboard.type(site.key)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    _tab_to(page, "toy, version 1")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="What is guaranteed")).to_be_visible()
    _tab_to(page, "Pack")
    with page.expect_download() as waiting:
        page.keyboard.press("Enter")
    assert waiting.value.suggested_filename == "toy-v1.pack.json"
    page.goto("/")
    _tab_to(page, "Sign out")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def _tab_to(page: Page, name: str) -> None:
    """Press Tab until the element has the focus, which must be visible at every stop."""
    for _ in range(60):
        page.keyboard.press("Tab")
        focused: Any = page.evaluate(
            "() => { const e = document.activeElement, s = getComputedStyle(e);"
            " return [e.textContent.trim(), s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2]; }"
        )
        assert focused[1], f"the focus on {focused[0]!r} is not visible"
        if focused[0] == name:
            return
    raise AssertionError(f"Tab does not reach {name}")


def test_without_scripts_the_steps_are_shown_as_a_table(browser: Browser, site: Site, steps: Steps) -> None:
    site.register(**HARD)
    site.erase("s1", "s2")
    context = browser.new_context(base_url=site.url, java_script_enabled=False)
    page = context.new_page()
    with _at_work(site, steps):
        sign_in(page, site.key)
        page.get_by_role("link", name="View the batch").click()
        # Scripts are off, but the parser still hides <noscript>, so only its source text can be checked.
        assert "Scripts are off" in page.content()
        page.get_by_text("Show as a table").click()
        expect(page.locator("[data-steps] tr")).to_have_count(1)
        expect(page.locator("[data-steps] th")).to_be_visible()
    context.close()

"""The main path in a real browser: sign in, watch an erasure, read the certificate, verify it offline."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from certificate.cli import run_verify
from tests import eventually
from tests.browser.accessibility import problems
from tests.browser.conftest import sign_in
from tests.browser.site import Site
from worker.pipeline import context as attempt

pytestmark = pytest.mark.slow

HARD = {"lam": 1e-3, "target_distance": 1e-8}  # several steps


class Steps:
    """The solver tells every step, and takes the next one when it is let."""

    def __init__(self) -> None:
        self._permits = threading.Semaphore(0)

    def wait(self) -> None:
        assert self._permits.acquire(timeout=60), "nobody watches"

    def let(self, number: int = 1) -> None:
        self._permits.release(number)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    told: Callable[..., None] = attempt.Context.progress
    made = Steps()

    def and_wait(self: attempt.Context, data: Any) -> None:
        told(self, data)
        made.wait()

    monkeypatch.setattr(attempt, "PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr(attempt.Context, "progress", and_wait)
    return made


@contextmanager
def _at_work(site: Site, steps: Steps) -> Iterator[None]:
    """The jobs run beside the test; a step of the solver is there when the block begins."""
    worker = threading.Thread(target=site.work)
    worker.start()
    try:
        eventually(lambda: any(batch["progress"] for batch in site.call("GET", "/v1/batches")["items"]))
        yield
    finally:
        steps.let(1000)
        worker.join()


def test_from_the_request_to_a_verdict_that_needs_no_server(
    signed_in: Page, site: Site, tmp_path: Path, steps: Steps
) -> None:
    page = signed_in
    site.register(**HARD)
    erasure = site.erase("s1", "s2", reference="case-17")

    page.goto("/")
    page.get_by_role("link", name="case-17").click()
    expect(page.get_by_role("heading", name="Received")).to_be_visible()

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
    files = {
        name: _download(page, link, tmp_path)
        for name, link in {"pack": "Pack", "model": "Checkpoint", "keys": "Published keys"}.items()
    }
    _download(page, "Signature", tmp_path)
    _download(page, "Sigstore bundle", tmp_path)
    command = page.get_by_label("Command").inner_text()
    assert all(path.name in command for path in files.values())
    said: list[str] = []
    assert run_verify(**files, receipt=receipt, subject="s1", write=said.append) == 0, said
    assert any(line.startswith("VERIFIED. This proves") for line in said)


def _watch(page: Page, steps: Steps) -> None:
    """The plot grows while the solver works, without a reload, on the overview and on the batch's page."""
    page.goto("/")
    status, points = page.get_by_role("status"), page.locator("circle.gradient")
    expect(status).to_contain_text("Step")
    expect(points).to_have_count(1)
    steps.let()
    expect(points).to_have_count(2)
    page.get_by_role("link", name="The batch").click()
    expect(points).to_have_count(2)
    expect(page.locator("line.target")).to_have_count(1)
    expect(page.get_by_role("img", name="Gradient norm")).to_be_visible()
    expect(page.locator("[data-walk=solve]")).to_have_class("now")
    assert problems(page) == []
    steps.let(1000)
    expect(page.get_by_role("heading", name="Completed")).to_be_visible()
    assert page.locator("[data-steps] tr").count() >= 2
    page.get_by_role("link", name="See what came of it").click()
    expect(page.get_by_role("link", name="See the certificate")).to_be_visible()


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
    page.keyboard.type(site.key)  # the field has the focus
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
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
    """By Tab, with the focus visible at every stop."""
    for _ in range(60):
        page.keyboard.press("Tab")
        focused: Any = page.evaluate(
            "() => { const e = document.activeElement, s = getComputedStyle(e);"
            " return [e.textContent.trim(), s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2]; }"
        )
        assert focused[1], f"the focus on {focused[0]!r} cannot be seen"
        if focused[0] == name:
            return
    raise AssertionError(f"Tab does not reach {name}")


def test_without_scripts_the_steps_are_a_table(browser: Browser, site: Site, steps: Steps) -> None:
    site.register(**HARD)
    site.erase("s1", "s2")
    context = browser.new_context(base_url=site.url, java_script_enabled=False)
    page = context.new_page()
    with _at_work(site, steps):
        sign_in(page, site.key)
        page.get_by_role("link", name="The batch").click()
        # The switch stops scripts, but the parser still hides <noscript>: its text is all that can be asked.
        assert "Scripts are off" in page.content()
        page.get_by_text("Steps as a table").click()
        expect(page.locator("[data-steps] tr")).to_have_count(1)
        expect(page.locator("[data-steps] th")).to_be_visible()
    context.close()

"""One browser for a file of tests; a site and a page of its own for each, and no error on its console."""

import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from app.settings import Settings
from tests.browser.site import Site

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Closed with its module: while it is open, no other test of the process can run an event loop."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("NOT TESTED: the dashboard in a browser; there is no `chromium` on the PATH")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        expect.set_options(timeout=20_000)  # a loaded machine draws slowly
        yield opened
        opened.close()


@pytest.fixture
def site(tmp_path: Path, sqlite_template: Path, redis_url: str) -> Iterator[Site]:
    shutil.copy(sqlite_template, tmp_path / "lethe.db")
    running = Site(
        Settings(
            data_dir=tmp_path / "data",
            database_url=f"sqlite:///{tmp_path / 'lethe.db'}",
            redis_url=redis_url,
            queue_name=f"test-{secrets.token_hex(8)}",
            create_keys=True,
        )
    )
    yield running
    running.close()


@pytest.fixture
def context(browser: Browser, site: Site) -> Iterator[BrowserContext]:
    made = browser.new_context(base_url=site.url, accept_downloads=True)
    yield made
    made.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """Whatever the browser complains about fails the test: broken scripts, refused styles, lost files."""
    complaints: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            complaints.append(message.text)

    opened = context.new_page()
    opened.on("console", note)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("requestfailed", lambda request: complaints.append(f"{request.url}: {request.failure}"))
    yield opened
    aborted = [text for text in complaints if "net::ERR_ABORTED" not in text]  # streams and downloads
    assert aborted == []


@pytest.fixture
def signed_in(page: Page, site: Site) -> Page:
    sign_in(page, site.key)
    return page


def sign_in(page: Page, key: str) -> None:
    page.goto("/")
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Overview").wait_for()

"""Fixtures: one browser per module, and for each test its own site and page without console errors."""

import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from app.core.settings import Settings
from tests.browser.site import Site

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]

PATIENCE = 120_000  # in milliseconds: a busy machine renders slowly


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start Chromium. It is closed with the module: no event loop can run in this process until then."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("NOT TESTED: the dashboard in a browser, because `chromium` is not on the PATH")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        expect.set_options(timeout=PATIENCE)
        yield opened
        opened.close()


def start_site(folder: Path, template: Path, redis_url: str, port: int = 0, **more: Any) -> Site:
    """Start a gateway on a copy of the migrated database, with more settings."""
    shutil.copy(template, folder / "lethe.db")
    return Site(
        Settings(
            data_dir=folder / "data",
            database_url=f"sqlite:///{folder / 'lethe.db'}",
            redis_url=redis_url,
            queue_name=f"test-{secrets.token_hex(8)}",
            create_keys=True,
            **more,
        ),
        port,
    )


@pytest.fixture
def site(tmp_path: Path, sqlite_template: Path, redis_url: str) -> Iterator[Site]:
    """Start a site for one test. A module whose tests can share one overrides this fixture."""
    running = start_site(tmp_path, sqlite_template, redis_url)
    yield running
    running.close()


@pytest.fixture
def context(browser: Browser, site: Site) -> Iterator[BrowserContext]:
    made = browser.new_context(base_url=site.url, accept_downloads=True)
    made.set_default_timeout(PATIENCE)
    yield made
    made.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """Open a page, and fail the test on any console error or warning, script error or failed request."""
    complaints: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            complaints.append(message.text)

    opened = context.new_page()
    opened.on("console", note)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("requestfailed", lambda request: complaints.append(f"{request.url}: {request.failure}"))
    yield opened
    # Streams and downloads are aborted, and a form with a mistake in it is answered with 422.
    expected = ("net::ERR_ABORTED", "status of 422")
    assert [text for text in complaints if not any(words in text for words in expected)] == []


@pytest.fixture
def signed_in(page: Page, site: Site) -> Page:
    sign_in(page, site.key)
    return page


def sign_in(page: Page, key: str) -> None:
    page.goto("/")
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Overview").wait_for()

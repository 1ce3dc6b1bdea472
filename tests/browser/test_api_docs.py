"""The interactive API documentation in a real browser, without any request that leaves this machine."""

from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.site import Site

pytestmark = pytest.mark.slow


def test_the_page_shows_every_operation_and_asks_only_the_gateway(page: Page, site: Site) -> None:
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto("/docs")
    expect(page.get_by_role("heading", name="Lethe")).to_be_visible()
    paths = httpx.get(f"{site.url}/openapi.json", timeout=120, trust_env=False).json()["paths"]
    operations = sum(len(methods) for methods in paths.values())
    expect(page.locator(".opblock")).to_have_count(operations)
    own = urlsplit(site.url).netloc
    asked = [urlsplit(url) for url in requested if not url.startswith("data:")]
    assert {part.netloc for part in asked} == {own}
    assert {part.path for part in asked} >= {"/docs", "/docs/swagger-ui-bundle.js", "/openapi.json"}


def test_an_operation_can_be_tried_with_an_api_key(page: Page, site: Site) -> None:
    site.register("tried")
    page.goto("/docs")
    page.get_by_role("button", name="Authorize").click()
    page.get_by_role("textbox", name="auth-bearer-value").fill(site.key)
    page.locator(".modal-ux").get_by_role("button", name="Apply credentials").click()
    page.locator(".modal-ux").get_by_role("button", name="Close").click()
    listing = page.locator(".opblock-get").filter(has=page.locator('[data-path="/v1/models"]'))
    listing.locator(".opblock-summary-control").click()
    listing.get_by_role("button", name="Try it out").click()
    listing.get_by_role("button", name="Execute").click()
    answer = listing.locator(".live-responses-table tbody")
    expect(answer.locator(".response-col_status")).to_contain_text("200")
    expect(answer).to_contain_text('"name": "tried"')
    stored = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
    assert site.key not in stored, "the key stays in the memory of the page"

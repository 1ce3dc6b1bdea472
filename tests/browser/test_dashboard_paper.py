"""Paper that leaves the building, and the two people who use it: a privacy officer and an auditor.

The officer never opens a terminal. The auditor has a printed page, the files it names, and `lethe verify`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Page, expect

from app.core.clock import now
from app.gateway.dashboard import wording
from lethe.certificate.representation import ROW_CHECKS
from lethe.certificate.vocabulary import ASSUMPTIONS, LIMITS
from tests.browser.conftest import start_site
from tests.browser.officer_path import MODEL, OfficerPath, count_sheets
from tests.browser.site import Site

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path, redis_url: str) -> Iterator[Site]:
    """Start one site for the module. No version of its model passes the quality gate."""
    running = start_site(tmp_path_factory.mktemp("site"), sqlite_template, redis_url)
    running.register(MODEL, batch_subjects=50, min_batch_subjects=1, quality_gate={"max_loss": 0.0})
    yield running
    running.close()


def test_a_privacy_officer_never_opens_a_terminal(signed_in: Page, site: Site, tmp_path: Path) -> None:
    OfficerPath(signed_in, tmp_path, work=site.work).walk()


def test_the_longest_certificate_fits_on_one_page(signed_in: Page, site: Site) -> None:
    """Show every assumption and limit that there is, a representation and a warning, on one certificate."""
    page = signed_in
    if not site.call("GET", "/v1/certificates")["items"]:  # this test runs alone
        site.register("plain", batch_subjects=1)
        site.erase("s1", models=["plain"])
        site.work()
    certificate = site.call("GET", "/v1/certificates")["items"][0]["id"]
    page.goto(f"/certificates/{certificate}/print")
    expect(page.locator(".assumptions")).to_be_visible()
    assumptions = [f"{wording.ASSUMPTION[name]}. {text}" for name, text in ASSUMPTIONS.items()]
    page.evaluate(
        """([assumptions, limits, declared]) => {
          for (const [place, texts] of [[".assumptions", assumptions], [".limits", limits]])
            document.querySelector(place).replaceChildren(...texts.map((text) => {
              const item = document.createElement("li");
              item.textContent = text;
              return item;
            }));
          document.querySelector("dl.long dd:last-child").textContent = declared;
        }""",
        [assumptions, [*LIMITS.values()], f"{'A public encoder. ' * 8}{ROW_CHECKS['batches-compared']}"],
    )
    assert page.locator(".assumptions li").count() == len(ASSUMPTIONS)
    assert count_sheets(page.pdf(prefer_css_page_size=True)) == 1


def test_paper_is_black_on_white_in_a_dark_theme(signed_in: Page, site: Site) -> None:
    page = signed_in
    month = f"/reports/{now():%Y-%m}"
    page.goto(month)
    both: tuple[Literal["screen", "print"], ...] = ("screen", "print")
    for media in both:
        page.emulate_media(color_scheme="dark", media=media)
        colours = page.locator("article.paper h1").evaluate(
            "heading => [getComputedStyle(heading).color,"
            " getComputedStyle(heading.closest('.paper')).backgroundColor]"
        )
        assert colours[1] == "rgb(255, 255, 255)", media
        assert colours[0] in ("rgb(29, 33, 37)", "rgb(0, 0, 0)"), media

"""Paper that leaves the building, and the two people who use it: a privacy officer and an auditor.

The officer never opens a terminal. The auditor has a printed page, the files it names, and `lethe verify`.
"""

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
import zxingcpp
from PIL import Image
from playwright.sync_api import Locator, Page, expect
from typer.testing import CliRunner

from app.core.clock import now
from app.gateway.dashboard.paper import draw_code
from lethe.cli.main import app as command
from tests.browser.accessibility import problems
from tests.browser.conftest import start_site
from tests.browser.site import Site

pytestmark = pytest.mark.slow
PERSON = "s17"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path, redis_url: str) -> Iterator[Site]:
    """Start one site for the module. No version of its model passes the quality gate."""
    running = start_site(tmp_path_factory.mktemp("site"), sqlite_template, redis_url)
    running.register("scans", batch_subjects=50, min_batch_subjects=1, quality_gate={"max_loss": 0.0})
    yield running
    running.close()


def test_a_privacy_officer_never_opens_a_terminal(signed_in: Page, site: Site, tmp_path: Path) -> None:
    page = signed_in
    _enter_request(page)
    _start_batch(page)
    site.work()
    _approve(page)
    site.work()
    page.goto("/erasures")
    page.get_by_role("link", name="case-17").click()
    expect(page.get_by_role("heading", name="Done")).to_be_visible()
    request = page.url
    expect(page.get_by_text("1 person: erased from the model").first).to_be_visible()

    page.get_by_role("link", name="Certificate", exact=True).click()
    page.get_by_role("link", name="Print view").click()
    digest = _check_printed_certificate(page)
    files = _collect_files(page, request, tmp_path)
    _audit(files, digest)

    page.goto(request)
    page.get_by_role("link", name="Confirm that the receipts were handed out…").click()
    assert problems(page) == []
    page.get_by_role("button", name="Confirm that the receipts were handed out").click()
    expect(page.get_by_text("The receipts are no longer available")).to_be_visible()
    _check_report(page)


def _enter_request(page: Page) -> None:
    page.get_by_role("link", name="New request").click()
    page.get_by_label("Whom to erase").fill(PERSON)
    page.get_by_label("Your reference").fill("case-17")
    page.get_by_role("button", name="Enter the request").click()
    expect(page.get_by_role("heading", name="Received", exact=True)).to_be_visible()


def _start_batch(page: Page) -> None:
    page.get_by_role("link", name="Start the batch now…").click()
    page.get_by_role("button", name="Start the batch now").click()
    expect(page.get_by_role("heading", name="scans")).to_be_visible()


def _approve(page: Page) -> None:
    page.goto("/")
    page.get_by_role("row", name="On hold, needs a decision").first.get_by_role("link").first.click()
    page.get_by_role("link", name="Decide…").click()
    page.get_by_role("link", name="Publish as it is…").click()
    page.get_by_label("Why this version may be published").fill("The score is good enough for triage.")
    page.get_by_role("button", name="Publish as it is").click()
    expect(page.get_by_text("test approved the version on hold")).to_be_visible()


def _check_printed_certificate(page: Page) -> str:
    """Return the digest on the page, which is also the content of its QR code."""
    paper = page.locator("article.paper")
    for words in (
        "The data of 1 person was erased from this model.",
        "ε = 1.",
        "73 %",
        "δ = 10⁻⁵.",
        "Unit of privacy: the person.",
        "Budget so far: ε = 1 of at most 8",
        "Reference:",
        "Assumptions",
        "Declared by the owner",
        "None: the model was fitted on the features as they were uploaded.",
        "in time.",
        "Verify it offline",
    ):
        expect(paper).to_contain_text(words)
    assert PERSON not in paper.inner_text().split()
    assert "case-17" not in paper.inner_text(), "a certificate does not name a request"
    assert problems(page) == []
    digest: str
    (digest,) = set(re.findall(r"\b[0-9a-f]{64}\b", paper.inner_text()))
    shown = paper.locator("svg.qr path").get_attribute("d")
    assert f'd="{shown}"' in draw_code(f"lethe:sha256:{digest}")
    assert _scan(paper.locator("svg.qr")) == f"lethe:sha256:{digest}"
    assert _pages(page) == 1
    return digest


def _scan(code: Locator) -> str:
    """Read a QR code from the screen, with a reader that knows nothing of how it was drawn."""
    (found,) = zxingcpp.read_barcodes(Image.open(io.BytesIO(code.screenshot())))
    assert found.format == zxingcpp.BarcodeFormat.QRCode
    return str(found.text)


def _pages(page: Page) -> int:
    """Return the number of sheets of paper that a page needs."""
    return len(re.findall(rb"/Type\s*/Page\b(?!s)", page.pdf(prefer_css_page_size=True)))


def _collect_files(page: Page, request: str, folder: Path) -> dict[str, Path]:
    """Open the letter, check it, and download what is enclosed."""
    page.goto(request)
    page.get_by_role("link", name="Letter for person 1").click()
    letter = page.locator("article.letter")
    for words in ("Your reference", "case-17", "Version 1 is the first without you.", "73 %", "Your receipt"):
        expect(letter).to_contain_text(words)
    assert PERSON not in letter.inner_text().split(), "a letter names the reference and no identifier"
    expect(letter.locator("svg.qr")).to_be_visible()
    assert problems(page) == []
    assert _pages(page) <= 2
    files = {
        "receipt": _download(page.get_by_role("link", name="Receipt for scans"), folder),
        "pack": _download(page.get_by_role("link", name="Pack for scans"), folder),
        "keys": _download(page.get_by_role("link", name="Public keys"), folder),
    }
    told = letter.locator("pre").first.inner_text()
    assert all(path.name in told for path in files.values())
    printed = json.loads(letter.locator(".receipt pre").inner_text())
    assert printed == json.loads(files["receipt"].read_text()), "the receipt on paper is the file"
    assert json.loads(_scan(letter.locator("svg.qr"))) == printed
    return files


def _download(link: Locator, folder: Path) -> Path:
    with link.page.expect_download() as waiting:
        link.click()
    path = folder / waiting.value.suggested_filename
    waiting.value.save_as(path)
    return path


def _audit(files: dict[str, Path], digest: str) -> None:
    """Do what an auditor does with the printed page: check that the files are the ones it is about."""
    given = ["verify", str(files["pack"]), "--keys", str(files["keys"]), "--receipt", str(files["receipt"])]
    checked = CliRunner().invoke(command, [*given, "--subject", PERSON, "--digest", f"lethe:sha256:{digest}"])
    assert checked.exit_code == 0, checked.output
    assert (
        f"✓ 11. The certificate is the one with the expected digest: its digest is {digest}" in checked.output
    )
    assert "✓ 9. The receipt is valid" in checked.output
    other = digest[:-1] + ("0" if digest[-1] != "0" else "1")
    refused = CliRunner().invoke(command, [*given, "--digest", other])
    assert refused.exit_code == 1
    assert "✗ 11." in refused.output
    assert CliRunner().invoke(command, [*given, "--digest", "no digest"]).exit_code == 2


def _check_report(page: Page) -> None:
    page.goto("/reports")
    page.get_by_role("link", name=f"{now():%B %Y}", exact=True).click()
    paper = page.locator("article.paper")
    for words in ("Every deadline was met.", "scans, version 1", "Proved", "1 person"):
        expect(paper).to_contain_text(words)
    assert "case-17" not in paper.inner_text(), "a report does not repeat what people wrote"
    assert problems(page) == []
    with page.expect_download() as waiting:
        page.get_by_role("link", name="Download as CSV").click()
    table = Path(waiting.value.path()).read_text()
    assert "requests,completed in time,1,requests" in table
    assert PERSON not in table


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

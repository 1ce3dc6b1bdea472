"""The path of two people: a privacy officer who never opens a terminal, and an auditor with a printed page.

`test_dashboard_paper` walks it in a browser. `record` walks it against a real service and keeps a screenshot
of each step.
"""

import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import zxingcpp
from PIL import Image
from playwright.sync_api import Locator, Page, expect
from typer.testing import CliRunner

from app.core.clock import now
from app.gateway.dashboard.paper import draw_code
from lethe.cli.main import app as command
from tests.browser.accessibility import problems

MODEL = "scans"
PERSON = "s17"
CASE = "case-17"


def _nothing(*_: object) -> None:
    pass


@dataclass(frozen=True)
class Step:
    """One step of the path, for a recording: what happened, and what there is to see."""

    title: str
    text: str


@dataclass(frozen=True)
class PrintedCertificate:
    """What an auditor reads from the printed page."""

    digest: str
    command: str


@dataclass(frozen=True)
class OfficerPath:
    """The path from a request to the printed certificate, the letter and the report."""

    page: Page
    folder: Path
    """Where the downloaded files go."""
    work: Callable[[], None] = _nothing
    """Do the work of the service's processes, where there are none."""
    show: Callable[[Page, Step], None] = _nothing
    """Keep a screenshot."""

    def walk(self) -> None:
        """Walk the whole path."""
        self.enter_request()
        self.start_batch()
        self.approve()
        request = self.find_result()
        printed = self.print_certificate()
        files = self.print_letter(request)
        self.audit(printed, files)
        self.confirm_delivery(request)
        self.print_report()

    def enter_request(self) -> None:
        page = self.page
        self._show("Signed in", "The officer sees open requests, the next deadlines and what is on hold.")
        page.get_by_role("link", name="New request").click()
        expect(page.get_by_role("heading", name="New request")).to_be_visible()
        page.get_by_label("Whom to erase").fill(PERSON)
        page.get_by_label("Your reference").fill(CASE)
        self._show(
            "A request is entered", "One identifier, or a CSV file with many. The reference is a case number."
        )
        page.get_by_role("button", name="Enter the request").click()
        expect(page.get_by_role("heading", name="Received", exact=True)).to_be_visible()
        self._show("It is received", "The deadline is one month away. The request waits for more people.")

    def start_batch(self) -> None:
        """Start the batch by hand and find it on the page of the model, without a reload."""
        page = self.page
        page.get_by_role("link", name="Start the batch now…").click()
        expect(page.get_by_role("button", name="Start the batch now")).to_be_visible()
        self._show("The batch is started by hand", "It would also start by itself before the deadline.")
        page.get_by_role("button", name="Start the batch now").click()
        expect(page.get_by_role("heading", name=MODEL, exact=True)).to_be_visible()
        self.work()
        page.get_by_role("heading", name="Latest batches").wait_for()
        page.locator("section:has(#batches) tbody th a").first.click()
        expect(page.get_by_role("heading", name="On hold, needs a decision")).to_be_visible()
        self._show(
            "The batch is on hold",
            "The new version exists, but it scores less than the policy asks for. So somebody decides.",
        )

    def approve(self) -> None:
        """Find the decision from the overview, decide, and see the batch complete without a reload."""
        page = self.page
        page.goto("/")
        row = page.get_by_role("row", name="On hold, needs a decision").first
        expect(row).to_be_visible()
        self._show("The overview says that a decision is needed", "The same request, one click away.")
        row.get_by_role("link").first.click()
        page.get_by_role("link", name="Decide…").click()
        page.get_by_role("link", name="Publish as it is…").click()
        page.get_by_label("Why this version may be published").fill("The score is good enough for triage.")
        self._show("It is approved, with a reason", "The history of the batch keeps the name and the reason.")
        page.get_by_role("button", name="Publish as it is").click()
        expect(page.get_by_text("approved the version on hold").first).to_be_visible()
        self.work()
        expect(page.get_by_role("heading", name="Completed")).to_be_visible()
        self._show("The batch is completed", "The page changed by itself. The old data has been deleted.")

    def find_result(self) -> str:
        """Return the address of the request, which is done."""
        page = self.page
        page.goto("/erasures")
        page.get_by_role("link", name=CASE).click()
        expect(page.get_by_role("heading", name="Done")).to_be_visible()
        expect(page.get_by_text("1 person: erased from the model").first).to_be_visible()
        self._show("The request is done", "Result, certificate, receipt and letter are in one place.")
        return page.url

    def print_certificate(self) -> PrintedCertificate:
        """Check the printed certificate, and return what it says to an auditor. Keep the files it names."""
        page = self.page
        page.get_by_role("link", name="Certificate", exact=True).click()
        expect(page.get_by_role("heading", name="Verified", exact=True)).to_be_visible()
        self._show("The certificate", "What is guaranteed, under which assumptions, and how to check it.")
        for name in ("Pack", "Weights", "Public keys"):
            download(page.get_by_role("link", name=name, exact=True), self.folder)
        page.get_by_role("link", name="Print view").click()
        paper = page.locator("article.paper")
        for words in (
            "The data of 1 person was erased from this model.",
            "ε = 1.",
            "73 %",
            "In at most 1 in 6,200 such releases they may become surer.",
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
        assert CASE not in paper.inner_text(), "a certificate does not name a request"
        assert problems(page) == []
        digest: str
        (digest,) = set(re.findall(r"\b[0-9a-f]{64}\b", paper.inner_text()))
        shown = paper.locator("svg.qr path").get_attribute("d")
        assert f'd="{shown}"' in draw_code(f"lethe:sha256:{digest}")
        assert scan(paper.locator("svg.qr")) == f"lethe:sha256:{digest}"
        self._print("certificate", most=1)
        self._show("The certificate on paper", "One page. It names no person and no request.")
        return PrintedCertificate(digest, paper.locator("pre").inner_text())

    def print_letter(self, request: str) -> dict[str, Path]:
        """Open the letter, check it, and download what is enclosed."""
        page = self.page
        page.goto(request)
        page.get_by_role("link", name="Letter for person 1").click()
        letter = page.locator("article.letter")
        for words in ("Your reference", CASE, "Version 1 is the first without you.", "73 %", "Your receipt"):
            expect(letter).to_contain_text(words)
        assert PERSON not in letter.inner_text().split(), "a letter names the reference and no identifier"
        expect(letter.locator("svg.qr")).to_be_visible()
        assert problems(page) == []
        letter.get_by_label("Your organisation").fill("Example Hospital")
        letter.get_by_label("Name and address").fill("Ms A. Example\n1 Main Street")
        letter.get_by_label("Signature").fill("Ana Ortiz, data protection officer")
        self._print("letter", most=2)
        self._show("The letter", "To the person who asked. The receipt is on it, as a QR code and as text.")
        files = {
            "receipt": download(page.get_by_role("link", name=f"Receipt for {MODEL}"), self.folder),
            "pack": download(page.get_by_role("link", name=f"Pack for {MODEL}"), self.folder),
            "keys": download(page.get_by_role("link", name="Public keys"), self.folder),
        }
        told = letter.locator("pre").first.inner_text()
        assert all(path.name in told for path in files.values())
        printed = json.loads(letter.locator(".receipt pre").inner_text())
        assert printed == json.loads(files["receipt"].read_text()), "the receipt on paper is the file"
        assert json.loads(scan(letter.locator("svg.qr"))) == printed
        return files

    def audit(self, printed: PrintedCertificate, files: dict[str, Path]) -> None:
        """Do what an auditor does: run the printed command on the files that the page names."""
        digest, words = printed.digest, printed.command.split()
        assert (words[:2], words[-1]) == (["lethe", "verify"], digest)
        given = [str(self.folder / word) if (self.folder / word).exists() else word for word in words[1:]]
        checked = CliRunner().invoke(command, given)
        assert checked.exit_code == 0, checked.output
        line = f"✓ 11. The certificate is the one with the expected digest: its digest is {digest}"
        assert line in checked.output
        assert "✓ 3. The model file is the one certified" in checked.output
        assert "VERIFIED. This proves" in checked.output
        other = digest[:-1] + ("0" if digest[-1] != "0" else "1")
        refused = CliRunner().invoke(command, [*given[:-1], other])
        assert refused.exit_code == 1
        assert "✗ 11." in refused.output
        assert CliRunner().invoke(command, [*given[:-1], "no digest"]).exit_code == 2
        self._check_receipt(files, f"lethe:sha256:{digest}")
        shown = f"$ {printed.command}\n\n{checked.output}"
        (self.folder / "auditor.txt").write_text(shown)
        shown = f"$ {' '.join(words[:-1])} {other}\n\n{refused.output}"
        (self.folder / "auditor-another-page.txt").write_text(shown)

    def _check_receipt(self, files: dict[str, Path], scanned: str) -> None:
        """Do what the person who asked can do with the letter and the text of the QR code."""
        given = ["verify", str(files["pack"]), "--keys", str(files["keys"]), "--digest", scanned]
        checked = CliRunner().invoke(
            command, [*given, "--receipt", str(files["receipt"]), "--subject", PERSON]
        )
        assert checked.exit_code == 0, checked.output
        assert "✓ 9. The receipt is valid" in checked.output

    def confirm_delivery(self, request: str) -> None:
        page = self.page
        page.goto(request)
        page.get_by_role("link", name="Confirm that the receipts were handed out…").click()
        expect(page.get_by_role("button", name="Confirm that the receipts were handed out")).to_be_visible()
        assert problems(page) == []
        self._show("The letter is sent", "The officer confirms it. The secret in the receipt is destroyed.")
        page.get_by_role("button", name="Confirm that the receipts were handed out").click()
        expect(page.get_by_text("The receipts are no longer available")).to_be_visible()

    def print_report(self) -> None:
        page = self.page
        page.goto("/reports")
        page.get_by_role("link", name=f"{now():%B %Y}", exact=True).click()
        paper = page.locator("article.paper")
        for words in ("Every deadline was met.", f"{MODEL}, version 1", "Proved", "1 person"):
            expect(paper).to_contain_text(words)
        assert CASE not in paper.inner_text(), "a report does not repeat what people wrote"
        assert problems(page) == []
        self._print("report", most=2)
        self._show("The monthly report", "Requests, deadlines, releases, budget and audits. Also as CSV.")
        with page.expect_download() as waiting:
            page.get_by_role("link", name="Download as CSV").click()
        table = Path(waiting.value.path()).read_text()
        assert "requests,completed in time,1,requests" in table
        assert PERSON not in table

    def _show(self, title: str, text: str) -> None:
        self.show(self.page, Step(title, text))

    def _print(self, name: str, most: int) -> None:
        """Print the page to a PDF with at most so many sheets of paper."""
        content = self.page.pdf(prefer_css_page_size=True, path=self.folder / f"{name}.pdf")
        assert count_sheets(content) <= most


def count_sheets(pdf: bytes) -> int:
    """Return the number of sheets of paper in a PDF file."""
    return len(re.findall(rb"/Type\s*/Page\b(?!s)", pdf))


def scan(code: Locator) -> str:
    """Read a QR code from the screen, with a reader that knows nothing of how it was drawn."""
    (found,) = zxingcpp.read_barcodes(Image.open(io.BytesIO(code.screenshot())))
    assert found.format == zxingcpp.BarcodeFormat.QRCode
    return str(found.text)


def download(link: Locator, folder: Path) -> Path:
    """Click a link that downloads a file, and keep the file under the name that the page gives it."""
    with link.page.expect_download() as waiting:
        link.click()
    path = folder / waiting.value.suggested_filename
    waiting.value.save_as(path)
    return path

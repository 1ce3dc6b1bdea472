"""`python -m tests.browser.record`: walk the path of the privacy officer and the auditor, and keep pictures.

It runs `lethe up` in a temporary folder, registers a model as its team would, and then uses nothing but a
browser and `lethe verify`. It writes build/recording/index.html: each step in order, in a light and in a dark
theme and on a phone, with the printed pages as PDF and what the auditor saw. It checks everything that
`test_dashboard_paper` checks.
"""

import html
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Page, ViewportSize, expect, sync_playwright

from app.core.clock import now
from bench.demo_service import service
from lethe import Lethe
from tests.browser.conftest import FLAGS, PATIENCE, sign_in
from tests.browser.officer_path import MODEL, OfficerPath, Step
from tests.integration.harness import MANIFEST, parquet

FOLDER = Path("build/recording")
DESKTOP: ViewportSize = {"width": 1280, "height": 800}
PHONE: ViewportSize = {"width": 390, "height": 800}
# The score asked for is above what this model reaches, so that somebody has to decide.
POLICY = {"batch_subjects": 50, "min_batch_subjects": 1, "quality_gate": {"min_f1": 97.0}}
SCOPES = [
    *("erasures:read", "erasures:write", "models:read", "models:admin"),
    *("certificates:read", "checkpoints:read", "audit:read"),
]
ORIGINS = {
    "features": "six measurements, chosen before the first patient was recorded",
    "constants": "taken from a published study of other patients",
}
PAPER = {
    "certificate.pdf": "the certificate",
    "letter.pdf": "the letter",
    "report.pdf": "the monthly report",
}
STYLE = """
:root { color-scheme: light dark; } body { font: 16px/1.5 system-ui, sans-serif; max-width: 76rem;
  margin: 2rem auto; padding: 0 1.25rem; }
.shots { display: grid; grid-template-columns: 3fr 1fr; gap: 1rem; align-items: start; }
.shots img { width: 100%; border: 1px solid #8886; border-radius: .4rem; display: block; }
h2 { margin: 2.5rem 0 .25rem; } p { margin: .25rem 0 1rem; }
pre { background: #8882; padding: 1rem; border-radius: .4rem; white-space: pre-wrap;
  overflow-wrap: anywhere; }
@media print { section { break-inside: avoid; } }
"""


@dataclass
class Recording:
    """The screenshots of the steps so far."""

    folder: Path
    steps: list[Step] = field(default_factory=list)

    def show(self, page: Page, step: Step) -> None:
        """Keep the page in a light theme, in a dark theme and on a phone."""
        self.steps.append(step)
        number = len(self.steps)
        print(f"{number:>2}. {step.title}")
        page.screenshot(path=self.folder / f"{number:02}-light.png", full_page=True)
        page.emulate_media(color_scheme="dark")
        page.screenshot(path=self.folder / f"{number:02}-dark.png", full_page=True)
        page.emulate_media(color_scheme="light")
        page.set_viewport_size(PHONE)
        page.screenshot(path=self.folder / f"{number:02}-phone.png", full_page=True)
        page.set_viewport_size(DESKTOP)

    def write(self) -> Path:
        """Write the page that shows all steps in order."""
        steps = "".join(self._section(number, step) for number, step in enumerate(self.steps, 1))
        paper = ", ".join(f'<a href="{name}">{text}</a>' for name, text in PAPER.items())
        accepted, refused = (
            html.escape((self.folder / name).read_text())
            for name in ("auditor.txt", "auditor-another-page.txt")
        )
        page = self.folder / "index.html"
        page.write_text(
            '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
            'content="width=device-width, initial-scale=1"><title>From a request to a printed certificate'
            f"</title><style>{STYLE}</style></head><body><h1>From a request to a printed certificate</h1>"
            "<p>A privacy officer answers a request without opening a terminal. An auditor then checks the "
            f"printed page. Recorded on {now():%d %B %Y} with a real service on this machine. "
            f"On paper: {paper}.</p>{steps}<section><h2>The auditor checks the printed page</h2><p>The "
            "command is the one on the page. It reads the files that the page names, and needs no connection "
            "to the service.</p>"
            f"<pre>{accepted}</pre></section><section><h2>The files of another certificate are refused</h2>"
            f"<pre>{refused}</pre></section></body></html>"
        )
        return page

    def _section(self, number: int, step: Step) -> str:
        title = html.escape(step.title)
        return (
            f"<section><h2>{number}. {title}</h2><p>{html.escape(step.text)}</p>"
            '<div class="shots"><picture><source media="(prefers-color-scheme: dark)" '
            f'srcset="{number:02}-dark.png"><img src="{number:02}-light.png" alt="{title}"></picture>'
            f'<img src="{number:02}-phone.png" alt="{title}, on a phone"></div></section>'
        )


def main() -> int:
    """Record the path and return the exit status."""
    chromium = shutil.which("chromium")
    if chromium is None:
        print("This needs the browser Chromium. Install it and make sure that `chromium` is on the PATH.")
        return 1
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    recording = Recording(FOLDER)
    expect.set_options(timeout=PATIENCE)
    with (
        tempfile.TemporaryDirectory(prefix="lethe-recording-") as folder,
        service(Path(folder)) as lethe,
        sync_playwright() as playwright,
    ):
        _register(lethe)
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        context = browser.new_context(
            base_url=str(lethe.http.base_url), viewport=DESKTOP, accept_downloads=True
        )
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        officer = lethe.keys.create("Ana Ortiz, privacy officer", SCOPES)
        sign_in(page, officer.secret)
        OfficerPath(page, FOLDER, show=recording.show).walk()
        browser.close()
    print(f"The recording is {recording.write()}")
    return 0


def _register(lethe: Lethe) -> None:
    """Register a model as the team that owns it would."""
    manifest: dict[str, Any] = MANIFEST | {"origins": ORIGINS, "policy": MANIFEST["policy"] | POLICY}
    lethe.models.create(MODEL, manifest)
    lethe.models.upload_part(MODEL, "part0", _rows("s", 600, seed=7))
    lethe.models.upload_holdout(MODEL, "part0", _rows("h", 600, seed=8))
    lethe.models.validate(MODEL)
    lethe.models.wait_ready(MODEL, timeout=180)


def _rows(prefix: str, number: int, seed: int) -> bytes:
    """Return rows of people with three rows each, in three classes that overlap a little."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, number)
    features = generator.normal(size=(number, 6)) * 0.45
    features[np.arange(number), labels] += 1
    return parquet([f"{prefix}{row // 3}" for row in range(number)], labels, features)


if __name__ == "__main__":
    sys.exit(main())

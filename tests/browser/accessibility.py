"""Accessibility checks that need no person: names, labels, headings, landmarks, contrast, width."""

from pathlib import Path
from typing import Any

from playwright.sync_api import Page

CHECK = Path(__file__).with_suffix(".js").read_text()


def problems(page: Page) -> list[str]:
    found: Any = page.evaluate(CHECK)
    assert found["checked"] > 3, "no text was checked"
    return list(found["wrong"])

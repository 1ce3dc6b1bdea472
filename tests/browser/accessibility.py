"""What can be checked by a machine: names, labels, headings, landmarks, contrast, width."""

from pathlib import Path
from typing import Any

from playwright.sync_api import Page

CHECK = Path(__file__).with_suffix(".js").read_text()


def problems(page: Page) -> list[str]:
    found: Any = page.evaluate(CHECK)
    assert found["checked"] > 3, "no text was looked at"
    return list(found["wrong"])

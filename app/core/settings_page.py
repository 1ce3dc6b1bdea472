"""The page docs/settings.md, generated from the settings by `python -m app.core.settings_page`."""

from pathlib import Path

from pydantic import SecretStr

from app.core.settings import PREFIX, Settings

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
HEAD = """# Settings

Set these environment variables before you start a part of the service. If one is unknown or malformed, the
part does not start and names it.

| variable | default | meaning |
|---|---|---|
"""


def render() -> str:
    """Return the page as Markdown."""
    rows = []
    for name, field in Settings.model_fields.items():
        default = field.default.get_secret_value() if isinstance(field.default, SecretStr) else field.default
        cell = "" if default in ("", None) else f"`{default}`"
        rows.append(f"| `{PREFIX}{name.upper()}` | {cell} | {field.description} |\n")
    return HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(render())

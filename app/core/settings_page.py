"""docs/settings.md, written from the settings themselves: `python -m app.settings_page`."""

from pathlib import Path

from pydantic import SecretStr

from app.settings import PREFIX, Settings

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"
HEAD = """# Settings

Every setting is an environment variable. An unknown or malformed one stops the start, by name.

| variable | default | meaning |
|---|---|---|
"""


def render() -> str:
    rows = []
    for name, field in Settings.model_fields.items():
        default = field.default.get_secret_value() if isinstance(field.default, SecretStr) else field.default
        shown = "" if default in ("", None) else f"`{default}`"
        rows.append(f"| `{PREFIX}{name.upper()}` | {shown} | {field.description} |\n")
    return HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(render())

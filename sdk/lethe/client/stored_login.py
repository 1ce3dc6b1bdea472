"""The address and API key that `lethe login` stores for this user.

They are in a file that only its owner can read. A stored key is sent to the stored address and to no other.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Login:
    """The address of a service and an API key for it."""

    url: str
    api_key: str


def login_file() -> Path:
    """Return the file of the stored login: `lethe/login.json` in the user's configuration folder."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "lethe" / "login.json"


def read_login() -> Login | None:
    """Return the stored login, or None if there is none or the file is damaged."""
    try:
        document = json.loads(login_file().read_bytes())
        return Login(str(document["url"]), str(document["api_key"]))
    except (OSError, RuntimeError, ValueError, KeyError, TypeError):  # RuntimeError: the user has no home
        return None


def save_login(login: Login) -> Path:
    """Store a login in place of an earlier one, readable by its owner only, and return the file."""
    file = login_file()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = file.with_suffix(f".{os.getpid()}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as target:
            json.dump({"url": login.url, "api_key": login.api_key}, target, indent=2)
            target.write("\n")
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    return file


def delete_login() -> bool:
    """Delete the stored login. Return whether there was one."""
    try:
        login_file().unlink()
    except FileNotFoundError:
        return False
    return True


def find_access(url: str | None, api_key: str | None) -> tuple[str | None, str | None]:
    """Return the address and key to use: the arguments, then the environment, then the stored login.

    The stored key is used only for the stored address.
    """
    url = url or os.environ.get("LETHE_URL")
    api_key = api_key or os.environ.get("LETHE_API_KEY")
    if url and api_key:
        return url, api_key
    login = read_login()
    if login is None:
        return url, api_key
    if url is None or url.rstrip("/") == login.url.rstrip("/"):
        return login.url, api_key or login.api_key
    return url, api_key

"""Static files of the dashboard, served under URLs that change whenever the content does."""

import hashlib
import mimetypes
from pathlib import Path

from fastapi import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from app.gateway.errors import NotFound

FOLDER = Path(__file__).parent / "static"
# Computed once, when the process starts. Only these files are served.
DIGESTS = {
    path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:20]
    for path in FOLDER.iterdir()
    if path.is_file()
}

# Python 3.11 maps `.js` to a type that carries no charset.
mimetypes.add_type("text/javascript", ".js")


def url_of(name: str) -> str:
    """Return a URL whose content never changes, so that browsers can cache it for good."""
    return f"/static/{name}?v={DIGESTS[name]}"


class Assets(StaticFiles):
    """Serves the static files. Browsers revalidate them unless the URL names the current digest."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return the file with the cache policy that its URL allows, or raise `NotFound`."""
        if path not in DIGESTS:
            raise NotFound("This page does not exist.")
        response = await super().get_response(path, scope)
        current = Request(scope).query_params.get("v") == DIGESTS[path]
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable" if current else "no-cache"
        return response


ASSETS = Assets(directory=FOLDER)

"""Interactive API documentation at `/docs`: Swagger UI, with every file served by the gateway itself.

The files of Swagger UI come from an installed package, so the page needs no internet. Scripts and styles are
files too, because the page's Content Security Policy allows none inline.
"""

import hashlib
from dataclasses import dataclass
from importlib.resources import files

import fastapi_swagger
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from starlette.responses import Response

from app.gateway.dashboard.pages import DEFAULT_HEADERS
from app.gateway.errors import NotFound

# Swagger UI has small pictures in its style sheet, as data URLs. A request goes to this gateway or nowhere.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
HEADERS = DEFAULT_HEADERS | {"Content-Security-Policy": CONTENT_SECURITY_POLICY}
# `validatorUrl` would send the document to a third party. API keys stay in the memory of the page.
START_SCRIPT = """\
window.addEventListener("DOMContentLoaded", () => {
  SwaggerUIBundle({
    url: "/openapi.json",
    dom_id: "#operations",
    deepLinking: true,
    validatorUrl: null,
    persistAuthorization: false,
    defaultModelsExpandDepth: -1,
    displayRequestDuration: true,
    syntaxHighlight: false,
  });
});
"""
PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>API · Lethe</title>
<link rel="icon" href="{icon}" type="image/png">
<link rel="stylesheet" href="{style}">
<script src="{library}" defer></script>
<script src="{start}" defer></script>
</head>
<body>
<main id="operations"></main>
<noscript>
This page needs JavaScript. The same description is at <a href="/openapi.json">/openapi.json</a>.
</noscript>
</body>
</html>
"""


@dataclass(frozen=True)
class Asset:
    """A file of the page, its media type and the digest in its URL."""

    content: bytes
    media_type: str
    digest: str


def _read_assets() -> dict[str, Asset]:
    """Read the files of Swagger UI once, when the process starts."""
    folder = files(fastapi_swagger) / "resources"
    contents = {
        "swagger-ui-bundle.js": ((folder / "swagger-ui-bundle.js").read_bytes(), "text/javascript"),
        "swagger-ui.css": ((folder / "swagger-ui.css").read_bytes(), "text/css"),
        "favicon-32x32.png": ((folder / "favicon-32x32.png").read_bytes(), "image/png"),
        "start.js": (START_SCRIPT.encode(), "text/javascript"),
    }
    return {
        name: Asset(content, kind, hashlib.sha256(content).hexdigest()[:20])
        for name, (content, kind) in contents.items()
    }


ASSETS = _read_assets()
router = APIRouter(prefix="/docs", include_in_schema=False)


@router.get("")
async def show_page() -> HTMLResponse:
    """Return the page. It needs no API key: it shows the public description of the API."""
    page = PAGE.format(
        icon=url_of("favicon-32x32.png"),
        style=url_of("swagger-ui.css"),
        library=url_of("swagger-ui-bundle.js"),
        start=url_of("start.js"),
    )
    return HTMLResponse(page, headers=HEADERS)


@router.get("/{name}")
async def get_asset(request: Request, name: str) -> Response:
    """Return a file of the page. Browsers may keep it for good if its URL names the current digest."""
    asset = ASSETS.get(name)
    if asset is None:
        raise NotFound("This page does not exist.")
    is_current = request.query_params.get("v") == asset.digest
    cache = "public, max-age=31536000, immutable" if is_current else "no-cache"
    return Response(asset.content, media_type=asset.media_type, headers=HEADERS | {"Cache-Control": cache})


def url_of(name: str) -> str:
    """Return a URL whose content never changes."""
    return f"/docs/{name}?v={ASSETS[name].digest}"

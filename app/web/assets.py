"""The few static files: read once, named by their content, so that a browser keeps them for good."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fastapi import Request, Response

from app.errors import NotFound

_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_FOLDER = Path(__file__).parent / "static"


@dataclass(frozen=True)
class Asset:
    content: bytes
    digest: str
    media_type: str


def _load() -> dict[str, Asset]:
    return {
        path.name: Asset(content, hashlib.sha256(content).hexdigest()[:20], _TYPES[path.suffix])
        for path in sorted(_FOLDER.iterdir())
        if path.suffix in _TYPES
        for content in [path.read_bytes()]
    }


ASSETS = _load()


def url_of(name: str) -> str:
    return f"/static/{name}?v={ASSETS[name].digest}"


def serve(request: Request, name: str) -> Response:
    asset = ASSETS.get(name)
    if asset is None:
        raise NotFound("There is no such file.")
    etag = f'"{asset.digest}"'
    named = request.query_params.get("v") == asset.digest
    headers = {
        "ETag": etag,
        "Cache-Control": "public, max-age=31536000, immutable" if named else "no-cache",
        "X-Content-Type-Options": "nosniff",
    }
    known = (tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(","))
    if etag in known:
        return Response(status_code=304, headers=headers)
    return Response(asset.content, headers=headers, media_type=asset.media_type)

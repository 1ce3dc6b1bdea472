"""One bucket through s3fs: what is asked of it, tried again while the server stumbles, and paged through."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from s3fs import S3File, S3FileSystem

from app.storage import StorageAway

CONNECT_SECONDS, READ_SECONDS = 5, 30
TRIES = 4  # of one request, with growing pauses: 500, 503, throttling, a connection that is lost
BODY_TRIES = 2  # of an answer that breaks off
# How each listing says where it goes on: the question's fields, and the answer's that go into them.
_MARKERS = {
    "list_objects_v2": {"ContinuationToken": "NextContinuationToken"},
    "list_object_versions": {"KeyMarker": "NextKeyMarker", "VersionIdMarker": "NextVersionIdMarker"},
    "list_multipart_uploads": {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"},
}


class Bucket:
    def __init__(self, name: str, endpoint: str = "") -> None:
        self.name, self._endpoint = name, endpoint
        self._client: S3FileSystem | None = None
        self._process = 0
        self._versioned = False

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        """One operation of the S3 API."""
        try:
            return self.ask(method, **given)
        except FileNotFoundError as problem:
            raise StorageAway("the object store has no such bucket or upload") from problem

    def ask(self, method: str, **given: Any) -> dict[str, Any]:
        """One operation about something that may not be there: then FileNotFoundError."""
        with answered():
            answer: dict[str, Any] = self._files().call_s3(method, Bucket=self.name, **given)
        return answer

    def pages(self, method: str, *kinds: str, **given: Any) -> Iterator[dict[str, Any]]:
        """Every entry of a listing, however many answers it takes."""
        following: dict[str, Any] = {}
        while True:
            answer = self._page(method, **given, **following)
            for kind in kinds:
                yield from answer.get(kind, ())
            if not answer.get("IsTruncated"):
                return
            following = {ask: answer[tell] for ask, tell in _MARKERS[method].items() if answer.get(tell)}
            if not following:
                raise StorageAway("the object store broke off a listing")

    def _page(self, method: str, **given: Any) -> dict[str, Any]:
        if method != "list_multipart_uploads":
            return self.call(method, **given)
        try:
            return self.ask(method, **given)
        except FileNotFoundError:  # said by some servers when nobody ever began one
            return {}

    def open(self, key: str) -> S3File:
        """Reads ranges of one and the same object: replaced meanwhile, it fails."""
        with answered():
            file = self._files().open(f"{self.name}/{key}", "rb", cache_type="none")
        if file.details["type"] != "file":  # a prefix of others looks like an empty file
            raise FileNotFoundError(key)
        return file

    def size(self, key: str) -> int | None:
        try:
            return int(self.ask("head_object", Key=key)["ContentLength"])
        except FileNotFoundError:
            return None

    def abort(self, key: str, upload_id: str) -> None:
        with suppress(FileNotFoundError):  # finished, or aborted by another
            self.ask("abort_multipart_upload", Key=key, UploadId=upload_id)

    def keeps_versions(self) -> bool:
        """Asked until it does: no bucket that ever kept versions can forget them by itself."""
        if not self._versioned:
            self._versioned = bool(self.call("get_bucket_versioning").get("Status"))
        return self._versioned

    def _files(self) -> S3FileSystem:
        """One client in each process: a child has none of its parent's threads."""
        if self._client is None or self._process != os.getpid():
            self._client = S3FileSystem(
                endpoint_url=self._endpoint or None,
                use_listings_cache=False,
                config_kwargs={
                    "connect_timeout": CONNECT_SECONDS,
                    "read_timeout": READ_SECONDS,
                    # Some servers send the checksum of the whole with a range; SHA-256 is checked by us.
                    "response_checksum_validation": "when_required",
                    "retries": {"mode": "standard", "total_max_attempts": TRIES},
                },
            )
            self._client.retries = BODY_TRIES
            self._process = os.getpid()
        return self._client


@contextmanager
def answered() -> Iterator[None]:
    """A store that is away or refuses is not a file that is broken: readers must be able to tell."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, BotoCoreError, ClientError) as problem:
        reason = errno.errorcode.get(getattr(problem, "errno", None) or 0, type(problem).__name__)
        raise StorageAway(f"the object store did not do it ({reason})") from problem

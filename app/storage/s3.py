"""Files in an S3 bucket, below a prefix.

An object appears whole or not at all, so nothing is renamed here. What stands for a draft is a multipart
upload that nobody finished: it is listed as one, and deleted by its name like any other file, so that whoever
sweeps after crashes need not know where files are kept. Deleting takes every old version with it.
"""

import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO
from urllib.parse import urlsplit

from app.storage import DRAFT, StorageAway
from app.storage.s3_bucket import Bucket
from app.storage.s3_transfer import Reading, upload

READ_AHEAD = 4 << 20
MOST_AT_ONCE = 1000  # keys in one request to delete
_DRAFT_NAME = re.compile(r"(?P<target>.+)\.(?P<mark>[0-9a-f]{32})" + re.escape(DRAFT))


@dataclass(frozen=True)
class Unfinished:
    key: str
    id: str

    @property
    def draft(self) -> str:
        return f"{self.key}.{hashlib.sha256(self.id.encode()).hexdigest()[:32]}{DRAFT}"


class S3Files:
    def __init__(self, url: str, endpoint: str = "", bucket: Bucket | None = None) -> None:
        place = urlsplit(url)
        self._prefix = f"{place.path.strip('/')}/".lstrip("/")
        self._bucket = bucket or Bucket(place.netloc, endpoint)

    def write(self, path: str, chunks: Iterable[bytes]) -> None:
        upload(self._bucket, self._prefix + path, chunks)

    def open(self, path: str) -> IO[bytes]:
        """A short file is fetched whole: readers of Parquet jump about, and each jump would be a request."""
        opened = self._bucket.open(self._prefix + path)
        reading = Reading(opened)
        if opened.size > READ_AHEAD:
            return io.BufferedReader(reading, READ_AHEAD)
        with reading:
            return io.BytesIO(reading.read(opened.size) or b"")

    def exists(self, path: str) -> bool:
        return self._bucket.size(self._prefix + path) is not None

    def list(self, prefix: str) -> Iterator[str]:
        full, cut = self._prefix + prefix, len(self._prefix)
        for entry in self._bucket.pages("list_objects_v2", "Contents", Prefix=full):
            if _is_within(entry["Key"], full):
                yield entry["Key"][cut:]
        for unfinished in self._unfinished(full):
            yield unfinished.draft[cut:]

    def delete(self, path: str) -> None:
        full = self._prefix + path
        draft = _DRAFT_NAME.fullmatch(full)
        for unfinished in self._unfinished(draft["target"] if draft else full):
            if draft is None or unfinished.draft == full:
                self._bucket.abort(unfinished.key, unfinished.id)
        remains = self._remains(full)
        for start in range(0, len(remains), MOST_AT_ONCE):
            some = remains[start : start + MOST_AT_ONCE]
            answer = self._bucket.call("delete_objects", Delete={"Objects": some, "Quiet": True})
            if failed := answer.get("Errors"):
                raise StorageAway(f"{len(failed)} objects were not deleted ({failed[0].get('Code')})")

    def _remains(self, full: str) -> Sequence[dict[str, str]]:
        """What must go: every version and every marker of a deletion where the bucket keeps them.

        The newest last: cut short, a deletion leaves what is still listed.
        """
        if not self._bucket.keeps_versions():
            found = self._bucket.pages("list_objects_v2", "Contents", Prefix=full)
            return [{"Key": entry["Key"]} for entry in found if _is_within(entry["Key"], full)]
        pages = self._bucket.pages("list_object_versions", "Versions", "DeleteMarkers", Prefix=full)
        versions = (entry for entry in pages if _is_within(entry["Key"], full))
        newest_last = sorted(versions, key=lambda entry: bool(entry.get("IsLatest")))
        return [{"Key": entry["Key"], "VersionId": entry["VersionId"]} for entry in newest_last]

    def _unfinished(self, full: str) -> Sequence[Unfinished]:
        # Without a prefix: some servers take one for the whole key, and would list none of a folder's.
        found = self._bucket.pages("list_multipart_uploads", "Uploads")
        return [Unfinished(e["Key"], e["UploadId"]) for e in found if _is_within(e["Key"], full)]


def _is_within(key: str, full: str) -> bool:
    return key == full or key.startswith(f"{full}/")

"""Files in an S3 bucket, below a prefix.

Transfers, retries and paging are done by s3fs and botocore. This module adds what they do not do:

- An object becomes visible only when it is complete, and is known to be ours even if the answer to the last
  request is lost.
- An unfinished multipart upload is listed as a draft and can be deleted by that name like any other file. So
  the code that sweeps up after crashes does not have to know where files are stored.
- A deletion includes all old versions of an object, and fails if one of them may not be deleted.
- If the store is not available, the error is `StorageUnavailable`, never one that looks like a damaged file.
"""

import errno
import hashlib
import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any
from urllib.parse import urlsplit

from botocore.exceptions import BotoCoreError, ClientError
from fsspec.asyn import sync
from s3fs import S3File, S3FileSystem
from s3fs.errors import translate_boto_error

from app.core.clock import new_id
from app.core.storage import DRAFT, StorageError, StorageUnavailable

CONNECT_SECONDS, READ_SECONDS = 5, 30
TRIES = 4  # of one request, by botocore, with growing pauses: for 500, 503, throttling and lost connections
BODY_TRIES = 2  # by s3fs, if the body of an answer breaks off
PART = 8 << 20  # bytes in one part of a multipart upload; S3 requires at least 5 MiB
PARTS_OF_ONE_SIZE = 1000  # then parts grow: S3 takes 10,000, which are enough for 400 GiB this way
READ_AHEAD = 4 << 20
KEYS_PER_DELETION = 1000  # the most that S3 takes in one request
MARK = "lethe-upload"
_DRAFT_NAME = re.compile(r"(?P<target>.+)\.(?P<mark>[0-9a-f]{32})" + re.escape(DRAFT))


@dataclass(frozen=True)
class UnfinishedUpload:
    """A multipart upload that was begun and not completed."""

    key: str
    id: str

    @property
    def draft(self) -> str:
        """The name under which the upload is listed. It is derived from the upload's id."""
        return f"{self.key}.{hashlib.sha256(self.id.encode()).hexdigest()[:32]}{DRAFT}"


class S3Files:
    """The objects below one prefix of a bucket, as `Files`."""

    def __init__(self, url: str, endpoint: str = "") -> None:
        """Use the bucket and prefix of an `s3://` URL, at `endpoint` or where the AWS variables say."""
        place = urlsplit(url)
        self._bucket, self._endpoint = place.netloc, endpoint
        self._prefix = f"{place.path.strip('/')}/".lstrip("/")
        self._client: S3FileSystem | None = None
        self._process = 0
        self._versioned = False

    def write(self, path: str, chunks: Iterable[bytes]) -> None:
        """Upload the chunks: in one request if they are short, otherwise in parts of bounded size."""
        mark = new_id().hex
        with _translated_errors(may_be_missing=False):
            file: S3File = self._s3().open(self._address(path), "wb", block_size=PART, Metadata={MARK: mark})
        try:
            for chunk in chunks:
                with _translated_errors(may_be_missing=False):
                    file.write(chunk)
                file.blocksize = PART * (1 + len(file.parts or ()) // PARTS_OF_ONE_SIZE)
            self._complete(file, path, mark)
        except BaseException:
            with suppress(OSError, BotoCoreError, ClientError):  # what remains is swept as a draft
                file.discard()
            raise
        finally:
            file.closed = True  # s3fs would otherwise complete the upload when the object is destroyed

    def _complete(self, file: S3File, path: str, mark: str) -> None:
        """Complete the upload, and check that a multipart upload made the object that is there now.

        If an answer is lost and the request repeated, the server may no longer know the upload. Then only the
        mark on the object tells whether the first request succeeded.
        """
        in_parts = bool(file.parts)
        try:
            with _translated_errors(may_be_missing=in_parts):
                file.close()
        except FileNotFoundError:  # checked below
            pass
        if in_parts:
            head = self._call("head_object", Key=self._prefix + path)
            if head["Metadata"].get(MARK) != mark or head["ContentLength"] != file.tell():
                raise StorageUnavailable("the object store did not assemble the uploaded parts")

    def open(self, path: str) -> IO[bytes]:
        """Open an object for reading. All reads are of the same object: if it is replaced, they fail.

        A short file is fetched at once. Readers of Parquet jump back and forth, and every jump would be a
        request.
        """
        with _translated_errors():
            file: S3File = self._s3().open(self._address(path), "rb", cache_type="none")
        if file.details["type"] != "file":  # a prefix of other keys looks like an empty file
            raise FileNotFoundError(path)
        reader = _Reader(file)
        if file.size > READ_AHEAD:
            return io.BufferedReader(reader, READ_AHEAD)
        with reader:
            return io.BytesIO(reader.read(file.size) or b"")

    def exists(self, path: str) -> bool:
        """Return whether there is an object with exactly this name."""
        try:
            self._call("head_object", may_be_missing=True, Key=self._prefix + path)
        except FileNotFoundError:
            return False
        return True

    def list(self, prefix: str) -> Iterator[str]:
        """Yield the objects at or below `prefix`, and the unfinished uploads as drafts."""
        full, cut = self._prefix + prefix, len(self._prefix)
        for entry in self._entries("list_objects_v2", "Contents", Prefix=full):
            if _is_within(entry["Key"], full):
                yield entry["Key"][cut:]
        for upload in self._unfinished_uploads(full):
            yield upload.draft[cut:]

    def delete(self, *paths: str) -> None:
        """Delete these objects or drafts, or everything below them, with all old versions."""
        for path in paths:
            self._delete(path)

    def _delete(self, path: str) -> None:
        full = self._prefix + path
        draft = _DRAFT_NAME.fullmatch(full)
        for upload in self._unfinished_uploads(draft["target"] if draft else full):
            if draft is None or upload.draft == full:
                with suppress(FileNotFoundError):  # completed, or aborted by another process
                    self._call(
                        "abort_multipart_upload", may_be_missing=True, Key=upload.key, UploadId=upload.id
                    )
        objects = self._versions(full)
        for start in range(0, len(objects), KEYS_PER_DELETION):
            some = objects[start : start + KEYS_PER_DELETION]
            answer = self._call("delete_objects", Delete={"Objects": some, "Quiet": True})
            if failed := answer.get("Errors"):
                raise StorageUnavailable(
                    f"the object store refused to delete {len(failed)} of {len(some)} objects "
                    f"({failed[0].get('Code')})"
                )

    def _versions(self, full: str) -> Sequence[dict[str, str]]:
        """Return what to delete: every version and every delete marker, if the bucket keeps versions.

        The newest versions come last, so that objects of an interrupted deletion are still listed.
        """
        if not self._keeps_versions():
            current = self._entries("list_objects_v2", "Contents", Prefix=full)
            return [{"Key": entry["Key"]} for entry in current if _is_within(entry["Key"], full)]
        entries = self._entries("list_object_versions", "Versions", "DeleteMarkers", Prefix=full)
        versions = [entry for entry in entries if _is_within(entry["Key"], full)]
        newest_last = sorted(versions, key=lambda entry: bool(entry.get("IsLatest")))
        return [{"Key": entry["Key"], "VersionId": entry["VersionId"]} for entry in newest_last]

    def _keeps_versions(self) -> bool:
        """Return whether the bucket keeps versions, now or since it was suspended.

        The answer is kept once it is yes: a bucket that ever kept versions never loses them by itself.
        """
        if not self._versioned:
            self._versioned = bool(self._call("get_bucket_versioning").get("Status"))
        return self._versioned

    def _unfinished_uploads(self, full: str) -> Sequence[UnfinishedUpload]:
        # Without a prefix: some servers take it for the whole key and would list none of a folder's uploads.
        try:
            entries = self._entries("list_multipart_uploads", "Uploads", may_be_missing=True)
        except FileNotFoundError:  # the answer of some servers if no upload was ever begun
            return []
        uploads = [UnfinishedUpload(entry["Key"], entry["UploadId"]) for entry in entries]
        return [upload for upload in uploads if _is_within(upload.key, full)]

    def _call(self, operation: str, *, may_be_missing: bool = False, **parameters: Any) -> dict[str, Any]:
        """Call an operation of the S3 API.

        If a missing key or upload `may_be_missing`, it raises `FileNotFoundError`, otherwise
        `StorageUnavailable`.
        """
        with _translated_errors(may_be_missing=may_be_missing):
            answer: dict[str, Any] = self._s3().call_s3(operation, Bucket=self._bucket, **parameters)
        return answer

    def _entries(
        self, operation: str, *kinds: str, may_be_missing: bool = False, **parameters: Any
    ) -> Sequence[dict[str, Any]]:
        """Return all entries of a listing, over as many pages as it takes."""
        s3 = self._s3()

        async def fetch() -> Sequence[dict[str, Any]]:
            client = await s3.set_session()
            pages = client.get_paginator(operation).paginate(Bucket=self._bucket, **parameters)
            entries, page = list[dict[str, Any]](), dict[str, Any]()
            async for page in pages:
                entries += [entry for kind in kinds for entry in page.get(kind) or ()]
            if page.get("IsTruncated"):  # without a marker to continue from, botocore stops silently
                raise StorageUnavailable("the object store broke off a listing")
            return entries

        with _translated_errors(may_be_missing=may_be_missing):
            listed: Sequence[dict[str, Any]] = sync(s3.loop, fetch)
        return listed

    def _address(self, path: str) -> str:
        return f"{self._bucket}/{self._prefix}{path}"

    def _s3(self) -> S3FileSystem:
        """Return this process's client. A child process lacks its parent's threads and needs its own."""
        if self._client is None or self._process != os.getpid():
            self._client = S3FileSystem(
                endpoint_url=self._endpoint or None,
                use_listings_cache=False,
                fixed_upload_size=True,
                config_kwargs={
                    "connect_timeout": CONNECT_SECONDS,
                    "read_timeout": READ_SECONDS,
                    # Some servers send the checksum of the whole object with a range. We check SHA-256.
                    "response_checksum_validation": "when_required",
                    "retries": {"mode": "standard", "total_max_attempts": TRIES},
                },
            )
            self._client.retries = BODY_TRIES
            self._process = os.getpid()
        return self._client


class _Reader(io.RawIOBase):
    """A file of s3fs whose errors are those of the storage, so that no reader takes them for damaged data."""

    def __init__(self, file: S3File) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def readinto(self, target: Any, /) -> int:
        try:
            with _translated_errors():
                content = self._file.read(len(target))
        except FileNotFoundError:
            raise StorageError("the file was deleted while it was being read") from None
        target[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self._file.close()
        super().close()


@contextmanager
def _translated_errors(*, may_be_missing: bool = True) -> Iterator[None]:
    """Turn errors of the client into `StorageUnavailable`, or `FileNotFoundError` if `may_be_missing`."""
    try:
        try:
            yield
        except ClientError as problem:
            raise translate_boto_error(problem) from problem
    except FileNotFoundError as problem:
        if may_be_missing:
            raise
        raise StorageUnavailable("the object store has no such bucket or object") from problem
    except (OSError, BotoCoreError, ClientError) as problem:
        reason = errno.errorcode.get(getattr(problem, "errno", None) or 0, type(problem).__name__)
        raise StorageUnavailable(f"the object store did not carry out a request ({reason})") from problem


def _is_within(key: str, full: str) -> bool:
    return key == full or key.startswith(f"{full}/")

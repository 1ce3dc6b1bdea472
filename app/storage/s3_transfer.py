"""Bytes to and from S3: in parts of bounded size, each tried again by itself."""

import io
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import IO, Any

from app.clock import new_id
from app.storage import StorageAway, StorageError
from app.storage.s3_bucket import Bucket, answered

PART = 8 << 20
PARTS_OF_ONE_SIZE = 1000  # S3 takes 10,000 parts: they grow, so that 400 GiB fit and little is held
MARK = "lethe-upload"


def upload(bucket: Bucket, key: str, chunks: Iterable[bytes]) -> None:
    """One request when it is short, a multipart upload otherwise; what fails is aborted."""
    parts = _parts(chunks)
    first = next(parts)
    second = next(parts, None)
    if second is None:
        bucket.call("put_object", Key=key, Body=first)
        return
    mark = new_id().hex
    upload_id: str = bucket.call("create_multipart_upload", Key=key, Metadata={MARK: mark})["UploadId"]
    sent: list[dict[str, Any]] = []
    size = 0
    try:
        for number, part in enumerate(_all(first, second, parts), 1):
            answer = bucket.call("upload_part", Key=key, UploadId=upload_id, PartNumber=number, Body=part)
            sent.append({"PartNumber": number, "ETag": answer["ETag"]})
            size += len(part)
        _complete(bucket, key, upload_id, sent)
        _check(bucket, key, mark, size)
    except BaseException:
        bucket.abort(key, upload_id)
        raise


def _complete(bucket: Bucket, key: str, upload_id: str, sent: list[dict[str, Any]]) -> None:
    """Asked again because an answer was lost, a server may know nothing of the upload any more: see below."""
    with suppress(FileNotFoundError):
        bucket.ask("complete_multipart_upload", Key=key, UploadId=upload_id, MultipartUpload={"Parts": sent})


def _check(bucket: Bucket, key: str, mark: str, size: int) -> None:
    """What lies there is what this upload made, and whole."""
    found = bucket.call("head_object", Key=key)
    if found["Metadata"].get(MARK) != mark or found["ContentLength"] != size:
        raise StorageAway("the object store did not put the parts together")


def _all(first: bytes, second: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield second
    yield from rest


def _parts(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """At least one, all but the last of full size; a chunk may be of any length."""
    held, number = bytearray(), 0
    for chunk in chunks:
        rest = memoryview(chunk)
        while len(held) + len(rest) > (full := PART * (1 + number // PARTS_OF_ONE_SIZE)):
            taken = full - len(held)
            held += rest[:taken]
            rest = rest[taken:]
            yield bytes(held)
            held.clear()
            number += 1
        held += rest
    yield bytes(held)


class Reading(io.RawIOBase):
    """A file of s3fs as a plain one, whose failures are the storage's and never those of its content."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, target: Any, /) -> int:
        try:
            with answered():
                content = self._file.read(len(target))
        except FileNotFoundError:
            raise StorageError("the file was deleted while it was read") from None
        target[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self._file.close()
        super().close()

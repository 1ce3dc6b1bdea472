"""Reads forms that carry a file, piece by piece: neither memory nor a temporary file ever holds the file.

The fields come before the file, because pages put their file input last. So the token that protects a form
is checked before any byte of the file is used.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from app.gateway.dashboard.sessions import SignInRequired, check_form_token, sessions_of
from app.gateway.errors import BodyTooLarge, InvalidRequest, UnsupportedMedia
from app.gateway.uploads import Uploads

T = TypeVar("T")
Fields = dict[str, list[str]]

MAX_FIELDS_BYTES = 4 << 20
_UNREADABLE = "The form could not be read. Reload the page and send it again."


class MultipartForm:
    """A `multipart/form-data` body with any number of fields and, after them, at most one file."""

    def __init__(self, content_type: str, body: Iterable[bytes]) -> None:
        kind, options = parse_options_header(content_type.encode("latin-1", "replace"))
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise UnsupportedMedia("Send this request with the form on the page.")
        self._body = iter(body)
        self._header_name, self._header_value = b"", b""
        self._part: dict[bytes, bytes] = {}
        self._value = bytearray()
        self._fields: Fields = {}
        self._size = 0
        self._file: list[bytes] = []
        self._in_file = self._file_begun = self._file_ended = False
        self.file_name = ""
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin_part,
                "on_header_field": self._take_header_name,
                "on_header_value": self._take_header_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_part_data": self._take_data,
                "on_part_end": self._end_part,
            },
        )

    def read_fields(self) -> Fields:
        """Return the fields before the file. A field that occurs more than once has several values."""
        while not self._file_begun and self._feed():
            pass
        return self._fields

    def file(self) -> Iterator[bytes]:
        """Yield the content of the file. Call `read_fields` first."""
        while True:
            yield from self._file
            self._file.clear()
            if self._file_ended or not self._feed():
                return

    def _feed(self) -> bool:
        """Parse the next piece of the body. Return False at its end."""
        piece = next(self._body, None)
        if piece is None:
            return False
        try:
            self._parser.write(piece)
        except (FormParserError, UnicodeDecodeError):
            raise InvalidRequest(_UNREADABLE) from None
        return True

    def _begin_part(self) -> None:
        if self._file_begun:
            raise InvalidRequest(_UNREADABLE)
        self._part, self._value, self._header_name, self._header_value = {}, bytearray(), b"", b""

    def _take_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _take_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _end_header(self) -> None:
        if self._header_name.lower() == b"content-disposition":
            _, self._part = parse_options_header(self._header_value)
        self._header_name, self._header_value = b"", b""

    def _end_headers(self) -> None:
        self._in_file = b"filename" in self._part
        if self._in_file:
            self._file_begun = True
            self.file_name = self._part[b"filename"].decode()

    def _take_data(self, data: bytes, start: int, end: int) -> None:
        if self._in_file:
            self._file.append(data[start:end])
            return
        self._size += end - start
        if self._size > MAX_FIELDS_BYTES:
            raise BodyTooLarge(
                f"The form is too large. Its fields may have {MAX_FIELDS_BYTES >> 20} MiB together. Send a "
                "file instead."
            )
        self._value += data[start:end]

    def _end_part(self) -> None:
        if self._in_file:
            self._file_ended = True
            return
        name = self._part.get(b"name", b"").decode()
        self._fields.setdefault(name, []).append(self._value.decode())


async def read_upload(request: Request, use: Callable[[Fields, MultipartForm], T]) -> T:
    """Run `use` with the fields and the form in an upload thread, once the token of the form is checked."""
    session = sessions_of(request).read(request)
    if session is None:
        raise SignInRequired
    uploads: Uploads = request.state.uploads
    nonce = session.nonce

    def work() -> T:
        form = MultipartForm(request.headers.get("content-type", ""), uploads.chunks(request))
        fields = form.read_fields()
        check_form_token(request, {name: values[-1] for name, values in fields.items()}, nonce)
        return use(fields, form)

    return await uploads.run(request.state.caller.tenant_id, work)

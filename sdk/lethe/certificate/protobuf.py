"""Reads and writes the few parts of the protobuf wire format that ONNX files consist of.

A message is a sequence of fields. A field is a key (its number and wire type) followed by its value. Where
messages are concatenated, a parser merges them: lists are joined, and embedded messages are merged in turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5
_FIXED_SIZES = {FIXED64: 8, FIXED32: 4}
_LONGEST_VARINT = 10


class MalformedMessage(ValueError):
    """The bytes are not a protobuf message."""


class Field(NamedTuple):
    """A field of a message: its number, its value, and the offset of its key in the message.

    The value is a number for a varint, and the bytes for every other wire type.
    """

    number: int
    value: int | memoryview
    start: int

    @property
    def data(self) -> memoryview:
        """The bytes of the field. Raise `MalformedMessage` if it is a number."""
        if isinstance(self.value, int):
            raise MalformedMessage(f"field {self.number} is a number instead of bytes")
        return self.value

    @property
    def text(self) -> str:
        """The field as text. Raise `MalformedMessage` if it is not UTF-8."""
        try:
            return str(self.data, "utf-8")
        except UnicodeDecodeError:
            raise MalformedMessage(f"field {self.number} is not text") from None


def read_fields(message: bytes | memoryview) -> Iterator[Field]:
    """Yield the fields of a message in order. Raise `MalformedMessage` if the bytes are not a message."""
    view, place = memoryview(message), 0
    while place < len(view):
        start = place
        key, place = _read_varint(view, place)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise MalformedMessage(f"the field at byte {start} has the number 0")
        if kind == VARINT:
            value, place = _read_varint(view, place)
            yield Field(number, value, start)
            continue
        if kind == BYTES:
            size, place = _read_varint(view, place)
        elif kind in _FIXED_SIZES:
            size = _FIXED_SIZES[kind]
        else:
            raise MalformedMessage(f"the field at byte {start} has the unknown type {kind}")
        if size > len(view) - place:
            raise MalformedMessage(f"the field at byte {start} is longer than the file")
        yield Field(number, view[place : place + size], start)
        place += size


def _read_varint(view: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for length in range(_LONGEST_VARINT):
        if place + length >= len(view):
            raise MalformedMessage("the file ends in the middle of a number")
        byte = view[place + length]
        value |= (byte & 0x7F) << (7 * length)
        if byte < 0x80:
            return value, place + length + 1
    raise MalformedMessage(f"the number at byte {place} is too long")


def varint(value: int) -> bytes:
    """Encode a number that is not negative, seven bits to a byte, lowest first.

    >>> varint(300).hex()
    'ac02'
    """
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def number_field(number: int, value: int) -> bytes:
    """Encode a field that holds a number."""
    return varint(number << 3 | VARINT) + varint(value)


def bytes_field(number: int, value: bytes) -> bytes:
    """Encode a field that holds bytes, or a message that is already encoded."""
    return varint(number << 3 | BYTES) + varint(len(value)) + value


def text_field(number: int, value: str) -> bytes:
    """Encode a field that holds text."""
    return bytes_field(number, value.encode())

"""Read CBOR strictly: a scan of the encoding first, then cbor2, then plain Python values.

A general decoder accepts what evidence must not contain: duplicate keys (the last wins), bytes
after the item, indefinite lengths, keys that are equal in Python and different on the wire
(10, 10.0; 1, true), shared references that make cycles. The scan refuses all of them before any
value is built. Non-preferred serialisation (an integer in more bytes than it needs) is allowed, as
RFC 9783 allows it, but two encodings of one key are one key.

Sources: RFC 8949 (sections 3, 5.3 and 5.6); RFC 9783 section 5.1; RFC 9052 section 9.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from excise.errors import FormatError, HostError

MAX_DEPTH: Final = 32
MAX_ITEMS: Final = 200_000

_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _ARRAY, _MAP, _TAG, _SIMPLE = range(8)
_SIMPLE_VALUES: Final = frozenset({20, 21, 22})  # false, true, null
_FLOAT_BYTES: Final = {25: 2, 26: 4, 27: 8}
_KIND_NAMES: Final = {
    _ARRAY: "an array",
    _MAP: "a map",
    _TAG: "a tagged item",
    _SIMPLE: "a float or simple value",
}

# Tags that cbor2 turns into values of its own; they are turned back.
_TAG_EPOCH_TIME: Final = 1
_TAG_UUID: Final = 37


@dataclass(frozen=True, slots=True)
class Tag:
    """A tagged item.

    Attributes:
        number: The tag.
        value: What it encloses, as plain values.
    """

    number: int
    value: Any


def read_cbor(data: bytes, *, tags: Collection[int] = (), source: str | None = None) -> Any:
    """Return the one item in `data` as int, float, bool, None, bytes, str, list, dict and `Tag`.

    Args:
        data: Exactly one encoded item.
        tags: Tag numbers that may occur, anywhere in the item.
        source: Where the bytes came from, for errors.

    Raises:
        FormatError: The encoding is malformed, not strict, or has a tag that is not allowed here.
        HostError: cbor2 is not installed.
    """
    check_cbor(data, tags=tags, source=source)
    try:
        from cbor2 import CBORDecodeError, loads
    except ImportError as error:
        raise _no_cbor2() from error
    try:
        return _plain(loads(data))
    except (CBORDecodeError, ValueError, TypeError, OverflowError, OSError) as error:
        reason = f"cannot be decoded ({error})"
        raise FormatError(reason, source=source, field="CBOR") from None


def write_cbor(value: Any) -> bytes:
    """Return an encoding that is the same for equal values: shortest forms, keys sorted.

    Args:
        value: What `read_cbor` returns.

    Raises:
        HostError: cbor2 is not installed.

    Source: RFC 8949 section 4.2.
    """
    try:
        from cbor2 import dumps
    except ImportError as error:
        raise _no_cbor2() from error
    return dumps(_for_cbor2(value), canonical=True)


def check_cbor(data: bytes, *, tags: Collection[int] = (), source: str | None = None) -> None:
    """Raise unless `data` is exactly one item in strict encoding.

    Raises:
        FormatError: With the offset of the first fault.
    """
    scan = _Scan(data, frozenset(tags))
    try:
        end = scan.item(0, 0)
        if end != len(data):
            raise FormatError(f"{len(data) - end} bytes follow the item", offset=end)
    except FormatError as error:
        error.source, error.field = source, "CBOR"
        raise


class _Scan:
    """One walk over an encoding."""

    __slots__ = ("_data", "_end", "_items", "_tags")

    def __init__(self, data: bytes, tags: frozenset[int]) -> None:
        self._data = data
        self._end = len(data)
        self._tags = tags
        self._items = 0

    def item(self, start: int, depth: int) -> int:
        """Check the item at `start` and return the offset after it."""
        major, argument, position = self._head(start)
        if major <= _NEGATIVE:
            return position
        if major <= _TEXT:
            return self._skip(start, position, argument)
        if major == _SIMPLE:
            return position
        if depth >= MAX_DEPTH:
            raise FormatError(f"items are nested more than {MAX_DEPTH} deep", offset=start)
        if major == _TAG:
            if argument not in self._tags:
                raise FormatError(f"tag {argument} is not allowed here", offset=start)
            return self.item(position, depth + 1)
        if major == _ARRAY:
            self._room(start, argument, position)
            for _ in range(argument):
                position = self.item(position, depth + 1)
            return position
        return self._map(start, argument, position, depth)

    def _map(self, start: int, pairs: int, position: int, depth: int) -> int:
        self._room(start, 2 * pairs, position)
        seen = set()
        for _ in range(pairs):
            at = position
            major, argument, position = self._head(at)
            key: tuple[int, int | bytes] = (major, argument)
            if major in (_BYTES, _TEXT):
                first, position = position, self._skip(at, position, argument)
                key = (major, self._data[first:position])
            elif major not in (_UNSIGNED, _NEGATIVE):
                kind = _KIND_NAMES[major]
                raise FormatError(f"a key is {kind}, not an integer or string", offset=at)
            if key in seen:
                raise FormatError(f"the key {_key_text(key)} occurs twice", offset=at)
            seen.add(key)
            position = self.item(position, depth + 1)
        return position

    def _head(self, start: int) -> tuple[int, int, int]:
        """Return major type, argument and the offset after both."""
        if start >= self._end:
            raise FormatError("the encoding ends inside an item", offset=start)
        self._items += 1
        if self._items > MAX_ITEMS:
            raise FormatError(f"there are more than {MAX_ITEMS} items", offset=start)
        first = self._data[start]
        major, argument = first >> 5, first & 31
        position = start + 1
        if argument < 24 and major != _SIMPLE:
            return major, argument, position
        if argument == 31:
            raise FormatError("a length is indefinite", offset=start)
        if major == _SIMPLE:
            return self._simple(start, argument)
        if argument > 27:
            raise FormatError(f"the additional information {argument} is reserved", offset=start)
        size = 1 << (argument - 24)
        if position + size > self._end:
            raise FormatError("the encoding ends inside an item", offset=start)
        value = int.from_bytes(self._data[position : position + size], "big")
        return major, value, position + size

    def _simple(self, start: int, argument: int) -> tuple[int, int, int]:
        size = _FLOAT_BYTES.get(argument)
        if size is None and argument not in _SIMPLE_VALUES:
            raise FormatError(f"the simple value {argument} has no meaning here", offset=start)
        return _SIMPLE, argument, self._skip(start, start + 1, size or 0)

    def _skip(self, start: int, position: int, size: int) -> int:
        if position + size > self._end:
            left = self._end - position
            raise FormatError(f"{size} bytes are announced and {left} are left", offset=start)
        return position + size

    def _room(self, start: int, items: int, position: int) -> None:
        left = self._end - position
        if items > left:
            raise FormatError(f"{items} items are announced in {left} bytes", offset=start)


def _no_cbor2() -> HostError:
    return HostError("CBOR needs cbor2", hint="pip install 'excise[attest]'")


def _key_text(key: tuple[int, int | bytes]) -> str:
    major, value = key
    if isinstance(value, bytes):
        return repr(value.decode(errors="replace")) if major == _TEXT else f"h'{value.hex()}'"
    return str(-1 - value if major == _NEGATIVE else value)


def _plain(value: Any) -> Any:
    """Return decoded values as the same few types, whatever cbor2 uses inside tags."""
    if isinstance(value, int | bytes | str | float | None):
        return value
    if isinstance(value, Mapping):
        return {key: _plain(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(held) for held in value]
    if isinstance(value, datetime):
        seconds = value.timestamp()
        return Tag(_TAG_EPOCH_TIME, int(seconds) if seconds.is_integer() else seconds)
    if isinstance(value, UUID):
        return Tag(_TAG_UUID, value.bytes)
    if hasattr(value, "tag"):
        return Tag(value.tag, _plain(value.value))
    raise FormatError(f"a value of type {type(value).__name__} has no place here", field="CBOR")


def _for_cbor2(value: Any) -> Any:
    from cbor2 import CBORTag

    if isinstance(value, Tag):
        return CBORTag(value.number, _for_cbor2(value.value))
    if isinstance(value, Mapping):
        return {key: _for_cbor2(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [_for_cbor2(held) for held in value]
    return value

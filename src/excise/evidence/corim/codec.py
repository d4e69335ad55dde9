"""One description of each CoRIM structure, used both ways: CBOR is checked, JSON templates convert.

A codec knows how a value looks in CBOR (as plain values of `excise.evidence.cbor`) and how in the
JSON that Veraison's tools use. `check` raises for wrong CBOR, `to_cbor` turns JSON into CBOR, and
`to_json` turns checked CBOR into JSON. Errors carry the path of the value, such as
`triples.reference-values[0].measurements[1].value.digests[0]`.

Source: draft-ietf-rats-corim; veraison/corim for the JSON names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol
from uuid import UUID

from excise.errors import FormatError
from excise.evidence.base64text import decode_base64, encode_base64
from excise.evidence.cbor import Tag

HASH_NAMES: Final[Mapping[int, str]] = {
    1: "sha-256",
    2: "sha-256-128",
    3: "sha-256-120",
    4: "sha-256-96",
    5: "sha-256-64",
    6: "sha-256-32",
    7: "sha-384",
    8: "sha-512",
    9: "sha3-224",
    10: "sha3-256",
    11: "sha3-384",
    12: "sha3-512",
}
"""IANA Named Information Hash Algorithm Registry."""

HASH_BYTES: Final[Mapping[int, int]] = {
    1: 32, 2: 16, 3: 15, 4: 12, 5: 8, 6: 4, 7: 48, 8: 64, 9: 28, 10: 32, 11: 48, 12: 64,
}  # fmt: skip
_HASH_IDS: Final = {name: number for number, name in HASH_NAMES.items()}


class Codec(Protocol):
    """How a value looks in CBOR and in JSON."""

    def check(self, value: Any, path: str) -> None:
        """Raise unless the plain CBOR value is right."""

    def to_cbor(self, value: Any, path: str) -> Any:
        """Return the CBOR value of a JSON value."""

    def to_json(self, value: Any) -> Any:
        """Return the JSON value of a checked CBOR value."""


def fail(path: str, reason: str) -> FormatError:
    """Return the error for a value at a path."""
    return FormatError(reason, field=path or None)


@dataclass(frozen=True, slots=True)
class Scalar:
    """Text, integers, booleans: the same in both forms."""

    kind: type
    words: str
    accepts: Callable[[Any], bool] = lambda _value: True

    def check(self, value: Any, path: str) -> None:
        """Raise unless the value has exactly this type and is accepted."""
        if type(value) is not self.kind or not self.accepts(value):
            raise fail(path, f"{value!r} is not {self.words}")

    def to_cbor(self, value: Any, path: str) -> Any:
        """Return the value, checked."""
        self.check(value, path)
        return value

    def to_json(self, value: Any) -> Any:
        """Return the value."""
        return value


TEXT: Final = Scalar(str, "text")
# What CBOR encodes without a tag.
UINT: Final = Scalar(int, "an unsigned integer of 64 bits", lambda value: 0 <= value < 1 << 64)
INTEGER: Final = Scalar(int, "an integer of 64 bits", lambda value: -(1 << 64) <= value < 1 << 64)
BOOLEAN: Final = Scalar(bool, "true or false")


@dataclass(frozen=True, slots=True)
class Bytes:
    """Byte strings; base64 in JSON."""

    smallest: int = 0
    largest: int = 1 << 20

    def check(self, value: Any, path: str) -> None:
        """Raise unless the value is a byte string of a length in range."""
        if not isinstance(value, bytes):
            raise fail(path, f"{value!r} is not a byte string")
        if not self.smallest <= len(value) <= self.largest:
            bounds = f"{self.smallest}"
            bounds += f" to {self.largest}" if self.largest != self.smallest else ""
            raise fail(path, f"{len(value)} bytes, where {bounds} are wanted")

    def to_cbor(self, value: Any, path: str) -> bytes:
        """Return the bytes of base64 text."""
        found = decode_base64(value, field=path)
        self.check(found, path)
        return found

    def to_json(self, value: bytes) -> str:
        """Return base64 text."""
        return encode_base64(value)


@dataclass(frozen=True, slots=True)
class Uuid:
    """Sixteen bytes; the usual text in JSON."""

    def check(self, value: Any, path: str) -> None:
        """Raise unless the value is sixteen bytes."""
        Bytes(16, 16).check(value, path)

    def to_cbor(self, value: Any, path: str) -> bytes:
        """Return the bytes of a UUID's text."""
        try:
            return UUID(value).bytes
        except (ValueError, AttributeError, TypeError):
            raise fail(path, f"{value!r} is not a UUID") from None

    def to_json(self, value: bytes) -> str:
        """Return the UUID's text."""
        return str(UUID(bytes=value))


@dataclass(frozen=True, slots=True)
class Oid:
    """An object identifier's BER bytes; dotted text in JSON."""

    def check(self, value: Any, path: str) -> None:
        """Raise unless the value is a short byte string."""
        Bytes(1, 128).check(value, path)

    def to_cbor(self, value: Any, path: str) -> bytes:
        """Return the bytes of a dotted identifier."""
        try:
            arcs = [int(arc) for arc in value.split(".")]
            if len(arcs) < 2 or min(arcs) < 0 or arcs[0] > 2:
                raise ValueError
        except (ValueError, AttributeError):
            raise fail(path, f"{value!r} is not a dotted object identifier") from None
        encoded = bytearray()
        for arc in (arcs[0] * 40 + arcs[1], *arcs[2:]):
            groups = [arc & 0x7F]
            while arc := arc >> 7:
                groups.append(arc & 0x7F | 0x80)
            encoded += bytes(reversed(groups))
        return bytes(encoded)

    def to_json(self, value: bytes) -> str:
        """Return the dotted identifier."""
        arcs, arc = [], 0
        for byte in value:
            arc = arc << 7 | byte & 0x7F
            if not byte & 0x80:
                arcs.append(arc)
                arc = 0
        first = min(arcs[0] // 40, 2) if arcs else 0
        shown = [first, arcs[0] - 40 * first, *arcs[1:]] if arcs else []
        return ".".join(str(one) for one in shown)


@dataclass(frozen=True, slots=True)
class Uri:
    """A URI with tag 32; bare text is taken too, as older tools write it."""

    def check(self, value: Any, path: str) -> None:
        """Raise unless the value is a tagged URI or bare text."""
        held = value.value if isinstance(value, Tag) and value.number == 32 else value
        TEXT.check(held, path)

    def to_cbor(self, value: Any, path: str) -> Tag:
        """Return the tagged URI."""
        TEXT.check(value, path)
        return Tag(32, value)

    def to_json(self, value: Any) -> str:
        """Return the URI's text."""
        return str(value.value if isinstance(value, Tag) else value)


@dataclass(frozen=True, slots=True)
class Time:
    """A time with tag 1; RFC 3339 in JSON."""

    def check(self, value: Any, path: str) -> None:
        """Raise unless the value is an epoch time."""
        if not isinstance(value, Tag) or value.number != 1 or type(value.value) is not int:
            raise fail(path, f"{value!r} is not an epoch time with tag 1")

    def to_cbor(self, value: Any, path: str) -> Tag:
        """Return the tagged epoch time."""
        try:
            found = datetime.fromisoformat(value)
        except (ValueError, TypeError):
            raise fail(path, f"{value!r} is not a time like 2026-01-31T00:00:00Z") from None
        if found.tzinfo is None:
            raise fail(path, f"{value!r} has no time zone")
        return Tag(1, int(found.timestamp()))

    def to_json(self, value: Tag) -> str:
        """Return the time in UTC."""
        return datetime.fromtimestamp(value.value, UTC).isoformat().replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Named:
    """Integers that have names in JSON; others stay numbers."""

    names: Mapping[int, str]

    def check(self, value: Any, path: str) -> None:
        """Raise unless the value is an integer."""
        INTEGER.check(value, path)

    def to_cbor(self, value: Any, path: str) -> int:
        """Return the number of a name."""
        for number, name in self.names.items():
            if value in (name, number) and not isinstance(value, bool):
                return number
        known = ", ".join(self.names.values())
        raise FormatError(f"{value!r} is unknown", field=path, hint=f"Known: {known}")

    def to_json(self, value: int) -> Any:
        """Return the name, or the number where there is none."""
        return self.names.get(value, value)


@dataclass(frozen=True, slots=True)
class Digest:
    """[algorithm, value]; in JSON also `sha-256;base64`."""

    def check(self, value: Any, path: str) -> None:
        """Raise unless the value is a digest as long as its algorithm says."""
        if not isinstance(value, list) or len(value) != 2:
            raise fail(path, f"{value!r} is not [algorithm, digest]")
        algorithm, digest = value
        if type(algorithm) is not int and not isinstance(algorithm, str):
            raise fail(path, f"{algorithm!r} is not an algorithm")
        if not isinstance(digest, bytes) or not digest:
            raise fail(path, "the digest is no byte string, or empty")
        number = _HASH_IDS.get(algorithm, 0) if isinstance(algorithm, str) else algorithm
        size = HASH_BYTES.get(number, len(digest))
        if len(digest) != size:
            raise fail(path, f"a digest of {len(digest)} bytes, and {hash_name(value)} has {size}")

    def to_cbor(self, value: Any, path: str) -> list[Any]:
        """Return the pair for either JSON form."""
        if isinstance(value, str):
            algorithm, separator, digest = value.partition(";")
            if not separator:
                raise fail(path, f"{value!r} is not like `sha-256;base64`")
            value = [algorithm, digest]
        if not isinstance(value, list) or len(value) != 2:
            raise fail(path, f"{value!r} is not [algorithm, base64]")
        number = _HASH_IDS.get(value[0], value[0])
        pair = [number, decode_base64(value[1], field=path)]
        self.check(pair, path)
        return pair

    def to_json(self, value: list[Any]) -> str:
        """Return `name;base64`."""
        return f"{hash_name(value)};{encode_base64(value[1])}"


def hash_name(digest: Sequence[Any]) -> str:
    """Return the name of a digest's algorithm."""
    return str(HASH_NAMES.get(digest[0], digest[0]))


@dataclass(frozen=True, slots=True)
class ListOf:
    """An array of one kind of thing."""

    item: Codec
    smallest: int = 1

    def check(self, value: Any, path: str) -> None:
        """Raise unless the value is an array of right items."""
        self._length(value, path)
        for index, one in enumerate(value):
            self.item.check(one, f"{path}[{index}]")

    def to_cbor(self, value: Any, path: str) -> list[Any]:
        """Return the items in CBOR."""
        self._length(value, path)
        return [self.item.to_cbor(one, f"{path}[{index}]") for index, one in enumerate(value)]

    def to_json(self, value: list[Any]) -> list[Any]:
        """Return the items in JSON."""
        return [self.item.to_json(one) for one in value]

    def _length(self, value: Any, path: str) -> None:
        if not isinstance(value, list):
            raise fail(path, "is not an array")
        if len(value) < self.smallest:
            raise fail(path, "is empty")


@dataclass(frozen=True, slots=True)
class OneOrList:
    """One item, or an array of them."""

    item: Codec

    def check(self, value: Any, path: str) -> None:
        """Raise unless the value is a right item or an array of them."""
        self._codec(value).check(value, path)

    def to_cbor(self, value: Any, path: str) -> Any:
        """Return item or array in CBOR."""
        return self._codec(value).to_cbor(value, path)

    def to_json(self, value: Any) -> Any:
        """Return item or array in JSON."""
        return self._codec(value).to_json(value)

    def _codec(self, value: Any) -> Codec:
        # A digest is an array itself, whose first place is its algorithm.
        many = isinstance(value, list) and not (
            isinstance(self.item, Digest) and value and type(value[0]) in (int, str)
        )
        return ListOf(self.item) if many else self.item


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A tagged value of several kinds; `{"type": name, "value": …}` in JSON.

    Attributes:
        kinds: Tag (None for none) and codec by JSON name, tried in order.
        default: Kind of a JSON value that is no such object; empty where it must be one.
    """

    kinds: Mapping[str, tuple[int | None, Codec]]
    default: str = ""

    def check(self, value: Any, path: str) -> None:
        """Raise unless the value is one of the kinds."""
        self._found(value, path)

    def to_cbor(self, value: Any, path: str) -> Any:
        """Return the tagged value."""
        if isinstance(value, Mapping):
            name, held = value.get("type"), value.get("value")
        else:
            name, held = self.default, value
        if not isinstance(name, str) or name not in self.kinds:
            known = ", ".join(self.kinds)
            raise FormatError(f"the type {name!r} is unknown", field=path, hint=f"Known: {known}")
        tag, codec = self.kinds[name]
        inner = codec.to_cbor(held, path)
        return inner if tag is None else Tag(tag, inner)

    def to_json(self, value: Any) -> Any:
        """Return type and value."""
        name, codec, held = self._found(value, "")
        return {"type": name, "value": codec.to_json(held)}

    def _found(self, value: Any, path: str) -> tuple[str, Codec, Any]:
        number = value.number if isinstance(value, Tag) else None
        held = value.value if isinstance(value, Tag) else value
        fault: FormatError | None = None
        for name, (tag, codec) in self.kinds.items():
            if tag != number:
                continue
            try:
                codec.check(held, path)
            except FormatError as error:
                fault = fault or error
            else:
                return name, codec, held
        if fault is not None:
            raise fault
        shown = f"tag {number}" if number is not None else f"{value!r} without a tag"
        raise fail(path, f"{shown} is none of {', '.join(self.kinds)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One member of a map.

    Attributes:
        key: CBOR key.
        json: JSON name.
        codec: How its value looks.
        required: Whether the map must have it.
    """

    key: int
    json: str
    codec: Codec
    required: bool = False


@dataclass(frozen=True, slots=True)
class Struct:
    """A map with integer keys; keys below zero are extensions and kept as they are.

    Attributes:
        fields: The members.
        one_of: JSON names of which at least one must be there.
        defaults: CBOR values that are the same as absence, left out when writing.
    """

    fields: tuple[Field, ...]
    one_of: tuple[str, ...] = ()
    defaults: tuple[tuple[int, Any], ...] = ()

    def check(self, value: Any, path: str) -> None:
        """Raise unless the value is such a map."""
        if not isinstance(value, Mapping):
            raise fail(path, "is not a map")
        known = {field.key for field in self.fields}
        for key in value:
            if key not in known and not (type(key) is int and key < 0):
                raise fail(path, f"the key {key!r} is unknown")
        for field in self.fields:
            if field.key in value:
                field.codec.check(value[field.key], _join(path, field.json))
            elif field.required:
                raise fail(path, f"{field.json} is missing")
        self._some(path, {field.json for field in self.fields if field.key in value})

    def to_cbor(self, value: Any, path: str) -> dict[int, Any]:
        """Return the map of a JSON object."""
        if not isinstance(value, Mapping):
            raise fail(path, "is not an object")
        names = {field.json: field for field in self.fields}
        for name in value:
            if name not in names:
                known = ", ".join(names)
                raise FormatError(f"{name!r} is unknown", field=path, hint=f"Known: {known}")
        made: dict[int, Any] = {}
        for field in self.fields:
            if field.json in value:
                held = field.codec.to_cbor(value[field.json], _join(path, field.json))
                if (field.key, held) not in self.defaults:
                    made[field.key] = held
            elif field.required:
                raise fail(path, f"{field.json} is missing")
        self._some(path, set(value))
        return made

    def to_json(self, value: Mapping[Any, Any]) -> dict[str, Any]:
        """Return the JSON object; extensions are shown under their number."""
        made = {
            field.json: field.codec.to_json(value[field.key])
            for field in self.fields
            if field.key in value
        }
        for key in value:
            if type(key) is int and key < 0:
                made[f"extension {key}"] = repr(value[key])
        return made

    def _some(self, path: str, present: set[str]) -> None:
        if self.one_of and not present & set(self.one_of):
            raise fail(path, f"none of {', '.join(self.one_of)} is there")


@dataclass(frozen=True, slots=True)
class Row:
    """An array whose places have names in JSON.

    Attributes:
        places: Name and codec of each place.
        optional: How many of the last places may be absent.
    """

    places: tuple[tuple[str, Codec], ...]
    optional: int = 0

    def check(self, value: Any, path: str) -> None:
        """Raise unless the value is an array with right places."""
        most = len(self.places)
        if not isinstance(value, list) or not most - self.optional <= len(value) <= most:
            raise fail(path, f"is not [{', '.join(name for name, _ in self.places)}]")
        for held, (name, codec) in zip(value, self.places, strict=False):
            codec.check(held, _join(path, name))

    def to_cbor(self, value: Any, path: str) -> list[Any]:
        """Return the array of a JSON object."""
        if not isinstance(value, Mapping):
            raise fail(path, "is not an object")
        for name in value:
            if name not in dict(self.places):
                raise fail(path, f"{name!r} is unknown")
        made = []
        for index, (name, codec) in enumerate(self.places):
            if name in value:
                made.append(codec.to_cbor(value[name], _join(path, name)))
            elif index < len(self.places) - self.optional:
                raise fail(path, f"{name} is missing")
        return made

    def to_json(self, value: list[Any]) -> dict[str, Any]:
        """Return the JSON object."""
        return {
            name: codec.to_json(held)
            for held, (name, codec) in zip(value, self.places, strict=False)
        }


@dataclass(frozen=True, slots=True)
class MapOf:
    """A map with free keys (integers or text)."""

    item: Codec

    def check(self, value: Any, path: str) -> None:
        """Raise unless the value is a map of right items."""
        if not isinstance(value, Mapping) or not value:
            raise fail(path, "is not a map, or empty")
        for key, held in value.items():
            if type(key) is not int and not isinstance(key, str):
                raise fail(path, f"the key {key!r} is neither integer nor text")
            self.item.check(held, f"{path}[{key!r}]")

    def to_cbor(self, value: Any, path: str) -> dict[Any, Any]:
        """Return the map; keys of digits are integers."""
        if not isinstance(value, Mapping):
            raise fail(path, "is not an object")
        return {
            _number_or_text(key): self.item.to_cbor(held, f"{path}[{key!r}]")
            for key, held in value.items()
        }

    def to_json(self, value: Mapping[Any, Any]) -> dict[str, Any]:
        """Return the JSON object."""
        return {str(key): self.item.to_json(held) for key, held in value.items()}


@dataclass(frozen=True, slots=True)
class Opaque:
    """A structure that is carried and not interpreted."""

    kind: type
    words: str

    def check(self, value: Any, path: str) -> None:
        """Raise unless the value has the outer type."""
        if not isinstance(value, self.kind):
            raise fail(path, f"is not {self.words}")

    def to_cbor(self, value: Any, path: str) -> Any:  # noqa: ARG002
        """Raise: templates cannot make these."""
        raise FormatError("cannot be written from a template", field=path)

    def to_json(self, value: Any) -> str:
        """Return what it holds, for people to read."""
        return repr(value)


def _number_or_text(key: str) -> int | str:
    return int(key) if key.isascii() and key.isdigit() else key


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name

"""Lists of revoked secret keys and of revoked pseudonyms.

xaptum's tools read bare lists: secret keys of 32 bytes, or pseudonyms of 65, one after the other.
Such a file says neither how long it is nor for which basename its pseudonyms are, so lists may also
be kept as JSON, which does. A list that cannot be read, or is empty without saying so, is an error;
so is any other text, which has no bytes but those of a bare list too.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Self

from excise.errors import FormatError, UsageError
from excise.evidence.daa.curve import (
    G1,
    G1_BYTES,
    SCALAR_BYTES,
    FixedBase,
    decode_g1,
    decode_scalar,
    encode_g1,
    encode_scalar,
    multiply,
)
from excise.units import counted

FORMAT: Final = "excise-daa-revocation/1"
MAX_ENTRIES: Final = 1_000_000
LIST_BYTES: Final = 256 << 20
"""More than that many entries take in either form."""
_TABLE_FROM: Final = 24
_LARGE_TABLE_FROM: Final = 300


def _chunks(data: bytes, size: int, *, count: int | None, kind: str, source: str) -> list[bytes]:
    """Return the entries of a bare list."""
    if not data:
        raise FormatError(
            "an empty list, which a write cut short would leave too",
            source=source,
            field=kind,
            hint="An empty list is kept as JSON: excise daa revoke makes one",
        )
    if len(data) % size:
        raise FormatError(
            f"{len(data)} bytes are not a whole number of {size}-byte entries",
            source=source,
            offset=len(data) - len(data) % size,
            field=kind,
        )
    found = len(data) // size
    if count is not None and count != found:
        raise FormatError(
            f"{counted(found, 'entry', 'entries')}, announced were {count}",
            source=source,
            field=kind,
        )
    if found > MAX_ENTRIES:
        raise FormatError(f"{found} entries exceed {MAX_ENTRIES}", source=source, field=kind)
    return [data[at : at + size] for at in range(0, len(data), size)]


def _document(data: bytes, *, kind: str, count: int | None, source: str) -> dict[str, Any]:
    """Return the fields of a JSON list, all of the right type."""
    try:
        read = json.loads(data, object_pairs_hook=lambda pairs: _unique(pairs, source))
    except (ValueError, RecursionError):
        raise FormatError(
            "text, and so neither JSON nor a bare list",
            source=source,
            field=kind,
            hint="A bare list is binary: entries one after the other; excise daa revoke makes both",
        ) from None
    if not isinstance(read, dict) or read.get("format") != FORMAT:
        raise FormatError(f"not a list of the form {FORMAT}", source=source, field="format")
    if read.get("kind") != kind:
        raise FormatError(f"a list of {read.get('kind')!r}, not of {kind}", source=source)
    entries = read.get("entries")
    if not isinstance(entries, list) or len(entries) > MAX_ENTRIES:
        raise FormatError("no list of entries", source=source, field="entries")
    if read.get("count") != len(entries):
        raise FormatError(
            f"{counted(len(entries), 'entry', 'entries')}, announced are {read.get('count')}",
            source=source,
            field="count",
        )
    if count is not None and count != len(entries):
        raise FormatError(
            f"{counted(len(entries), 'entry', 'entries')}, announced were {count}", source=source
        )
    try:
        read["entries"] = [bytes.fromhex(entry) for entry in entries]
        read["basename"] = bytes.fromhex(read["basename"]) if read.get("basename") else None
    except (TypeError, ValueError):
        raise FormatError("not hexadecimal", source=source, field="entries") from None
    return read


def _unique(pairs: list[tuple[str, Any]], source: str) -> dict[str, Any]:
    """Return an object of JSON whose names differ: of two `entries`, the last would count alone."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise FormatError("a name occurs twice in a JSON object", source=source)
    return found


def is_json_list(data: bytes) -> bool:
    """Return whether a list is text, and so must be JSON; a bare one is binary.

    Random entries are no text: of 32 bytes, less than one in 2³² has no control character and is
    UTF-8 (UTF-16 begins with its mark).
    """
    encoding = "utf-16" if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        return False
    return bool(text) and all(one.isprintable() or one.isspace() or one == "\ufeff" for one in text)


def _render(kind: str, entries: Sequence[bytes], basename: bytes | None) -> bytes:
    document = {
        "format": FORMAT,
        "kind": kind,
        **({"basename": basename.hex()} if basename is not None else {}),
        "count": len(entries),
        "entries": [entry.hex() for entry in entries],
    }
    return (json.dumps(document, indent=1) + "\n").encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokedKeys:
    """Secret keys that became known: whatever they sign is refused.

    Attributes:
        keys: The secret keys.
    """

    KIND: ClassVar[str] = "secret-keys"
    keys: tuple[int, ...]

    @classmethod
    def from_bytes(
        cls, data: bytes, *, count: int | None = None, source: str = "revoked keys"
    ) -> Self:
        """Return a list in xaptum's bare form or as JSON.

        Args:
            data: The file.
            count: How many entries it must have, where that is known.
            source: Its name, for errors.

        Raises:
            FormatError: It cannot be read, a key is no number in 1..n−1, or the count differs.
        """
        if is_json_list(data):
            entries = _document(data, kind=cls.KIND, count=count, source=source)["entries"]
        else:
            entries = _chunks(data, SCALAR_BYTES, count=count, kind=cls.KIND, source=source)
        keys = []
        for index, entry in enumerate(entries):
            try:
                keys.append(decode_scalar(entry, field=f"entry {index}"))
            except FormatError as error:
                error.source = source
                raise
        return cls(keys=tuple(keys))

    def to_bytes(self, *, bare: bool = False) -> bytes:
        """Return the list as JSON, or in xaptum's bare form.

        Raises:
            UsageError: An empty list in bare form, which could not be told from a lost one.
        """
        entries = [encode_scalar(key) for key in self.keys]
        return _bare(entries) if bare else _render(self.KIND, entries, None)

    def with_key(self, key: int) -> RevokedKeys:
        """Return the list with one key more; a key already in it changes nothing."""
        return self if key in self.keys else replace(self, keys=(*self.keys, key))

    def revokes(self, *, base: G1, public: G1) -> bool:
        """Return whether a listed sk has sk·S = W.

        Args:
            base: S of the signature.
            public: W of the signature.
        """
        if len(self.keys) < _TABLE_FROM:
            return any(multiply(base, key) == public for key in self.keys)
        table = FixedBase(base, window=4 if len(self.keys) < _LARGE_TABLE_FROM else 6)
        step = 4096
        return any(
            public in table.multiply_all(self.keys[at : at + step])
            for at in range(0, len(self.keys), step)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokedPseudonyms:
    """Pseudonyms that are refused, under the one basename they were made with.

    Attributes:
        pseudonyms: Encoded points K.
        basename: The basename they belong to; None in a bare list, which does not say it.
    """

    KIND: ClassVar[str] = "pseudonyms"
    pseudonyms: frozenset[bytes]
    basename: bytes | None = None

    @classmethod
    def from_bytes(
        cls, data: bytes, *, count: int | None = None, source: str = "revoked pseudonyms"
    ) -> Self:
        """Return a list in xaptum's bare form or as JSON; see `RevokedKeys.from_bytes`.

        Raises:
            FormatError: It cannot be read, an entry is no point of G1, or the count differs.
        """
        basename = None
        if is_json_list(data):
            read = _document(data, kind=cls.KIND, count=count, source=source)
            entries, basename = read["entries"], read["basename"]
            if basename is None:
                raise FormatError("names no basename", source=source, field="basename")
        else:
            entries = _chunks(data, G1_BYTES, count=count, kind=cls.KIND, source=source)
        for index, entry in enumerate(entries):
            try:
                decode_g1(entry, field=f"entry {index}")
            except FormatError as error:
                error.source = source
                raise
        return cls(pseudonyms=frozenset(entries), basename=basename)

    def to_bytes(self, *, bare: bool = False) -> bytes:
        """Return the list as JSON, or in xaptum's bare form.

        Raises:
            UsageError: An empty list in bare form, or JSON without a basename.
        """
        entries = sorted(self.pseudonyms)
        if bare:
            return _bare(entries)
        if self.basename is None:
            raise UsageError("a list of pseudonyms names the basename they belong to")
        return _render(self.KIND, entries, self.basename)

    def with_pseudonym(self, pseudonym: G1) -> RevokedPseudonyms:
        """Return the list with one pseudonym more."""
        return replace(self, pseudonyms=self.pseudonyms | {encode_g1(pseudonym)})

    def revokes(self, pseudonym: G1) -> bool:
        """Return whether a pseudonym is listed."""
        return encode_g1(pseudonym) in self.pseudonyms


def _bare(entries: Sequence[bytes]) -> bytes:
    if not entries:
        raise UsageError("an empty list has no bare form", hint="Keep it as JSON")
    return b"".join(entries)

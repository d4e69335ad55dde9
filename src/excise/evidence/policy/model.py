"""A compiled policy: digests in one native table, everything else in a small description."""

from __future__ import annotations

import os
import re
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec

from excise.errors import FormatError

if TYPE_CHECKING:
    from excise._core import DigestTable

SCHEMA: Final = 1


class Description(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything of a policy but its file digests; bytes are Base64 in its file.

    Attributes:
        schema: Version of this structure.
        exclude_patterns: Regular expressions, matched at the start of a name's bytes.
        keyrings: Hexadecimal digests of the keys each keyring may get, by its name.
        buffers: Hexadecimal digests of other measured buffers, by their names.
        ignored_keyrings: Keyrings whose entries are not judged; `*` for all.
        keys: Keys to verify file signatures with, DER.
        notes: What the sources held that is not used, or deserves a word.
    """

    schema: int = SCHEMA
    exclude_patterns: tuple[str, ...] = ()
    keyrings: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    buffers: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    ignored_keyrings: tuple[str, ...] = ()
    keys: tuple[bytes, ...] = ()
    notes: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """Return the description in the one form that is hashed and stored."""
        return msgspec.json.encode(self, order="sorted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Reference values, immutable and safe to share between threads and lists.

    Attributes:
        table: File digests by name.
        description: Everything else.
        digest: SHA-256 of the compiled form, in hexadecimal: equal for equal content, in whatever
            order it was read.
        prefixes: Beginnings of names that are excluded: what some patterns amount to.
        excludes: The other exclude patterns, compiled.
    """

    table: DigestTable
    description: Description
    digest: str
    prefixes: tuple[bytes, ...] = field(repr=False)
    excludes: tuple[re.Pattern[bytes], ...] = field(repr=False)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what the sources held that is not used, or deserves a word."""
        return self.description.notes

    def counts(self) -> Mapping[str, int]:
        """Return the number of pairs of name and digest, by algorithm."""
        return MappingProxyType({name: pairs for name, pairs, _ in self.table.counts()})

    def is_excluded(self, name: bytes) -> bool:
        """Return whether a name is excluded from the judgement."""
        if name.startswith(self.prefixes):
            return True
        return any(pattern.match(name) for pattern in self.excludes)

    def save(self, path: Path) -> None:
        """Write the compiled form; the file appears whole or not at all."""
        folder = path.parent
        handle, name = tempfile.mkstemp(dir=folder, prefix=path.name, suffix=".part")
        os.close(handle)
        partial = Path(name)
        try:
            self.table.save(str(partial), self.description.encode())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    @classmethod
    def load(cls, source: Path | bytes) -> Policy:
        """Return the policy of a compiled file, or of its bytes.

        Raises:
            FormatError: The file is no compiled policy, is damaged, or holds nothing.
        """
        from excise._core import DigestTable

        path = str(source) if isinstance(source, Path) else "compiled policy"
        try:
            table, encoded, digest = DigestTable.load(
                source if isinstance(source, bytes) else str(source)
            )
            description = msgspec.json.decode(encoded, type=Description)
        except OSError as error:
            reason = error.strerror or str(error)
            raise FormatError(f"cannot be read: {reason}", source=path) from error
        except msgspec.MsgspecError as error:
            raise FormatError(str(error), source=path, field="description") from error
        except FormatError as error:
            error.source = path
            raise
        if description.schema != SCHEMA:
            raise FormatError(
                f"schema {description.schema}, this version reads {SCHEMA}", source=path
            )
        return assemble(table, description, digest=digest.hex(), source=path)


def assemble(
    table: DigestTable, description: Description, *, digest: str | None = None, source: str = ""
) -> Policy:
    """Return a policy of its parts.

    Raises:
        FormatError: It refers to nothing, so that it would judge nothing; or a pattern is no
            regular expression.
    """
    holds = len(table) or description.keys or description.keyrings or description.buffers
    if not holds:
        raise FormatError(
            "an empty policy: no digest and no key",
            source=source or None,
            hint="It would allow nothing, and is refused so that nobody takes it for a judgement",
        )
    prefixes, excludes = compile_patterns(description.exclude_patterns)
    return Policy(
        table=table,
        description=description,
        digest=digest or table.digest(description.encode()).hex(),
        prefixes=prefixes,
        excludes=excludes,
    )


_LITERAL: Final = re.compile(
    r"\^?((?:[^\\^$.*+?{}()\[\]|]|\\[^0-9A-Za-z\x80-\U0010ffff])*)(?:\.\*)?"
)


def literal_prefix(pattern: str) -> bytes | None:
    """Return the beginning that a pattern amounts to, as most do: `/tmp/.*`; None for others."""
    found = _LITERAL.fullmatch(pattern)
    if found is None:
        return None
    return re.sub(r"\\(.)", r"\1", found[1], flags=re.DOTALL).encode("utf-8", "surrogateescape")


def compile_patterns(
    patterns: Iterable[str],
) -> tuple[tuple[bytes, ...], tuple[re.Pattern[bytes], ...]]:
    """Return the beginnings that patterns amount to, and the others compiled for bytes.

    The others are one alternation where that is possible.

    Raises:
        FormatError: A pattern is no regular expression; the field says which.
    """
    prefixes, compiled = [], []
    for number, pattern in enumerate(patterns):
        prefix = literal_prefix(pattern)
        if prefix is not None:
            prefixes.append(prefix)
        else:
            compiled.append(compile_pattern(pattern, field=f"excludes[{number}]"))
    plain = [p for p in compiled if not p.groups and not _has_flags(p)]
    if len(plain) < 2:
        return tuple(prefixes), tuple(compiled)
    rest = [p for p in compiled if p.groups or _has_flags(p)]
    joined = b"|".join(b"(?:" + p.pattern + b")" for p in plain).decode("utf-8", "surrogateescape")
    return tuple(prefixes), (compile_pattern(joined, field="excludes"), *rest)


def compile_pattern(pattern: str, *, field: str, line: int | None = None) -> re.Pattern[bytes]:
    """Return one pattern compiled for bytes.

    Raises:
        FormatError: It is no regular expression, with the place given.
    """
    try:
        with warnings.catch_warnings():
            # Python warns of patterns that might mean something else some day.
            warnings.simplefilter("ignore", FutureWarning)
            return re.compile(pattern.encode("utf-8", "surrogateescape"))
    except (re.error, OverflowError, RecursionError) as error:
        raise FormatError(
            f"{pattern!r} is not a regular expression: {error}", line=line, field=field
        ) from None


def _has_flags(pattern: re.Pattern[bytes]) -> bool:
    return bool(pattern.flags) or pattern.pattern.startswith(b"(?")

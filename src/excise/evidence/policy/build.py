"""Sources of reference values into one policy."""

from __future__ import annotations

import base64
import binascii
import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

from excise.errors import FormatError
from excise.evidence.policy.dsse import DSSE_PAYLOAD_TYPE, open_envelope
from excise.evidence.policy.model import Description, Policy, assemble, compile_pattern
from excise.evidence.policy.rpm import read_rpm_dump
from excise.files import read_whole

_T = TypeVar("_T")
_EXCLUDES_BYTES: Final = 64 << 20
_HEX: Final = frozenset("0123456789abcdefABCDEF")


class PolicyBuilder:
    """Reads sources one after another; `compile` makes the policy of them all.

    A source is a path, which is read as a stream, or its bytes.
    """

    def __init__(self) -> None:
        from excise._core import DigestTableBuilder

        self._table = DigestTableBuilder()
        self._patterns: list[str] = []
        self._keyrings: dict[str, set[str]] = {}
        self._buffers: dict[str, set[str]] = {}
        self._ignored_keyrings: set[str] = set()
        self._keys: list[bytes] = []
        self._notes: list[str] = []

    def add_digest(self, name: bytes, *, algorithm: str, digest: bytes) -> None:
        """Allow one file to have one digest.

        Raises:
            FormatError: The digest has not the length of others of its algorithm.
        """
        self._table.add(name, algorithm, digest)

    def add_checksums(
        self, source: Path | bytes, *, root: bytes | None = None, label: str = "checksum list"
    ) -> None:
        """Allow the files of a list made by `sha256sum` or its like, plain or with `--tag`.

        The algorithm is told by the digest's length, or by the tag.

        Args:
            source: The list.
            root: Where relative names are put, such as `b"/"` for a list made in a root folder.
            label: Name of the source for messages, when it is bytes.

        Raises:
            FormatError: A line is no checksum; with its number.
        """
        named = _label(source, label)
        digests, _, _, relative = _reading(
            named, lambda: self._table.read_checksums(_native(source), root=root)
        )
        if not digests:
            raise FormatError("no digest in it", source=named)
        if relative:
            self._notes.append(
                f"{relative} of {digests} names of a checksum list are relative, and IMA's are "
                "absolute: they match nothing unless a root is given (--policy-root)"
            )

    def add_rpm_dump(self, source: Path | bytes, *, label: str = "rpm dump") -> None:
        """Allow the files that `rpm -qa --dump` lists; names are absolute in it.

        Raises:
            FormatError: A line is none of a dump, with its number; or no file has a digest.
        """
        named = _label(source, label)
        added, without = _reading(named, lambda: self._take_rpm(source))
        if not added:
            raise FormatError("no digest in it", source=named)
        if without:
            self._notes.append(
                f"files of an rpm dump without a digest, which it does not allow: {without}"
            )

    def _take_rpm(self, source: Path | bytes) -> tuple[int, int]:
        added = without = 0
        with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as lines:
            for name, algorithm, digest in read_rpm_dump(lines):
                if digest:
                    self._table.add(name, algorithm, digest)
                    added += 1
                else:
                    without += 1
        return added, without

    def add_excludes(self, source: Path | bytes, *, label: str = "exclude list") -> None:
        """Exclude names by a list of regular expressions, one a line, matched at their start.

        Empty lines and lines that begin with `#` say nothing.

        Raises:
            FormatError: A line is no regular expression; with its number.
        """
        named = _label(source, label)
        if isinstance(source, bytes):
            text = source
        else:
            text = _reading(named, lambda: read_whole(source, limit_bytes=_EXCLUDES_BYTES))
        for number, line in enumerate(text.splitlines(), start=1):
            if not line.strip() or line.startswith(b"#"):
                continue
            try:
                pattern = line.decode("utf-8")
            except UnicodeDecodeError:
                raise FormatError(
                    "is not UTF-8",
                    source=named,
                    line=number,
                    hint="Write other bytes of a name as \\xNN, which the expression reads",
                ) from None
            try:
                compile_pattern(pattern, field="pattern", line=number)
            except FormatError as error:
                error.source = named
                raise
            self._patterns.append(pattern)

    def add_key(self, data: bytes, *, label: str = "key") -> None:
        """Trust the key of a certificate or public key, PEM or DER, for file signatures.

        Raises:
            FormatError: It is no RSA or ECC key.
        """
        from excise.evidence.signature import Keyring

        Keyring().add_bytes(data, source=label)
        self._keys.append(data)

    def add_keylime(
        self,
        source: Path | bytes,
        *,
        signing_key: bytes | None = None,
        label: str = "keylime policy",
    ) -> None:
        """Take over a keylime runtime policy (or an older allowlist), bare or in a DSSE envelope.

        Args:
            source: The policy.
            signing_key: Key the envelope must be signed with; a bare policy is then refused.
            label: Name of the source for messages, when it is bytes.

        Raises:
            FormatError: It is no policy, a digest or pattern is wrong, or the signature is.
        """
        named = _label(source, label)
        rest, digests = _reading(named, lambda: self._table.read_keylime(_native(source)))
        members: dict[str, Any] = json.loads(rest)
        if "payload" in members and "payloadType" in members:
            payload, note = _reading(named, lambda: open_envelope(members, signing_key=signing_key))
            if note:
                self._notes.append(note)
            self.add_keylime(payload, label=f"{named}: payload")
            return
        if signing_key is not None:
            raise FormatError(
                "the policy is not signed, and a signing key is given",
                source=named,
                hint=f"A signed one is a DSSE envelope of type {DSSE_PAYLOAD_TYPE}",
            )
        _reading(named, lambda: self._take_members(members, digests))

    def compile(self) -> Policy:
        """Return the policy; the builder is then used up.

        Raises:
            FormatError: No source held a digest or a key.
        """
        description = Description(
            exclude_patterns=tuple(sorted(set(self._patterns))),
            keyrings={name: tuple(sorted(held)) for name, held in self._keyrings.items()},
            buffers={name: tuple(sorted(held)) for name, held in self._buffers.items()},
            ignored_keyrings=tuple(sorted(self._ignored_keyrings)),
            keys=tuple(sorted(set(self._keys))),
            notes=tuple(self._notes),
        )
        return assemble(self._table.finish(), description)

    def _take_members(self, members: dict[str, Any], digests: int) -> None:
        known = {
            "meta",
            "release",
            "excludes",
            "keyrings",
            "ima",
            "ima-buf",
            "verification-keys",
        }
        if not digests and not known & members.keys():
            raise FormatError("no member of a keylime policy in it", field="policy")
        for name in sorted(members.keys() - known):
            self._notes.append(f"member {name!r} of a keylime policy is not used")
        for number, pattern in enumerate(_strings(members, "excludes")):
            if not pattern.strip():
                self._notes.append(f"excludes[{number}] of a keylime policy is empty and not used")
                continue
            compile_pattern(pattern, field=f"excludes[{number}]")
            self._patterns.append(pattern)
        _merge_digests(self._keyrings, members.get("keyrings"), "keyrings")
        _merge_digests(self._buffers, members.get("ima-buf"), "ima-buf")
        self._take_ima(members.get("ima"))
        self._take_keys(members.get("verification-keys"))

    def _take_ima(self, ima: object) -> None:
        if ima is None:
            return
        if not isinstance(ima, dict):
            raise FormatError("not an object", field="ima")
        self._ignored_keyrings.update(_strings(ima, "ignored_keyrings", prefix="ima."))
        if ima.get("dm_policy"):
            self._notes.append(
                "ima.dm_policy of a keylime policy is not used: device-mapper entries are judged "
                "as other buffers"
            )
        for name in sorted(ima.keys() - {"ignored_keyrings", "dm_policy", "log_hash_alg"}):
            self._notes.append(f"member 'ima.{name}' of a keylime policy is not used")

    def _take_keys(self, value: object) -> None:
        """Take keylime's keyring, a JSON text of Base64 keys; identifiers are derived anew."""
        if not value:
            return
        field = "verification-keys"
        try:
            ring: Any = json.loads(value) if isinstance(value, str) else value
            keys = [base64.b64decode(key, validate=True) for key in ring["pubkeys"]]
        except (ValueError, TypeError, KeyError, binascii.Error):
            raise FormatError("not a keyring of Base64 keys", field=field) from None
        for number, key in enumerate(keys):
            self.add_key(key, label=f"{field}[{number}]")


def _label(source: Path | bytes, label: str) -> str:
    return str(source) if isinstance(source, Path) else label


def _native(source: Path | bytes) -> str | bytes:
    return str(source) if isinstance(source, Path) else source


def _reading(source: str, read: Callable[[], _T]) -> _T:
    try:
        return read()
    except OSError as error:
        reason = error.strerror or str(error)
        raise FormatError(f"cannot be read: {reason}", source=source) from error
    except FormatError as error:
        error.source = source
        raise


def _strings(members: dict[str, Any], name: str, *, prefix: str = "") -> Iterable[str]:
    value = members.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise FormatError("not a list of texts", field=f"{prefix}{name}")
    return value


def _merge_digests(into: dict[str, set[str]], value: object, field: str) -> None:
    if value is None:
        return
    if not isinstance(value, dict):
        raise FormatError("not an object", field=field)
    for name, digests in value.items():
        if not isinstance(digests, list):
            raise FormatError("not a list of digests", field=f"{field}.{name}")
        for digest in digests:
            if not isinstance(digest, str) or not digest or not _HEX.issuperset(digest):
                raise FormatError(f"{digest!r} is not a digest", field=f"{field}.{name}")
            into.setdefault(name, set()).add(digest.lower())

"""Bytes in JSON: base64 or base64url, padded or not, as evidence and templates mix them."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode, urlsafe_b64encode
from binascii import Error as Base64Error
from typing import Any, Final

from excise.errors import FormatError

_ALPHABET: Final = re.compile(r"[A-Za-z0-9+/_-]*={0,2}")


def decode_base64(value: Any, *, field: str) -> bytes:
    """Return the bytes of base64 or base64url text.

    Characters that belong to neither alphabet are refused, not skipped: two texts with the same
    meaning to a lax decoder would be two digests to a reader.

    Raises:
        FormatError: The value is no such text.
    """
    if not isinstance(value, str) or not _ALPHABET.fullmatch(value):
        raise FormatError(f"{value!r} is neither base64 nor base64url", field=field)
    text = value.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (Base64Error, ValueError):
        raise FormatError(f"{value!r} is cut-off base64", field=field) from None


def encode_base64(value: bytes) -> str:
    """Return standard base64 with padding, as Veraison prints claims."""
    return b64encode(value).decode("ascii")


def encode_base64url(value: bytes) -> str:
    """Return base64url without padding, as JOSE and EAT want it."""
    return urlsafe_b64encode(value).rstrip(b"=").decode("ascii")

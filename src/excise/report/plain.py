"""Text that is safe to print: control and direction characters of measured names made visible."""

from __future__ import annotations

import math
import unicodedata
from typing import Any

_SPACE = {"\n", "\r", "\t", "\x0b", "\x0c", "\x85", "\u2028", "\u2029"}
"""Characters that break a line or jump; a cell shows them as one blank."""

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn"}
"""General categories that print as nothing or steer the terminal (Unicode 15, table 4-4)."""


def visible(text: str, *, lines: bool = False) -> str:
    """Return `text` with line breaks as blanks and every other hidden character escaped.

    Task names, commands and facts come from captures of other people: an escape sequence, a
    right-to-left override or a lone surrogate among them must neither act nor hide.

    Args:
        text: Any string.
        lines: Keep line feeds.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible_character(c, lines=lines) for c in text)


def _visible_character(c: str, *, lines: bool) -> str:
    if c == "\n" and lines:
        return c
    if c in _SPACE:
        return " "
    if unicodedata.category(c) not in _HIDDEN or c == "\u00ad":
        return c
    code = ord(c)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def plain_value(value: Any) -> Any:
    """Return `value` as JSON knows it: NaN and infinities are None, numpy scalars plain numbers.

    Raises:
        TypeError: A value that has no plain form; that is a fault of whoever built the report.
    """
    if value is None or isinstance(value, bool | int | str):
        return _plain_scalar(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if hasattr(value, "items"):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain_value(item) for item in value]
    if hasattr(value, "tolist"):
        return plain_value(value.tolist())
    raise TypeError(f"no plain form for a {type(value).__name__}")


def _plain_scalar(value: bool | int | str | None) -> bool | int | str | None:
    if isinstance(value, str):
        return str(value).encode("utf-8", "backslashreplace").decode("utf-8")
    return value

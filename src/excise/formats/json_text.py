"""JSON of other tools, decoded into typed structures, with the place of a fault."""

from __future__ import annotations

import re
from typing import Final, TypeVar

import msgspec

from excise.errors import FormatError

T = TypeVar("T")

_BOM: Final = b"\xef\xbb\xbf"
_OFFSET = re.compile(r"\(byte (\d+)\)")
_PATH = re.compile(r" - at `\$?\.?(.*)`$")


def parse_json(data: bytes, kind: type[T], *, source: str) -> T:
    """Return the JSON text as the given type.

    Raises:
        FormatError: If it is no JSON (it names line and offset) or not of that type (the field).
    """
    start = len(_BOM) if data.startswith(_BOM) else 0
    try:
        return msgspec.json.decode(data[start:], type=kind)
    except msgspec.ValidationError as error:
        text = str(error)
        path = _PATH.search(text)
        raise FormatError(
            _PATH.sub("", text), source=source, line=1, field=path[1] if path else None
        ) from error
    except msgspec.DecodeError as error:
        found = _OFFSET.search(str(error))
        offset = start + int(found[1]) if found else len(data)
        raise FormatError(
            _OFFSET.sub("", str(error)).strip().rstrip(":"),
            source=source,
            line=data.count(b"\n", 0, offset) + 1,
            offset=offset,
        ) from error
    except (UnicodeDecodeError, RecursionError) as error:
        reason = "the text is not UTF-8" if isinstance(error, UnicodeDecodeError) else "too deep"
        raise FormatError(reason, source=source, line=1) from error

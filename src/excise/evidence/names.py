"""Names of files, which are bytes, in a line of text."""

from __future__ import annotations

import re
from typing import Final

_BYTE: Final = re.compile(r"(?<!\\)\\udc([89a-f][0-9a-f])")


def quoted_name(name: bytes) -> str:
    r"""Return a name in quotes: what is no UTF-8 as `\xNN`, and what does not print escaped."""
    return _BYTE.sub(r"\\x\1", repr(name.decode("utf-8", "surrogateescape")))

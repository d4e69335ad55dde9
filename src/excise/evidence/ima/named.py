"""Names of the entries that something is to be said of: a place alone finds nobody's file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from excise import _core
from excise.evidence.ima.replay import Place, Replay
from excise.evidence.ima.rows import ImaRow
from excise.evidence.ima.source import Source

MOST_NAMED: Final = 5
"""Entries of each kind that are looked up."""


def names_of(source: Source, found: Replay) -> Mapping[int, bytes]:
    """Return the names of the first violations and of the first wrong and malformed entries.

    Args:
        source: The list.
        found: What its replay found.

    Raises:
        OSError: The file cannot be read.
    """
    places = [
        *found.violations.items[:MOST_NAMED],
        *(bad.place for bad in found.bad_hashes.items[:MOST_NAMED]),
        *(bad.place for bad in found.malformed.items[:MOST_NAMED]),
    ]
    names = {place.index: _name_at(source, found, place) for place in places}
    return {index: name for index, name in names.items() if name is not None}


def _name_at(source: Source, found: Replay, place: Place) -> bytes | None:
    layout = found.layout
    rows = _core.ImaRows(
        source.native,
        known=(layout.format, layout.byte_order, layout.header_bank),
        start=(place.offset, place.index, max(1, place.line)),
    )
    columns = rows.next_batch(1)
    if not columns or not columns[0]:
        return None
    row = ImaRow._make(column[0] for column in columns)
    return row.name or None

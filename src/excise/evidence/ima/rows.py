"""The entries of a measurement list as rows, for policies and for display.

Rows are what the list says; `verify_list` tells which of them a PCR covers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from excise import _core
from excise.errors import FormatError
from excise.evidence.ima.replay import Fault, Layout, fault_of
from excise.evidence.ima.source import ListInput, opened

if TYPE_CHECKING:
    from excise._core import PolicyScreen

BATCH_ROWS: Final = 4096


class ImaRow(NamedTuple):
    """One entry.

    Attributes:
        position: Position in the list, from 0.
        offset: Byte offset of its first byte.
        end: Byte offset after it.
        line: Its line, from 1; 0 in a binary list.
        pcr: The PCR it was extended into.
        template: Template name, or format string.
        template_hash: Template hash as recorded.
        digest_type: `ima` or `verity` in the v2 templates, else empty.
        algorithm: Hash algorithm of the file digest; empty in the old `ima` template.
        digest: The file digest; empty where the template has none.
        name: Path or event name, as bytes; `None` where the template has none.
        signature: The file signature, `b""` for an unsigned file; `None` where the template has
            none.
        buf: The measured buffer; `None` where the template has none.
        others: The other fields by kernel identifier, or `None`.
        violation: Whether the entry is a violation, so that nothing of it is authenticated.
        hash_matches: Whether the template hash is that of the data; `None` for violations and for
            ascii lines that do not determine the data.
        fault: The first field that contradicts the template, and why; `None` if none does.
    """

    position: int
    offset: int
    end: int
    line: int
    pcr: int
    template: str
    template_hash: bytes
    digest_type: str
    algorithm: str
    digest: bytes
    name: bytes | None
    signature: bytes | None
    buf: bytes | None
    others: Mapping[str, bytes] | None
    violation: bool
    hash_matches: bool | None
    fault: str | None


class Settled(NamedTuple):
    """Entries that a screen settled.

    Attributes:
        allowed: Files with a listed digest.
        excluded: Files whose name is excluded.
        without_signature: Allowed files without a signature.
        unknown_key: Allowed files with a signature that no key is asked for.
        files: Allowed files, without a listed boot aggregate.
    """

    allowed: int
    excluded: int
    without_signature: int
    unknown_key: int
    files: int


@dataclass(frozen=True, slots=True)
class ImaBatch:
    """Some rows as columns, in the order of `ImaRow`'s fields."""

    columns: tuple[Sequence[Any], ...]

    def __len__(self) -> int:
        return len(self.columns[0])

    def column(self, name: str) -> Sequence[Any]:
        """Return a column by the name of the row's field."""
        return self.columns[ImaRow._fields.index(name)]

    def rows(self) -> Iterator[ImaRow]:
        """Iterate over the rows."""
        return map(ImaRow._make, zip(*self.columns, strict=True))


class ImaList:
    """A list that `read_list` opened: iterate over its rows once, or take batches of columns."""

    def __init__(self, native: _core.ImaRows, *, opened: ExitStack) -> None:
        self._native, self._opened = native, opened

    def batches(self, rows: int = BATCH_ROWS) -> Iterator[ImaBatch]:
        """Iterate over the rest of the list in batches of at most so many rows."""
        while not self._native.ended:
            batch = ImaBatch(tuple(self._native.next_batch(rows)))
            if len(batch):
                yield batch

    def __iter__(self) -> Iterator[ImaRow]:
        for batch in self.batches():
            yield from batch.rows()

    def head(self, count: int) -> tuple[ImaRow, ...]:
        """Return the next rows, at most so many."""
        return tuple(islice(self, count))

    @property
    def settled(self) -> Settled:
        """Return the entries read so far that are no rows, because the screen settled them."""
        return Settled(*self._native.settled)

    @property
    def layout(self) -> Layout:
        """Return how the list is laid out, known once a row was read."""
        known = self._native.layout
        if known is None:
            return Layout()
        return Layout(format=known[0], byte_order=known[1], header_bank=known[2])

    @property
    def names_ambiguous(self) -> bool:
        """Return whether names are ambiguous: the kernel does not escape them in ascii lists."""
        return self._native.names_ambiguous

    @property
    def fault(self) -> Fault | None:
        """Return why reading stopped before the end; `None` while it did not."""
        return fault_of(self._native.fault)

    def close(self) -> None:
        """Let go of the input."""
        self._opened.close()

    def __enter__(self) -> ImaList:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_list(
    data: ListInput,
    *,
    start_offset: int = 0,
    end_offset: int | None = None,
    start_index: int = 0,
    start_line: int = 1,
    layout: Layout | None = None,
    pcr: int | None = None,
    screen: PolicyScreen | None = None,
) -> ImaList:
    """Open a measurement list, binary or ascii, to read its rows.

    What cannot be read ends the rows; `ImaList.fault` then says where and why.

    Args:
        data: A path, bytes, or a binary stream.
        start_offset: Byte offset of the first entry to read, as a checkpoint gives it.
        end_offset: Byte offset to stop at, such as the end of what a PCR covers.
        start_index: Position in the list of the first entry to read.
        start_line: Its line (ascii lists).
        layout: What is known of the layout; the rest is found out.
        pcr: The PCR whose entries are wanted; all by default.
        screen: What a policy has nothing to say of; such entries are counted, and are no rows.

    Raises:
        FormatError: The file cannot be read.
    """
    layout = layout or Layout()
    with ExitStack() as stack:
        source = stack.enter_context(opened(data))
        try:
            native = _core.ImaRows(
                source.native,
                known=(layout.format, layout.byte_order, layout.header_bank),
                start=(start_offset, start_index, start_line),
                end=end_offset,
                pcr=pcr,
                screen=screen,
            )
        except OSError as error:
            raise FormatError(error.strerror or str(error), source=source.name) from error
        return ImaList(native, opened=stack.pop_all())

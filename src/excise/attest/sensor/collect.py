"""Collect the integrity log and the PCRs of the sensor, with the embedding, into one message.

The kernel's list of measurements is a seq_file: every read(2) walks the list from its head to the
file's position, and gives at most a page. A dump of n entries so costs steps of the order of n²,
which is why the thesis's *collect* grew with every transaction. From a file that is kept open only
new entries are read, and no more often than their pages need: the kernel's count of entries tells
when the last one was read, so that no read(2) walks the list only to find its end; and where the
count says that nothing is new, nothing is read.

Source: Linux security/integrity/ima/ima_fs.c, ima_measurements_start; fs/seq_file.c.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from excise.attest.sensor.embed import Embedding
from excise.attest.sensor.entry_count import EntryCounter
from excise.errors import FormatError, HostError
from excise.evidence.sensor_message import PcrBanks, SensorMessage

DEFAULT_LIST: Final = Path("/sys/kernel/security/ima/binary_runtime_measurements")
READ_BYTES: Final = 1 << 16
_COUNT_NAME: Final = "runtime_measurements_count"


class Collector:
    """Reads a measurement list as it grows, and makes messages.

    Use it as a context manager: it keeps the list open.

    Attributes:
        list_size: Bytes of the list read so far.
    """

    def __init__(
        self,
        *,
        pcrs: Callable[[], PcrBanks],
        measurement_list: Path = DEFAULT_LIST,
        whole_log: bool = False,
    ) -> None:
        """Make a collector; the list is opened when it is entered.

        Args:
            pcrs: Gives all PCR values, by index by bank.
            measurement_list: The kernel's binary list, or a file of that form.
            whole_log: Read and send the whole list every time, as the original did.
        """
        self._pcrs = pcrs
        self._path = measurement_list
        self._whole_log = whole_log
        self._fd = -1
        self._count_fd = -1
        self._forget()

    def __enter__(self) -> Self:
        if not self._whole_log:
            self._fd = self._open()
            with suppress(OSError):  # another kind of file than the kernel's has none
                count = self._path.with_name(_COUNT_NAME)
                self._count_fd = os.open(count, os.O_RDONLY | os.O_CLOEXEC)
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in (self._fd, self._count_fd):
            if descriptor >= 0:
                os.close(descriptor)
        self._fd = self._count_fd = -1

    def collect(self, embedding: Embedding) -> SensorMessage:
        """Return a message over the list's entries that no acknowledged message held.

        PCRs are read before the list: what they hold is then a beginning of it, and not its end.

        Raises:
            HostError: The list or the TPM cannot be read.
            FormatError: The list has become shorter, which a kernel's never does.
        """
        pcrs = self._pcrs()
        if self._whole_log:
            self._forget()
            descriptor = self._open()
            try:
                self._read_on(descriptor)
            finally:
                os.close(descriptor)
        else:
            if self._fd < 0:
                raise HostError("the collector is not open", hint="Use it in a with statement")
            # The count after the PCRs: an entry is in the list before a PCR is extended by it.
            self._read_on(self._fd, entry_count=self._kernels_count())
        entries = bytes(self._unsent)
        return SensorMessage(
            list_offset=self.list_size - len(entries),
            list_entries=entries,
            list_sha512=self._hash.digest(),
            pcrs=_plain(pcrs),
            embedder=embedding.model,
            embedding=embedding.values,
            image_sha256=embedding.image_sha256,
        )

    def acknowledge(self, list_end: int) -> None:
        """Forget entries that the verifier has kept; the next message begins after them.

        Args:
            list_end: Offset in the whole list up to which it has them; 0 when it lost them.
        """
        begun = self.list_size - len(self._unsent)
        if list_end < begun:
            self._rewind()
        else:
            del self._unsent[: min(list_end, self.list_size) - begun]

    def _rewind(self) -> None:
        """Begin at the list's head again: the verifier does not know what came before."""
        if self._whole_log:
            return
        os.close(self._fd)
        self._fd = self._open()
        self._forget()

    def _forget(self) -> None:
        self._hash, self._unsent, self.list_size = hashlib.sha512(), bytearray(), 0
        self._entries = EntryCounter()

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise HostError(
                f"the measurement list cannot be opened ({error.strerror})",
                source=str(self._path),
                hint="It needs root, securityfs and a kernel with IMA; --list names another file",
            ) from error

    def _kernels_count(self) -> int | None:
        """Return the kernel's count of entries, or None where it tells none."""
        try:
            return int(os.pread(self._count_fd, 32, 0))
        except (OSError, ValueError):
            return None

    def _read_on(self, descriptor: int, *, entry_count: int | None = None) -> None:
        """Read to the end of the list, or until as many entries of it were read in all."""
        while entry_count is None or self._entries.count < entry_count:
            try:
                data = os.read(descriptor, READ_BYTES)
            except OSError as error:
                raise HostError(
                    f"the measurement list cannot be read ({error.strerror})",
                    source=str(self._path),
                ) from error
            if not data:
                return
            self._hash.update(data)
            self._unsent += data
            self.list_size += len(data)
            if entry_count is not None:
                self._entries.add(data)


def _plain(pcrs: PcrBanks) -> Mapping[str, Mapping[int, bytes]]:
    if not pcrs:
        raise FormatError("the TPM gave no PCR value", field="PCR values")
    return {bank: dict(values) for bank, values in pcrs.items()}

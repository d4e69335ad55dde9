"""The registry of foreign formats: every reader, and which one some bytes are for."""

from __future__ import annotations

import zlib
from typing import Final

from excise.errors import FormatError, UsageError
from excise.files import FileOnDisk, read_whole
from excise.formats import (
    bcc_histogram,
    bpftrace,
    callgrind,
    dmesg,
    ftrace_counts,
    function_graph_import,
    hyperfine,
    lsmpmon,
    perf_script,
    perf_stat,
    perf_trace,
    pyperf,
    ra_perf,
    systemd_analyze,
    systemd_plot,
    systemd_show,
    time_gnu,
    time_shell,
)
from excise.formats.model import Format, Options, Reading

MAX_UNPACKED_BYTES: Final = 1 << 30
MAX_HELD_BYTES: Final = 64 << 20
"""Larger files are read by the formats that do so in pieces."""

_GZIP_MAGIC: Final = b"\x1f\x8b\x08"

FORMATS: Final[tuple[Format, ...]] = (
    ra_perf.FORMAT,
    lsmpmon.FORMAT,
    time_gnu.FORMAT_V,
    time_gnu.FORMAT,
    time_shell.FORMAT,
    hyperfine.FORMAT,
    pyperf.FORMAT,
    systemd_analyze.FORMAT,
    systemd_show.FORMAT,
    systemd_plot.FORMAT,
    dmesg.FORMAT,
    function_graph_import.FORMAT,
    function_graph_import.FORMAT_EVENTS,
    function_graph_import.FORMAT_TRACE_CMD,
    ftrace_counts.FORMAT,
    ftrace_counts.FORMAT_HIST,
    ftrace_counts.FORMAT_PROFILE,
    ftrace_counts.FORMAT_BUFFERS,
    perf_trace.FORMAT,
    perf_stat.FORMAT,
    perf_stat.FORMAT_CSV,
    perf_stat.FORMAT_JSON,
    perf_script.FORMAT,
    bpftrace.FORMAT,
    bpftrace.FORMAT_JSON,
    bcc_histogram.FORMAT,
    callgrind.FORMAT,
)


def by_name(name: str) -> Format:
    """Return the format of that name.

    Raises:
        UsageError: If there is none; the names that exist are in the hint.
    """
    for known in FORMATS:
        if known.name == name:
            return known
    names = ", ".join(sorted(known.name for known in FORMATS))
    raise UsageError(f"no format is called {name!r}", hint=f"Known formats: {names}")


def unpack(data: bytes, *, source: str = "-") -> bytes:
    """Return the bytes, decompressed if they are gzip.

    Raises:
        FormatError: If the gzip stream is damaged, cut, or larger than 1 GiB when unpacked.
    """
    if not data.startswith(_GZIP_MAGIC):
        return data
    parts: list[bytes] = []
    size, rest = 0, data
    while rest.startswith(_GZIP_MAGIC):
        stream = zlib.decompressobj(wbits=31)
        try:
            part = stream.decompress(rest, MAX_UNPACKED_BYTES - size + 1)
        except zlib.error as error:
            raise FormatError(f"damaged gzip data ({error})", source=source, offset=0) from error
        size += len(part)
        if size > MAX_UNPACKED_BYTES:
            raise FormatError("more than 1 GiB of unpacked data", source=source, offset=0)
        if not stream.eof:
            raise FormatError("the gzip data is cut short", source=source, offset=len(data))
        parts.append(part)
        rest = stream.unused_data
    return b"".join(parts)


def claims(data: bytes) -> list[tuple[float, Format]]:
    """Return the formats that claim these (unpacked) bytes, the surest first."""
    found = [(known.detect(data[: known.head_bytes]), known) for known in FORMATS]
    return sorted((pair for pair in found if pair[0] > 0.0), key=lambda pair: -pair[0])


def detect(data: bytes, *, source: str = "-") -> Format:
    """Return the format that claims these bytes most surely.

    Raises:
        FormatError: If the input is empty, no format claims it, or two claim it alike.
    """
    data = unpack(data, source=source)
    if not data.strip():
        raise FormatError("the input is empty", source=source)
    ranked = claims(data)
    if not ranked:
        raise FormatError(
            "no known format fits this input",
            source=source,
            hint="Give --format NAME; `excise import --list` shows the names",
        )
    best = [known.name for confidence, known in ranked if confidence == ranked[0][0]]
    if len(best) > 1:
        raise FormatError(
            f"the input fits {' and '.join(best)} alike", source=source, hint="Give --format NAME"
        )
    return ranked[0][1]


def read(data: bytes | FileOnDisk, *, options: Options, format_name: str | None = None) -> Reading:
    """Return what the bytes hold, in the given or the detected format; gzip is unpacked first.

    A file stays on disk where its format can be read in pieces.

    Raises:
        FormatError: If the bytes are not of that format; it names line and reason. If a file has
            more than `MAX_HELD_BYTES` and has to be read whole.
        UsageError: If `format_name` is unknown.
        OSError: If a file cannot be read.
    """
    if isinstance(data, FileOnDisk):
        head = data.head(max(known.head_bytes for known in FORMATS))
        if not head.startswith(_GZIP_MAGIC):
            known = by_name(format_name) if format_name else detect(head, source=options.source)
            if known.read_path is not None:
                return known.read_path(data.path, options)
        data = read_whole(data.path, limit_bytes=MAX_HELD_BYTES)
    data = unpack(data, source=options.source)
    chosen = by_name(format_name) if format_name else detect(data, source=options.source)
    return chosen.read(data, options)

"""The kernel's log: how long the kernel took to start init, and what it did meanwhile.

One run of task `boot` has the stages that the log tells: the kernel's, from the start of its clock
to the start of init, the initrd's where systemd's start is in the log too, and user space where
systemd's own last line is. The kernel's start is also a run of its own, `boot-kernel`, with its
total: explained by initcalls where the kernel ran with `initcall_debug`, else by the longest times
without a line.

Source: init/main.c (run_init_process), kernel/printk, dmesg of util-linux, `systemd[1]` lines of
src/core/main.c and manager.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from excise.capture.journal import Event, Loss
from excise.capture.manifest import Fact
from excise.clock import Clock
from excise.errors import FormatError
from excise.formats import systemd_analyze
from excise.formats.initcall import PROBE, Call, Calls
from excise.formats.json_text import parse_json
from excise.formats.model import DEFAULT_CONFIGURATION, Format, Options, Reading
from excise.formats.systemd_analyze import BOOT
from excise.formats.text import INT64_MAX, lines, loss, merged_losses, number_runs

NAME: Final = "dmesg"
KERNEL: Final = "boot-kernel"
QUIET: Final = "quiet"
_LONGEST_QUIET: Final = 50
_SHORTEST_QUIET_NS: Final = 1_000_000
_LONGEST_LINE: Final = 4000
_STAMP: Final = r"\[ *(?P<s>\d{1,9})\.(?P<us>\d{6})(?: +<[ .\d]+>)?\]"
_STAMPED = re.compile(
    rf"(?:<\d{{1,3}}>)?(?:[a-z0-9]+ *:[a-z]+ *: )?{_STAMP}(?:\[ *[TC]\d+\])?(?: (?P<text>.*)|)"
)
_KMSG = re.compile(r"\d{1,4},\d{1,19},(?P<us>\d{1,18}),[^;]{1,200};(?P<text>.*)")
_CTIME = re.compile(r"\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\] ")
_JOURNAL = re.compile(r"\S{1,255} kernel: (?P<text>.*)")
_VERSION = re.compile(r"Linux version (?P<release>\S+)")
_CMDLINE = re.compile(r"(?:Kernel c|C)ommand line: (?P<words>.*)")
_INIT = re.compile(r"Run (?P<path>\S{1,200}) as init process")
_FREEING = re.compile(r"Freeing unused kernel (?:image|memory).*")
_SYSTEMD = re.compile(
    r"systemd\[1\]: systemd \S+ (?:\S+ )?running in (?:system|test system) mode.*"
)
_IN_INITRD = re.compile(r"systemd\[1\]: Running in (?:initrd|initial RAM disk)\.?")
_FINISHED = re.compile(r"systemd\[1\]: (?P<line>Startup finished in .{1,1000})")
_DROPPED = re.compile(r"\*\* (?P<count>\d{1,12}) (?:printk messages|messages) dropped.*")
_HEAD_STAMP = re.compile(rb"(?m)^(?:<\d+>)?(?:[a-z0-9]+ *:[a-z]+ *: )?\[ *\d+\.\d{6}[ \]<]")
_HEAD_VERSION = re.compile(rb"(?m)(?:\] |;|kernel: |\"msg\" *: *\")Linux version \d")
_HEAD_INITCALL = re.compile(rb"(?m)\] (?:initcall \S+ returned -?\d+ after|calling +\S+ @ \d)")
_HEAD_CTIME = re.compile(
    rb"(?m)^\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d [^\]\n]{13}\] Linux version \d"
)


class _Message(msgspec.Struct):
    msg: str
    time: float | str = 0.0


class _Json(msgspec.Struct):
    dmesg: list[_Message]


def detect(head: bytes) -> float:
    """Return 0.95 for the kernel's first line or two initcalls, 0.4 for mere time stamps."""
    if _HEAD_VERSION.search(head) and (_HEAD_STAMP.search(head) or b'"dmesg"' in head):
        return 0.95
    if len(_HEAD_INITCALL.findall(head)) >= 2:
        return 0.95
    if re.match(rb"\d+,\d+,\d+,\S*;Linux version ", head):
        return 0.95
    if _HEAD_CTIME.search(head):
        return 0.95  # `read` says what to do
    some = head.splitlines()[:40]
    stamped = sum(_HEAD_STAMP.match(line) is not None for line in some)
    return 0.4 if stamped >= 5 and stamped >= 0.8 * len(some) else 0.0


@dataclass(slots=True)
class _Boot:
    """What one boot's lines said."""

    release: str = ""
    cmdline: str = ""
    began: bool = False
    init_ns: int | None = None
    init_path: str = ""
    freeing_ns: int | None = None
    in_initrd: bool = False
    systemd_ns: list[int] = field(default_factory=list)
    finished: str = ""
    calls: Calls = field(default_factory=Calls)
    quiet: list[tuple[int, int, str]] = field(default_factory=list)
    last: tuple[int, str] | None = None

    @property
    def kernel_ns(self) -> int | None:
        """Return when init was started, or the kernel's own memory freed, just before."""
        return self.init_ns if self.init_ns is not None else self.freeing_ns


@dataclass(slots=True)
class _State:
    source: str
    boots: list[_Boot] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    other: int = 0

    @property
    def boot(self) -> _Boot:
        if not self.boots:
            self.boots.append(_Boot())
        return self.boots[-1]


def read(data: bytes, options: Options) -> Reading:
    """Return the runs of each boot in a kernel's log.

    Raises:
        FormatError: If no line has a time since boot, or none tells anything of a boot.
    """
    state = _State(source=options.source)
    for number, at_ns, text in _messages(data, state):
        _take(state, number, at_ns, text)
    drafts: list[dict[str, Any]] = []
    events: list[Event] = []
    for boot in state.boots:
        _emit(boot, options, drafts, events, state.losses)
    if not drafts:
        raise FormatError(
            "no line tells when init was started, nor an initcall's time",
            source=options.source,
            line=1,
            hint="It is the log from the kernel's first line on: dmesg, or journalctl -k -b "
            "-o short-monotonic",
        )
    last = state.boots[-1]
    facts = [
        Fact(name=name, value=value)
        for name, value in (("kernel.release", last.release), ("kernel.cmdline", last.cmdline))
        if value
    ]
    return Reading(
        format=NAME,
        runs=number_runs(drafts),
        events=events,
        losses=merged_losses(state.losses),
        clock=Clock(name="the kernel's log", resolution_ns=1000.0),
        facts=facts,
        notes=_notes(state),
    )


def _notes(state: _State) -> list[str]:
    notes = []
    if any(boot.calls.finished for boot in state.boots):
        notes.append("initcall_debug prints a line for each call, which lengthens the boot")
    if state.other:
        notes.append(f"{state.other} other lines")
    return notes


def _messages(data: bytes, state: _State) -> Iterator[tuple[int, int, str]]:
    """Yield line number, time in nanoseconds and text of each message."""
    if data.lstrip().startswith(b"{"):
        for number, message in enumerate(
            parse_json(data, _Json, source=state.source).dmesg, start=1
        ):
            yield number, _in_ns(message.time, state.source), message.msg
        return
    for number, line in enumerate(lines(data), start=1):
        if len(line) > _LONGEST_LINE:
            state.losses.append(loss(state.source, number, "a line of more than 4000 characters"))
        elif match := _STAMPED.fullmatch(line):
            text = match["text"] or ""
            journal = _JOURNAL.fullmatch(text)
            at_ns = (int(match["s"]) * 1_000_000 + int(match["us"])) * 1000
            yield number, at_ns, journal["text"] if journal else text
        elif match := _KMSG.fullmatch(line):
            yield number, min(int(match["us"]) * 1000, INT64_MAX), match["text"]
        elif dropped := _DROPPED.fullmatch(line.strip()):
            _drop(state, number, dropped)
        elif _CTIME.match(line):
            raise FormatError(
                "times of day cannot be told from each other within a boot: they are whole seconds",
                source=state.source,
                line=number,
                hint="Print the log without -T, or with --time-format raw",
            )
        elif line.strip():
            state.other += 1


def _in_ns(value: float | str, source: str) -> int:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds < INT64_MAX / 1e9:
        raise FormatError(f"the time {value} is no number of seconds", source=source, field="time")
    return round(seconds * 1e6) * 1000


def _drop(state: _State, number: int, match: re.Match[str]) -> None:
    reason = "messages that the kernel dropped"
    state.losses.append(loss(state.source, number, reason, count=int(match["count"])))


def _take(state: _State, number: int, at_ns: int, text: str) -> None:
    if match := _VERSION.match(text):
        if not state.boots or state.boot.last is not None:
            state.boots.append(_Boot())
        state.boot.release, state.boot.began = match["release"], True
    boot = state.boot
    if boot.last is None and not boot.began:
        reason = "the beginning of the log is missing: it was cut, or its buffer overwritten"
        state.losses.append(loss(state.source, number, reason, text))
    if boot.last is not None and boot.kernel_ns is None:
        before_ns, before = boot.last
        if at_ns - before_ns >= _SHORTEST_QUIET_NS:
            boot.quiet.append((before_ns, at_ns - before_ns, before))
    boot.last = (at_ns, text)
    if boot.calls.take(text, at_ns=at_ns):
        return
    if dropped := _DROPPED.fullmatch(text):
        _drop(state, number, dropped)
    else:
        _mark(boot, at_ns, text)


def _mark(boot: _Boot, at_ns: int, text: str) -> None:
    """Take a line that marks a stage, or names the command line."""
    if (match := _CMDLINE.fullmatch(text)) and not boot.cmdline:
        boot.cmdline = match["words"]
    elif (match := _INIT.fullmatch(text)) and boot.init_ns is None:
        boot.init_ns, boot.init_path = at_ns, match["path"]
    elif _FREEING.fullmatch(text):
        boot.freeing_ns = at_ns
    elif _IN_INITRD.fullmatch(text):
        boot.in_initrd = True
    elif _SYSTEMD.fullmatch(text):
        boot.systemd_ns.append(at_ns)
    elif match := _FINISHED.fullmatch(text):
        boot.finished = match["line"]


def _emit(
    boot: _Boot,
    options: Options,
    drafts: list[dict[str, Any]],
    events: list[Event],
    losses: list[Loss],
) -> None:
    """Append the runs and events of one boot."""
    configuration = options.configuration or DEFAULT_CONFIGURATION
    stages, total_ns = _stages(boot)
    later = [call for call in boot.calls.finished if not _of_kernel(call, boot)]
    if stages or later:
        events.extend(
            Event(
                sequence=len(drafts), layer="stage", event=name, start_ns=start, value=float(length)
            )
            for name, start, length in stages
        )
        events.extend(_call_event(call, len(drafts)) for call in later)
        drafts.append(
            {"task": options.task or BOOT, "configuration": configuration, "wall_ns": total_ns}
        )
    elif boot.calls.finished:
        losses.append(loss(options.source, 1, "the start of init is not in the log"))
    own = [call for call in boot.calls.finished if _of_kernel(call, boot)]
    if own or boot.kernel_ns is not None:
        known = {call.name for call in own if call.layer != PROBE}
        events.extend(
            _call_event(call, len(drafts), inside=call.inside if call.inside in known else "")
            for call in own
        )
        if not own:
            events.extend(_quiet_events(boot, len(drafts)))
        drafts.append({"task": KERNEL, "configuration": configuration, "wall_ns": boot.kernel_ns})
    losses.extend(
        loss(options.source, 1, f"the initcall {name} did not return")
        for name in boot.calls.unfinished
    )


def _of_kernel(call: Call, boot: _Boot) -> bool:
    """Return whether a call was over before init began."""
    if call.layer not in ("initcall", PROBE) or boot.kernel_ns is None:
        return call.layer in ("initcall", PROBE)
    return call.start_ns is None or call.start_ns <= boot.kernel_ns


def _stages(boot: _Boot) -> tuple[list[tuple[str, int, int]], int | None]:
    """Return name, start and length of each stage, and the total where the log has its end."""
    kernel_ns = boot.kernel_ns
    if boot.finished:
        found = systemd_analyze.read(boot.finished.encode(), Options())
        begin, stages = 0, []
        for event in found.events:
            if event.layer == "stage":
                stages.append((event.event, begin, round(event.value)))
                begin += round(event.value)
        return stages, found.runs[0].wall_ns
    if kernel_ns is None:
        return [], None
    stages = [("kernel", 0, kernel_ns)]
    starts = [at_ns for at_ns in boot.systemd_ns if at_ns >= kernel_ns]
    real = starts[1:2] if boot.in_initrd else starts[:1]
    if real and (boot.in_initrd or not boot.init_path.startswith("/sbin")):
        stages.append(("initrd", kernel_ns, real[0] - kernel_ns))
    return stages, None


def _call_event(call: Call, sequence: int, *, inside: str = "") -> Event:
    labels = [f"module={call.module}"] if call.module else []
    if call.code:
        labels.append(f"returned={call.code}")
    return Event(
        sequence=sequence,
        layer=call.layer,
        event=call.name,
        start_ns=call.start_ns,
        value=float(call.duration_ns),
        parent=f"initcall|{inside}" if inside else None,
        labels=",".join(labels),
    )


def _quiet_events(boot: _Boot, sequence: int) -> Iterator[Event]:
    longest = sorted(boot.quiet, key=lambda item: -item[1])[:_LONGEST_QUIET]
    for start_ns, length_ns, text in sorted(longest):
        yield Event(
            sequence=sequence,
            layer=QUIET,
            event=text[:200].strip() or "(an empty line)",
            start_ns=start_ns,
            value=float(length_ns),
        )


FORMAT: Final = Format(
    name=NAME,
    title="dmesg: the kernel's log, with initcall_debug where it has it",
    detect=detect,
    read=read,
)

"""A slow reading of function graphs in plain Python, written from the kernel's own printing rules.

It shares nothing with the native reader: columns come from the header or are told by the caller,
and lines are matched by one pattern for each layout.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal

_ABSOLUTE = r"\s*(?P<time>\d+\.\d{6}) \|"
_CPU = r"\s*(?P<cpu>\d+)\)"
_TASK = r"\s*(?P<task>\S.{0,15}?-\d+)\s* \|"
_FLAGS = r"\s+(?P<flags>[.\w#]{4,6}) \|"
_DURATION = r"[ $@*#!+]*(?:(?P<us>\d+(?:\.\d+)?) us)?\s*\|"
_SWITCH = re.compile(r"\s*(\d+)\)\s+(.+-\d+)\s+=>\s+(.+-\d+)\s*")
_LOST = re.compile(r"CPU:(\d+) \[LOST (\d+) EVENTS\]")
_INTERRUPTS = re.compile(r"(__)?sysvec_|irq_(enter|exit)(_rcu)?$|(__)?common_interrupt$|do_IRQ$")
_SCHEDULER = re.compile(
    r"(preempt_)?(__)?schedule(_common|_notrace|_irq|_idle|_preempt_disabled)?$"
)


@dataclass
class Call:
    """A call, with what is known of it."""

    function: str
    task: str | None
    cpu: int | None
    indent: int
    parent: Call | None
    line: int
    duration_ns: int | None = None
    children: list[Call] = field(default_factory=list)
    seen: str = "beginning"

    @property
    def self_ns(self) -> int | None:
        """Return the duration without those of the calls in it; they may not exceed it."""
        if self.duration_ns is None:
            return None
        inside = sum(child.known_ns for child in self.children)
        return max(0, self.duration_ns - inside)

    @property
    def known_ns(self) -> int:
        """Return the duration, or what is known of it by the calls in it."""
        if self.duration_ns is not None:
            return self.duration_ns
        return sum(child.known_ns for child in self.children)


@dataclass
class Reference:
    """All calls in the order they began."""

    calls: list[Call] = field(default_factory=list)
    lost: list[tuple[int, int]] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    nameless: int = 0


def columns_of(text: str) -> tuple[bool, bool, bool, bool, bool]:
    """Return whether the header tells of a time, a CPU, a task, flags and a duration."""
    head = [line for line in text.splitlines() if line.startswith("#")]
    words = " ".join(head)
    return (
        "TIME" in words,
        bool(re.search(r"# CPU|TIME +CPU", words)),
        "TASK/PID" in words,
        "latency trace" in words,
        "DURATION" in words,
    )


def read(text: str, *, columns: tuple[bool, bool, bool, bool, bool] | None = None) -> Reference:
    """Return the calls of a trace."""
    time, cpu, task, flags, duration = columns or columns_of(text)
    prefix = (
        (_ABSOLUTE if time else "") + (_CPU if cpu else "") + (_TASK if task else "")
        + (_FLAGS if flags else "") + (_DURATION if duration else "")
    )  # fmt: skip
    pattern = re.compile(rf"{prefix}(?P<body> *\S.*)")
    found = Reference()
    running: dict[int | None, str] = {}
    stacks: dict[object, list[Call]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith(("#", " ------")):
            continue
        if lost := _LOST.fullmatch(line):
            found.lost.append((int(lost[1]), int(lost[2])))
            continue
        if switch := _SWITCH.fullmatch(line):
            on = int(switch[1])
            if on not in running:
                _name(found, stacks, on, switch[2].strip())
            running[on] = switch[3].strip()
            continue
        match = pattern.fullmatch(line)
        if match is None or "=====" in line:
            if match is None and "=====" not in line:
                found.unknown.append(line)
            continue
        parts = match.groupdict()
        on_cpu = int(parts["cpu"]) if parts.get("cpu") else None
        if parts.get("task"):
            running[on_cpu] = parts["task"].strip()
        who = running.get(on_cpu)
        key: object = ("cpu", on_cpu) if who is None else who
        if who is not None and who.endswith("-0"):
            key = (who, on_cpu)
        if who is not None and not who.endswith("-0"):
            key = who.rsplit("-", 1)[1]
        ns = int(Decimal(parts["us"]) * 1000) if parts.get("us") else None
        _line(found, stacks.setdefault(key, []), parts["body"], who, on_cpu, ns, number)
    return found


def _name(found: Reference, stacks: dict[object, list[Call]], cpu: int, task: str) -> None:
    for call in found.calls:
        if call.cpu == cpu and call.task is None:
            call.task = task
    stack = stacks.pop(("cpu", cpu), [])
    key: object = (task, cpu) if task.endswith("-0") else task.rsplit("-", 1)[1]
    stacks.setdefault(key, []).extend(stack)


def _line(
    found: Reference,
    stack: list[Call],
    body: str,
    task: str | None,
    cpu: int | None,
    ns: int | None,
    number: int,
) -> None:
    indent = len(body) - len(body.lstrip())
    text = body.strip()
    if text.startswith("/*"):
        return
    if text.startswith("}"):
        _end(found, stack, text, indent, task, cpu, ns, number)
        return
    while stack and stack[-1].indent >= indent:
        stack.pop()
    name = text.split("(", 1)[0].strip()
    parent = stack[-1] if stack else None
    call = Call(name, task, cpu, indent, parent, number)
    found.calls.append(call)
    if parent:
        parent.children.append(call)
    text = text.split("/*")[0].strip()
    if text.endswith(";"):
        call.duration_ns, call.seen = ns, "whole"
    else:
        stack.append(call)


def _end(
    found: Reference,
    stack: list[Call],
    text: str,
    indent: int,
    task: str | None,
    cpu: int | None,
    ns: int | None,
    number: int,
) -> None:
    named = re.fullmatch(r"\} /\* (.*?)(?:(?: = | ret=| <-).*)? \*/", text)
    while stack and stack[-1].indent > indent:
        stack.pop()
    if stack and stack[-1].indent == indent:
        call = stack.pop()
        if named is None or named[1] == call.function:
            call.duration_ns, call.seen = ns, "whole"
            _late_interrupt(call)
            return
    if named is None:
        found.nameless += 1
        return
    parent = stack[-1] if stack else None
    call = Call(named[1], task, cpu, indent, parent, number, ns, seen="end")
    found.calls.append(call)
    if parent:
        parent.children.append(call)


def _late_interrupt(call: Call) -> None:
    """Give interrupts that no longer fit into a call to its caller."""
    if call.duration_ns is None or sum(c.known_ns for c in call.children) <= call.duration_ns:
        return
    late = [child for child in call.children if _INTERRUPTS.match(child.function)]
    call.children = [child for child in call.children if child not in late]
    if call.parent:
        call.parent.children += late

"""Running a command and seeing which self-tests run in it, in all its processes.

No privilege is needed. What cannot be seen into is named: a static program, one that runs with
more rights than its caller, one with another C library, a library that announces nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from excise.collect.selftest.gobuild import GoBuild, GoVerdict, judge, read_build
from excise.collect.selftest.native import FOLLOW, OBSERVE, helper
from excise.errors import HostError
from excise.units import counted

_NOT_FOUND: Final = 127
# SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV: what it would have done is not known.
_CRASHES: Final = frozenset(f"signal {number}" for number in (4, 6, 7, 8, 11))


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedTest:
    """One self-test that ran in a process of the command.

    Attributes:
        program: Path of the process's program.
        duration_ns: From announcement to result; None where no result was seen.
        phase: `Pass`, `Fail`, or `Unfinished`.
    """

    pid: int
    program: str
    library: str
    type: str
    description: str
    phase: str
    duration_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What was seen of a command.

    Attributes:
        ended: How the command ended: `0`, `1`, `signal 9`, ...
        programs: Programs that were executed, in order.
        tests: Self-tests that ran.
        modes: Libraries that said at the process's end that they are in FIPS mode.
        unseen: What could not be seen into, and why; one clause each.
        libraries: Cryptographic libraries that were loaded.
        switches: Variables that switch FIPS mode, as processes of the command had them.
    """

    ended: str
    programs: tuple[str, ...]
    tests: tuple[ObservedTest, ...]
    modes: tuple[str, ...]
    unseen: tuple[str, ...]
    libraries: tuple[str, ...]
    switches: tuple[str, ...] = ()


def observe(command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> Observation:
    """Run a command to its end and return what was seen of it.

    Its standard output goes to standard error: the caller's own answer must stay apart from it.

    Args:
        command: The command and its words.
        environment: Its whole environment; this process's by default.

    Raises:
        HostError: If it cannot be started or traced.
    """
    follow, shim = helper(FOLLOW), helper(OBSERVE)
    with tempfile.TemporaryDirectory(prefix="excise-observe-") as folder:
        log = Path(folder) / "log"
        log.touch(mode=0o622)
        variables = dict(os.environ if environment is None else environment)
        auditors = ":".join(filter(None, [str(shim), variables.get("LD_AUDIT")]))
        variables |= {"LD_AUDIT": auditors, "EXCISE_OBSERVE": str(log)}
        words = [str(follow), str(log), *command]
        try:
            done = subprocess.run(words, env=variables, stdout=sys.stderr, check=False, stdin=None)
        except OSError as error:
            raise HostError(f"could not be run: {error.strerror}", source=command[0]) from error
        text = log.read_text(errors="replace")
    if "exec\t" not in text:
        if done.returncode == _NOT_FOUND:
            raise HostError("not found or not executable", source=command[0])
        raise HostError(
            f"cannot be traced (exit {done.returncode})",
            source=command[0],
            hint="Another tracer holds it, or kernel.yama.ptrace_scope forbids it",
        )
    return read_observation(text)


def read_observation(text: str) -> Observation:
    """Return what the watched processes and their tracer wrote."""
    return _Reader().read(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class GoStart:
    """One start of a Go program, judged."""

    build: GoBuild
    verdict: GoVerdict


class _Reader:
    """Puts the lines of many processes, in the order they were written, into one observation."""

    def __init__(self) -> None:
        self.program: dict[int, str] = {}
        self.waiting: dict[int, str] = {}
        self.programs: list[str] = []
        self.tests: list[ObservedTest] = []
        self.open: dict[tuple[str, ...], list[int]] = {}
        self.loaded: dict[tuple[int, str], None] = {}
        self.armed: set[tuple[int, str]] = set()
        self.states: dict[tuple[int, str], str] = {}
        self.switches: dict[str, None] = {}
        self.go: dict[tuple[int, str], list[GoStart]] = {}
        self.unread = 0
        self.ended = "unknown"

    def read(self, text: str) -> Observation:
        for line in text.split("\n"):
            try:
                known = self._take(line.split("\t"))
            except ValueError:
                known = False
            self.unread += bool(line) and not known
        return Observation(
            ended=self.ended,
            programs=tuple(dict.fromkeys(self.programs)),
            tests=(*self.tests, *self._unfinished()),
            modes=tuple(self._modes()),
            unseen=tuple(dict.fromkeys(self._unseen())),
            libraries=tuple(dict.fromkeys([*(name for _, name in self.loaded), *self._idle_go()])),
            switches=tuple(self.switches),
        )

    def _take(self, fields: list[str]) -> bool:
        """Take one line; return whether it was one of those that are written."""
        match fields:
            case ["exec", pid, path]:
                self._executed(int(pid), path)
            case ["environment", pid, device, inode, godebug]:
                self._started_with(int(pid), (int(device), int(inode)), godebug)
            case ["hello", pid]:
                self.waiting.pop(int(pid), None)
            case ["switch", pid, setting]:
                if int(pid) in self.program:
                    self.switches[setting] = None
            case ["object", pid, name]:
                self.loaded[int(pid), name] = None
            case ["armed", pid, library]:
                self.armed.add((int(pid), library))
            case ["test", pid, library, kind, what, phase, at]:
                self._test(int(pid), (library, kind, what.strip()), phase, int(at))
            case ["state", pid, library, state]:
                self.states[int(pid), library] = state
            case ["exit", code]:
                self.ended = code
            case _:
                return False
        return True

    def _executed(self, pid: int, path: str) -> None:
        # The program before this one in the same process said hello, or never will.
        if pid in self.waiting:
            self.states[pid, self.waiting[pid]] = "replaced"
        self.program[pid] = path
        self.waiting[pid] = path
        self.programs.append(path)
        if (build := read_build(Path(path))) is not None:
            started = GoStart(build=build, verdict=judge(build, None))
            self.go.setdefault((pid, path), []).append(started)

    def _started_with(self, pid: int, file: tuple[int, int], godebug: str) -> None:
        """Judge a Go program again, now that its GODEBUG is known, if the path is its file."""
        path = self.program.get(pid, "")
        starts = self.go.get((pid, path))
        if starts and _is_file(path, file):
            build = starts[-1].build
            starts[-1] = GoStart(build=build, verdict=judge(build, godebug))
            if godebug and starts[-1].verdict.tests is not None:
                self.switches[f"GODEBUG={godebug}"] = None

    def _test(self, pid: int, name: tuple[str, str, str], phase: str, at: int) -> None:
        key = (str(pid), *name)
        if phase == "Start":
            self.open.setdefault(key, []).append(at)
            return
        starts = self.open.get(key)
        duration = at - starts.pop() if starts else None
        self.tests.append(self._observed(pid, name, phase, duration))

    def _unfinished(self) -> list[ObservedTest]:
        return [
            self._observed(int(pid), (library, kind, what), "Unfinished", None)
            for (pid, library, kind, what), starts in self.open.items()
            for _ in starts
        ]

    def _observed(
        self, pid: int, name: tuple[str, str, str], phase: str, duration_ns: int | None
    ) -> ObservedTest:
        library, kind, what = name
        return ObservedTest(
            pid=pid,
            program=self.program.get(pid, ""),
            library=library,
            type=kind,
            description=what,
            phase=phase,
            duration_ns=duration_ns,
        )

    def _modes(self) -> list[str]:
        go = [
            f"Go's module in {Path(path).name} ({each.verdict.why})"
            for (_, path), starts in self.go.items()
            for each in starts
            if each.verdict.tests
        ]
        return [
            *dict.fromkeys(go),
            *self._library_modes(),
        ]

    def _idle_go(self) -> list[str]:
        return [
            f"Go's module in {Path(path).name} ({each.verdict.why})"
            for (_, path), starts in self.go.items()
            for each in starts
            if each.build.module and each.verdict.tests is False
        ]

    def _library_modes(self) -> list[str]:
        return [
            f"{library} in {Path(self.program.get(pid, '?')).name}"
            for (pid, library), state in self.states.items()
            if state == "fips"
        ]

    def _unseen(self) -> list[str]:
        clauses = [
            f"{path}: static, privileged or of another C library"
            for pid, path in self.waiting.items()
            if not self._is_known_go(pid, path)
        ]
        clauses += [
            f"{path}: static, privileged or of another C library"
            for (pid, path), state in self.states.items()
            if state == "replaced" and not self._is_known_go(pid, path)
        ]
        clauses += [
            f"{library} in {self.program.get(pid, '?')}: announces no self-test"
            for (pid, library), state in self.states.items()
            if state == "unseen"
        ]
        if self.unread:
            clauses.append(
                f"{counted(self.unread, 'line')} of the observation itself cannot be read"
            )
        if self.ended in _CRASHES:
            clauses.append(f"the command itself: it crashed ({self.ended})")
        for pid, name in self.loaded:
            if reason := self._library_unseen(pid, name):
                clauses.append(f"{name} in {self.program.get(pid, '?')}: {reason}")
        clauses += [
            f"{path}: {each.verdict.why}"
            for (_, path), starts in self.go.items()
            for each in starts
            if each.verdict.tests is None
        ]
        return clauses

    def _is_known_go(self, pid: int, path: str) -> bool:
        """Return whether all that a program without a loader can run is Go's, and is judged."""
        starts = self.go.get((pid, path), [])
        return bool(starts) and all(
            each.build.own_code_only and each.verdict.tests is not None for each in starts
        )

    def _library_unseen(self, pid: int, name: str) -> str | None:
        if name.startswith("libfreebl"):
            return "NSS announces no self-test"
        if name.startswith("fips.so") and (pid, "openssl") not in self.armed:
            return "its provider was entered unseen"
        if name.startswith("libgcrypt") and (pid, "libgcrypt") not in self.armed:
            return "its log was not reached"
        if name.startswith("libgnutls") and (pid, "gnutls") not in self.states:
            return "it could not be asked for its FIPS mode, as the process did not end by exit"
        return None


def _is_file(path: str, file: tuple[int, int]) -> bool:
    try:
        found = Path(path).stat()
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == file

"""Instructions of a start by symbol and by object, where a library announces no self-test.

Valgrind's callgrind counts every instruction, also in the dynamic loader. It is used where it is
installed; nothing else depends on it. Source of the format: Callgrind Format Specification, version
1, in the manual of Valgrind.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

from excise.collect.selftest.libraries import LIBRARIES, Presence, Switch
from excise.collect.selftest.native import LIBRARY_START, helper
from excise.collect.selftest.openssl import clean_environment
from excise.collect.selftest.tree import OnStep, Tree, host_tree
from excise.errors import FormatError, HostError

# Names that libraries give to what runs their self-tests.
SELF_TEST: Final = re.compile(
    r"self_?test|HealthTest|powerup|power_up|startup_tests|fips_check|_kat_|_kat$|_post$|POST",
    re.IGNORECASE,
)
_NAME = re.compile(r"\((\d+)\)(?: (.*))?")
_SETTING = re.compile(r"(ob|fl|fi|fe|fn|cob|cfi|cfl|cfn|calls)=(.*)")
_COST = re.compile(r"(?:\+|-)?(?:\d+|0x[0-9a-fA-F]+|\*)((?: (?:\+|-)?(?:\d+|0x[0-9a-fA-F]+|\*))*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbol:
    """One function.

    Attributes:
        own: Instructions in itself.
        inclusive: Instructions in itself and in what it called; more than all where it recurses.
    """

    object: str
    name: str
    own: int
    inclusive: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What one process executed.

    Attributes:
        total: Instructions of the whole process.
        objects: Instructions by shared object, the most first; they sum to the total.
        self_tests: Functions that are named like self-tests, the dearest first.
    """

    library: str
    forced: bool
    total: int
    objects: Mapping[str, int]
    self_tests: tuple[Symbol, ...]


def present() -> bool:
    """Return whether valgrind is installed."""
    return shutil.which("valgrind") is not None


def profile_start(switch: Switch, *, forced: bool, tree: Tree | None = None) -> Profile:
    """Start a library under callgrind and return what was executed.

    Args:
        switch: The library.
        forced: Whether to force FIPS mode by its environment switch.
        tree: Where the library is; the host by default.

    Raises:
        HostError: If valgrind is absent, or the start fails under it.
    """
    if not present():
        raise HostError("valgrind is not installed", hint="apt install valgrind")
    more = dict(switch.environment) if forced else {}
    place = tree or host_tree()
    with tempfile.TemporaryDirectory(prefix="excise-callgrind-") as folder:
        out = Path(folder) / "out"
        words = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "-q"]
        done = subprocess.run(
            [*words, *place.start(helper(LIBRARY_START), switch.name)],
            env=clean_environment(place, **more),
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        if done.returncode or not out.is_file():
            said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise HostError(f"failed under callgrind: {said}", source=switch.name)
        symbols = list(read_callgrind(out.read_text(errors="replace")))
    objects: dict[str, int] = defaultdict(int)
    for symbol in symbols:
        objects[Path(symbol.object).name or "?"] += symbol.own
    tests = [symbol for symbol in symbols if SELF_TEST.search(symbol.name)]
    return Profile(
        library=switch.name,
        forced=forced,
        total=sum(objects.values()),
        objects=dict(sorted(objects.items(), key=lambda item: -item[1])),
        self_tests=tuple(sorted(tests, key=lambda each: -each.inclusive)),
    )


def profile_starts(found: Sequence[Presence], *, on_step: OnStep) -> list[Profile]:
    """Return what the start of each library that is here executes, as usual and forced.

    Args:
        found: Which libraries are here.
        on_step: Called with what is being done, starts done and starts in all.

    Raises:
        HostError: If a start fails under callgrind.
    """
    if not present():
        return []
    here = {each.library for each in found if each.state != "absent"}
    switches = [switch for switch in LIBRARIES if switch.name in here]
    starts = list(product(switches, (False, True)))
    profiles = []
    for done, (switch, forced) in enumerate(starts):
        on_step(f"counting {switch.name}", done, len(starts))
        profiles.append(profile_start(switch, forced=forced))
    return profiles


def read_callgrind(text: str) -> Iterator[Symbol]:
    """Yield the functions of a callgrind profile; the first event is taken.

    Raises:
        FormatError: If a line is none of the format's, or the parts do not sum to the summary.
    """
    reader = _Reader()
    for number, line in enumerate(text.splitlines(), start=1):
        reader.take(line, number)
    if reader.summary is not None and sum(reader.own.values()) != reader.summary:
        raise FormatError(
            f"its functions sum to {sum(reader.own.values())}, its summary says {reader.summary}",
            source="callgrind profile",
        )
    for key in dict.fromkeys([*reader.own, *reader.called]):
        own = reader.own[key]
        yield Symbol(object=key[0], name=key[1], own=own, inclusive=own + reader.called[key])


class _Reader:
    """State of one pass over a profile: names by number, and where costs belong."""

    def __init__(self) -> None:
        self.names: dict[tuple[str, str], str] = {}
        self.object = self.function = ""
        self.call_pending = False
        self.own: dict[tuple[str, str], int] = defaultdict(int)
        self.called: dict[tuple[str, str], int] = defaultdict(int)
        self.summary: int | None = None

    def take(self, line: str, number: int) -> None:
        line = line.strip()
        if setting := _SETTING.fullmatch(line):
            self._set(setting[1], setting[2])
        elif cost := _COST.fullmatch(line):
            self._add(cost[1].split(), number)
        elif line.startswith(("summary:", "totals:")):
            first = line.split()[1:2]
            if not first or not first[0].isdecimal():
                raise FormatError("has no number", line=number, source="callgrind profile")
            self.summary = int(first[0])
        elif line and not line.startswith("#") and not re.match(r"[a-zA-Z]+:", line):
            raise FormatError("is no line of the format", line=number, source="callgrind profile")

    def _set(self, key: str, value: str) -> None:
        if key == "ob":
            self.object = self._name("ob", value)
        elif key == "fn":
            self.function = self._name("fn", value)
        elif key == "cob":
            self._name("ob", value)
        elif key == "cfn":
            self._name("fn", value)
        elif key == "calls":
            self.call_pending = True

    def _name(self, kind: str, value: str) -> str:
        """Return a name that is given whole, given with its number, or given by number."""
        match = _NAME.fullmatch(value)
        if match is None:
            return value
        if match[2] is not None:
            self.names[kind, match[1]] = match[2]
        return self.names.get((kind, match[1]), f"({match[1]})")

    def _add(self, costs: list[str], number: int) -> None:
        if costs and not costs[0].isdecimal():
            raise FormatError("has a cost that is no number", line=number)
        cost = int(costs[0]) if costs else 0
        target = self.called if self.call_pending else self.own
        target[self.object, self.function] += cost
        self.call_pending = False

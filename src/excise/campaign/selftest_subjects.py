"""What `selftest bench` can start here: each library's start, and what a start consists of.

A part of a start is one run of the capture; its child events are the self-tests in it, as the
library announced them, and the steps before the one that runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from excise.capture.journal import Event
from excise.capture.manifest import Fact
from excise.capture.store import sha256_of
from excise.collect.selftest.golang import (
    BY_INIT_TRACE,
    GO_STEPS,
    GoProgram,
    go_tree,
    look_for_go,
    start_go,
)
from excise.collect.selftest.libraries import (
    BY_CALLBACK,
    LIBRARIES,
    WOLFSSL,
    Presence,
    Switch,
    look_for,
    start_library,
)
from excise.collect.selftest.measured import Measured, SelfTest, Step, Use
from excise.collect.selftest.openssl import LOAD_STEPS, OFF, ON, Provider, find_provider
from excise.collect.selftest.tree import OnStep, Tree, host_tree, make_tree
from excise.collect.selftest.wolfssl import (
    SELF_TEST_STEPS,
    look_for_wolfssl,
    start_steps,
    wolfssl_tree,
)
from excise.errors import HostError, UsageError
from excise.units import counted

LAYER: Final = "self-test"
STEP: Final = "step"
OPERATION: Final = "operation"
KNOWN: Final = ("openssl", *(each.name for each in LIBRARIES), "wolfssl", "go")
_GO_NOTES: Final = (
    "A start of Go is the median one of five processes without a trace, from execve to main.",
    "Of Go's self-tests at first use an upper bound is told, up to the arrival of the message.",
    "Go's pairwise tests of new keys are announced nowhere.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One run's worth of what a process measured."""

    task: str
    wall_ns: int
    start_ns: int
    events: Sequence[Event]
    ok: bool
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Something whose start is measured under several configurations.

    Attributes:
        name: Name of the task.
        version: Version of the library.
        method: How its self-tests are seen.
        measure: For each configuration, what starts it once and returns the parts.
        facts: Facts of the library that captures must agree in.
        notes: What a reader should know.
        raw: Files to keep, by name.
    """

    name: str
    library: str
    version: str
    method: str
    measure: Mapping[str, Callable[[], list[Part]]]
    facts: Sequence[Fact] = ()
    notes: Sequence[str] = ()
    raw: Mapping[str, bytes] = field(default_factory=dict)


def find_subjects(
    suites: Sequence[str],
    *,
    libraries: Sequence[str],
    folder: Path,
    use: bool,
    on_step: OnStep,
) -> tuple[list[Subject], list[Presence]]:
    """Return what can be measured on this host and in trees of Debian suites, and what was sought.

    Args:
        suites: Debian suites whose packages are measured too.
        libraries: Those to look for, of `KNOWN`; none for all.
        folder: Where each OpenSSL's configuration is written.
        use: Whether to run one operation of each kind twice after each load of OpenSSL.
        on_step: Called with what is being done, steps done and steps in all.

    Raises:
        UsageError: A library is unknown.
        HostError: There is no C compiler, or no library with self-tests that can be measured.
    """
    if unknown := [name for name in libraries if name not in KNOWN]:
        raise UsageError(f"no library is called {unknown[0]!r}", hint=f"Known: {', '.join(KNOWN)}")
    wanted = libraries or KNOWN
    found: list[tuple[Presence, Subject | None]] = []
    if "openssl" in wanted:
        trees = [host_tree(), *(make_tree(suite, on_step=on_step) for suite in suites)]
        found += [_find_openssl(place, folder / place.suite, use=use) for place in trees]
    found += [_find_library(switch) for switch in LIBRARIES if switch.name in wanted]
    for suite in [None, *suites]:
        if "wolfssl" in wanted:
            found.append(_find_wolfssl(suite, on_step))
        if "go" in wanted:
            found.append(_find_go(suite, on_step))
    present = [presence for presence, _ in found]
    subjects = [subject for _, subject in found if subject is not None]
    if not subjects:
        reasons = "; ".join(f"{each.library}: {each.note}" for each in present)
        raise HostError(
            f"no library with self-tests that can be measured is here ({reasons})",
            hint="Try --tree trixie, which brings OpenSSL's FIPS provider",
        )
    return subjects, present


def _find_openssl(place: Tree, folder: Path, *, use: bool) -> tuple[Presence, Subject | None]:
    name = "openssl" if place.loader is None else f"openssl of {place.suite}"
    folder.mkdir()
    try:
        provider = find_provider(place, folder=folder)
    except HostError as error:
        return Presence(library=name, state="absent", note=f"{error.reason}."), None
    presence = Presence(
        library=name, state="measured", version=provider.version, method=BY_CALLBACK
    )
    return presence, openssl_subject(provider, use=use)


def _find_library(switch: Switch) -> tuple[Presence, Subject | None]:
    found = look_for(switch)
    measured = found.state == "measured"
    return found, library_subject(switch, version=found.version) if measured else None


def _find_wolfssl(suite: str | None, on_step: OnStep) -> tuple[Presence, Subject | None]:
    try:
        place = wolfssl_tree(suite, on_step=on_step) if suite else None
    except HostError as error:
        return Presence(library=f"wolfssl of {suite}", state="absent", note=error.reason), None
    found = look_for_wolfssl(place)
    return found, None if found.state == "absent" else wolfssl_subject(found, tree=place)


def _find_go(suite: str | None, on_step: OnStep) -> tuple[Presence, Subject | None]:
    try:
        place = go_tree(suite, on_step=on_step) if suite else None
    except HostError as error:
        return Presence(library=f"go of {suite}", state="absent", note=error.reason), None
    found, program = look_for_go(place)
    return found, None if program is None else go_subject(program)


def openssl_subject(provider: Provider, *, use: bool = True) -> Subject:
    """Return OpenSSL's FIPS provider as a subject.

    Args:
        provider: A provider that was found.
        use: Whether to run one operation of each kind twice after each load.
    """
    measure = {
        variant.name: partial(_load, provider, variant.name, use) for variant in provider.variants
    }
    facts = [
        _fact("library.openssl.version", provider.version),
        _fact("library.openssl.fips.sha256", sha256_of(provider.module)),
    ]
    notes = [f"OpenSSL {provider.version}: children of a load by {BY_CALLBACK}."]
    notes += provider.notes
    raw = {}
    for variant in provider.variants:
        path = variant.command_configuration
        if path is not None:
            raw[path.name] = path.read_bytes()
            keys = ", ".join(variant.keys)
            facts.append(Fact(name=f"fipsmodule.cnf of {variant.name}", value=keys))
    return Subject(
        name=f"load provider, {provider.version}",
        library="openssl",
        version=provider.version,
        method=BY_CALLBACK,
        measure=measure,
        facts=facts,
        notes=notes,
        raw=raw,
    )


def library_subject(switch: Switch, *, version: str) -> Subject:
    """Return a library with an environment switch as a subject."""
    task = f"start {switch.name}, {version}"
    return Subject(
        name=task,
        library=switch.name,
        version=version,
        method=switch.method,
        measure={
            OFF: partial(_start, switch, task, forced=False),
            ON: partial(_start, switch, task, forced=True),
        },
        facts=[_fact(f"library.{switch.name}.version", version)],
        notes=[f"{switch.name} {version}: children of a start by {switch.method}."],
    )


def go_subject(program: GoProgram) -> Subject:
    """Return a Go program with the FIPS 140 module off and on as a subject."""
    version = f"go {program.version}"
    return Subject(
        name=f"start {version}",
        library="Go's FIPS 140 module,",
        version=program.version,
        method=BY_INIT_TRACE,
        measure={
            OFF: partial(_start_go, program, version, fips=False),
            ON: partial(_start_go, program, version, fips=True),
        },
        facts=[_fact("library.go.version", program.version)],
        notes=[f"{version}: children of a start by {BY_INIT_TRACE}.", *_GO_NOTES],
    )


def wolfssl_subject(found: Presence, *, tree: Tree | None = None) -> Subject:
    """Return wolfSSL as a subject with one configuration: what it tests is decided by its build.

    Args:
        found: What was found of it.
        tree: Where it is; the host by default.
    """
    task = f"start wolfssl, {found.version}"
    return Subject(
        name=task,
        library="wolfssl",
        version=found.version,
        method=WOLFSSL.method,
        measure={OFF: partial(_start_wolfssl, task, tree)},
        facts=[_fact("library.wolfssl.version", found.version)],
        notes=[f"wolfssl {found.version}: {found.note}"],
    )


def _load(provider: Provider, variant_name: str, use: bool) -> list[Part]:
    variant = next(each for each in provider.variants if each.name == variant_name)
    fips = variant.name != OFF
    found = provider.load(variant, again=fips, use=use)
    task = f"load provider, {provider.version}"
    parts = [_start_part(found, task, LOAD_STEPS)]
    if fips:
        again = _stage_part(found, f"run self-tests again, {provider.version}", "again")
        parts.append(again)
    for round_, word in ((1, "first"), (2, "second")):
        uses = [each for each in found.uses if each.round == round_ and each.result == "ok"]
        if uses:
            parts.append(_use_part(found, uses, f"{word} use, {provider.version}", round_))
    return parts


def _start(switch: Switch, task: str, *, forced: bool) -> list[Part]:
    found = start_library(switch, forced=forced)
    return [_start_part(found, task, switch.start)]


def _start_go(program: GoProgram, version: str, *, fips: bool) -> list[Part]:
    found = start_go(program, fips=fips)
    steps = [found.plain.step(name) for name in GO_STEPS]
    other_ns = sum(each.duration_ns for each in found.inits if not each.tests)
    events = _step_events(steps)
    events.append(
        Event(sequence=0, layer=STEP, event="init of packages without tests", value=other_ns)
    )
    events += [
        Event(sequence=0, layer=LAYER, event=", ".join(each.tests), value=each.duration_ns)
        for each in found.inits
        if each.tests
    ]
    wall_ns = steps[-1].end_ns - steps[0].start_ns
    task = f"start {version}"
    parts = [Part(task=task, wall_ns=wall_ns, start_ns=steps[0].start_ns, events=events, ok=True)]
    for round_, word in ((1, "first"), (2, "second")):
        uses = [each for each in found.traced.uses if each.round == round_ and each.result == "ok"]
        if uses:
            parts.append(_use_part(found.traced, uses, f"{word} use, {version}", round_))
    return parts


def _start_wolfssl(task: str, tree: Tree | None) -> list[Part]:
    found = start_library(WOLFSSL, forced=False, tree=tree)
    here = [each.name for each in found.steps if each.name in SELF_TEST_STEPS]
    version = task.rpartition(", ")[2]
    parts = [_start_part(found, task, start_steps(found))]
    return parts + [
        _stage_part(found, f"run self-tests again: {name}, wolfssl {version}", name)
        for name in here
    ]


def _start_part(found: Measured, task: str, names: Sequence[str]) -> Part:
    steps = [found.step(name) for name in names]
    tests = [test for test in found.tests if test.stage == "load"]
    wall_ns = sum(step.end_ns - step.start_ns for step in steps)
    events = [_test_event(test) for test in tests]
    events += _step_events(steps)
    if own := found.own_ns.get("load"):
        events.append(Event(sequence=0, layer="probe", event="self-test callback", value=own))
    return Part(
        task=task,
        wall_ns=wall_ns,
        start_ns=steps[0].start_ns,
        events=events,
        ok=all(step.ok for step in steps) and all(test.phase == "Pass" for test in tests),
        error=_failure(steps, tests, found.lost),
    )


def _step_events(steps: Sequence[Step]) -> list[Event]:
    """Return the steps before the one that runs the tests, as children of the start."""
    return [
        Event(
            sequence=0,
            layer=STEP,
            event=step.name,
            start_ns=step.start_ns,
            value=step.end_ns - step.start_ns,
        )
        for step in steps[:-1]
    ]


def _stage_part(found: Measured, task: str, name: str) -> Part:
    step = found.step(name)
    tests = [test for test in found.tests if test.stage == name]
    events = [_test_event(test) for test in tests]
    if own := found.own_ns.get(name):
        events.append(Event(sequence=0, layer="probe", event="self-test callback", value=own))
    return Part(
        task=task,
        wall_ns=step.end_ns - step.start_ns,
        start_ns=step.start_ns,
        events=events,
        ok=step.ok,
        error=None if step.ok else "the provider's self-tests failed",
    )


def _use_part(found: Measured, uses: Sequence[Use], task: str, round_: int) -> Part:
    events = []
    for use in uses:
        events.append(
            Event(
                sequence=0,
                layer=OPERATION,
                event=use.name,
                start_ns=use.start_ns,
                value=use.end_ns - use.start_ns,
            )
        )
        events.extend(
            _test_event(test, parent=f"{OPERATION}|{use.name}")
            for test in found.tests
            if test.stage == use.name and use.start_ns <= test.start_ns < use.end_ns
        )
    absent = [each.name for each in found.uses if each.round == round_ and each.result != "ok"]
    return Part(
        task=task,
        wall_ns=sum(use.end_ns - use.start_ns for use in uses),
        start_ns=uses[0].start_ns,
        events=events,
        ok=True,
        error=f"not done: {', '.join(absent)}" if absent else None,
    )


def _test_event(test: SelfTest, *, parent: str | None = None) -> Event:
    return Event(
        sequence=0,
        layer=LAYER,
        event=test.name,
        parent=parent,
        start_ns=test.start_ns,
        value=test.end_ns - test.start_ns,
    )


def _failure(steps: Sequence[Step], tests: Sequence[SelfTest], lost: int) -> str | None:
    said = [f"step {step.name} failed" for step in steps if not step.ok]
    said += [f"{test.name}: {test.phase}" for test in tests if test.phase != "Pass"]
    if lost:
        said.append(f"{counted(lost, 'test')} did not fit the helper")
    return "; ".join(said) or None


def _fact(name: str, value: str) -> Fact:
    return Fact(name=name, value=value, must_agree=True)

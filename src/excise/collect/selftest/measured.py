"""What a native helper measured in one process: steps, self-tests, uses."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from excise.errors import FormatError, HostError

TIMEOUT_S = 300
ABSENT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """One self-test, from its announcement to its result.

    Attributes:
        stage: `load`, `again` (the provider's tests a second time), or the operation it ran in.
        type: The library's word for its kind, such as `KAT_Signature`.
        description: The library's word for what is tested, such as `SLH-DSA`.
        start_ns: On CLOCK_MONOTONIC_RAW.
        end_ns: On the same clock.
        phase: `Pass`, `Fail`, or `Unfinished` where no end was announced.
    """

    stage: str
    type: str
    description: str
    start_ns: int
    end_ns: int
    phase: str

    @property
    def name(self) -> str:
        """Return type and description: the name of the event."""
        return f"{self.type} {self.description}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the start: `configuration`, `provider`, `dlopen`, ..."""

    name: str
    start_ns: int
    end_ns: int
    ok: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One operation after the start, in its first or second round.

    Attributes:
        result: `ok`, `failed`, or `absent` where the library has no such algorithm.
    """

    name: str
    round: int
    start_ns: int
    end_ns: int
    result: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Everything one process measured.

    Attributes:
        version: What the library says of itself.
        own_ns: What the callback itself took outside the tests, by stage.
        fips: Whether the library says that it is in FIPS mode; None where it does not say.
        lost: Tests or uses that did not fit the helper's memory.
        exports: Functions that a FIPS build has, and whether this library exports them.
    """

    version: str
    steps: tuple[Step, ...]
    tests: tuple[SelfTest, ...]
    uses: tuple[Use, ...] = ()
    own_ns: Mapping[str, int]
    fips: bool | None = None
    lost: int = 0
    exports: Mapping[str, bool] = field(default_factory=dict)

    def step(self, name: str) -> Step:
        """Return the step of that name.

        Raises:
            FormatError: If the helper did not make it.
        """
        for step in self.steps:
            if step.name == name:
                return step
        raise FormatError(f"the helper printed no step {name!r}", source="self-test helper")


def measure(command: Sequence[str], *, environment: Mapping[str, str]) -> Measured:
    """Run a helper once and return what it measured.

    Args:
        command: The helper and its words.
        environment: The whole environment of the process.

    Raises:
        HostError: If the library is not there, or the helper fails.
        FormatError: If its output is not what it prints.
    """
    return read_measured(run_helper(command, environment=environment).stdout)


def run_helper(
    command: Sequence[str], *, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a helper once and return all that it printed.

    Raises:
        HostError: If the library is not there, or the helper fails.
    """
    try:
        done = subprocess.run(
            list(command),
            env=dict(environment),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"could not be run: {error}", source=command[0]) from error
    if done.returncode == ABSENT:
        said = done.stderr.strip()
        raise HostError("the library is not on this host" + (f": {said}" if said else ""))
    if not done.stdout:
        said = done.stderr.strip() or f"exit code {done.returncode}"
        raise HostError(f"the self-test helper failed: {said}", source=command[0])
    return done


def read_measured(text: str) -> Measured:
    """Return what a helper printed.

    Raises:
        FormatError: Naming the line that is not one of a helper.
    """
    version, fips, lost = "", None, None
    steps: list[Step] = []
    tests: list[SelfTest] = []
    uses: list[Use] = []
    own: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        kind, *fields = line.split("\t")
        try:
            match kind, fields:
                case "version", [version]:
                    pass
                case "step", [name, start, end, result]:
                    steps.append(_step(name, start, end, result))
                case "test", [stage, kind_, description, start, end, phase]:
                    tests.append(_test(stage, kind_, description, start, end, phase))
                case "use", [name, round_, start, end, result]:
                    uses.append(_use(name, round_, start, end, result))
                case "probe", [stage, _, nanoseconds]:
                    own[stage] = int(nanoseconds)
                case "fips", [state]:
                    fips = {"0": False, "1": True, "unknown": None}[state]
                case "lost", [count]:
                    lost = int(count)
                case ("clock", [_, _]) | ("symbol", [_, "0" | "1"]):
                    pass
                case _:
                    raise FormatError("is not a line of the helper", line=number)
        except (ValueError, KeyError) as error:
            raise FormatError(f"has a field that is wrong: {error}", line=number) from error
    if lost is None:
        raise FormatError("the output ends before its last line", source="self-test helper")
    return Measured(
        version=version,
        steps=tuple(steps),
        tests=tuple(tests),
        uses=tuple(uses),
        own_ns=own,
        fips=fips,
        lost=lost,
        exports=_exports(text),
    )


def _exports(text: str) -> dict[str, bool]:
    lines = (line.split("\t") for line in text.splitlines() if line.startswith("symbol\t"))
    return {name: state == "1" for _, name, state in lines}


def _step(name: str, start: str, end: str, result: str) -> Step:
    return Step(name=name, start_ns=int(start), end_ns=int(end), ok=result == "ok")


def _test(stage: str, kind: str, what: str, start: str, end: str, phase: str) -> SelfTest:
    return SelfTest(
        stage=stage,
        type=kind,
        description=what.strip(),
        start_ns=int(start),
        end_ns=int(end) or int(start),
        phase=phase,
    )


def _use(name: str, round_: str, start: str, end: str, result: str) -> Use:
    return Use(name=name, round=int(round_), start_ns=int(start), end_ns=int(end), result=result)

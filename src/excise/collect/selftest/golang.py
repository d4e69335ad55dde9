"""Go's FIPS 140 module: a program built with a Go toolchain, started with the module off and on.

The module is linked into each program. Where `GODEBUG=fips140=on` (or the program's own default)
says so, the initialisation of package `crypto/internal/fips140/check` computes an HMAC over the
module's code and data, and algorithm self-tests (CASTs) run in the initialisation of other packages
or at the first use. Sources: `cast.go`, `fips140.go` and `check/check.go` below
`$GOROOT/src/crypto/internal/fips140`, Go 1.24; the Go runtime's documentation for `inittrace`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

from excise.collect.selftest.libraries import Presence
from excise.collect.selftest.measured import Measured, read_measured, run_helper
from excise.collect.selftest.tree import OnStep, Tree, cache_folder, host_tree, make_tree
from excise.errors import FormatError, HostError

NAME: Final = "go fips140"
FIRST_VERSION: Final = (1, 24)
# libc6 only because a tree has a loader; Go's programs are static.
GO_PACKAGES: Final = ("golang-go", "libc6")
BY_INIT_TRACE: Final = (
    "the runtime's trace of package initialisation (GODEBUG=inittrace=1, two digits of each time) "
    "in a second process, named by the module's own messages (fips140=debug)"
)
# A start takes about a millisecond, less than what else runs on a machine may take from it.
STARTS: Final = 5
GO_STEPS: Final = ("exec and the runtime's start", "init of all packages")
INTEGRITY: Final = "Module_Integrity HMAC-SHA2-256 over code and data"
_SOURCES: Final = ("go.mod", "main.go", "ahead/ahead.go", "ahead/ahead.s")
_PASSED: Final = "FIPS 140-3 self-test passed: "
_VERIFIED: Final = "fips140: verified code+data"
_INIT = re.compile(r"init (\S+) @[\d.]+ ms, ([\d.]+) ms clock, \d+ bytes, \d+ allocs")
_VERSION = re.compile(r"go version go((\d+)\.(\d+)\S*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageInit:
    """Initialisation of one package at the start of a Go program.

    Attributes:
        package: Import path.
        duration_ns: Its own time, as the runtime prints it: two significant digits.
        tests: Self-tests that passed within it.
    """

    package: str
    duration_ns: int
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GoProgram:
    """A program that was built to be measured.

    Attributes:
        path: Its file.
        version: Version of the toolchain, such as `1.24.4`.
        place: Where the toolchain is: `host`, or the suite of a tree.
    """

    path: Path
    version: str
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GoStart:
    """One start, measured in two processes: undisturbed, and with the runtime's trace.

    Attributes:
        plain: Steps of the undisturbed start: the median one of five.
        traced: Operations after the start, and the self-tests in them, of the traced process.
        inits: Package initialisations of the traced process.
    """

    plain: Measured
    traced: Measured
    inits: tuple[PackageInit, ...]


def go_tree(suite: str, *, on_step: OnStep | None = None) -> Tree:
    """Return a tree with the Go toolchain of a Debian suite.

    Raises:
        HostError: If it cannot be made.
    """
    return make_tree(suite, packages=GO_PACKAGES, on_step=on_step)


def find_go(tree: Tree | None = None) -> GoProgram:
    """Return the program to measure, built at its first use by the toolchain that is there.

    Args:
        tree: A tree with a Go toolchain; the host by default.

    Raises:
        HostError: If there is no toolchain, it is older than the module, or the build fails.
    """
    place = tree or host_tree()
    compiler = _compiler(place)
    version = _version(compiler, _environment(compiler, place))
    sources = resources.files("excise.collect.selftest") / "native" / "go_start"
    texts = {name: sources.joinpath(name).read_bytes() for name in _SOURCES}
    key = hashlib.sha256(b"\0".join([version.encode(), str(place.root).encode(), *texts.values()]))
    path = cache_folder() / "native" / f"go_start-{key.hexdigest()[:16]}"
    if not path.is_file():
        path.parent.mkdir(exist_ok=True)
        _build(compiler, place, texts, path)
    return GoProgram(path=path, version=version, place=place.suite)


def start_go(program: GoProgram, *, fips: bool) -> GoStart:
    """Start the program with the module off or on, undisturbed and traced.

    Raises:
        HostError: If it fails.
        FormatError: If its output, or the runtime's trace, is not what they print.
    """
    setting = f"fips140={'on' if fips else 'off'}"
    plain = [read_measured(_run(program, setting).stdout) for _ in range(STARTS)]
    traced = _run(program, f"fips140={'debug' if fips else 'off'},inittrace=1")
    found = GoStart(
        plain=sorted(plain, key=whole_ns)[STARTS // 2],
        traced=read_measured(traced.stdout),
        inits=read_init_trace(traced.stderr),
    )
    if {found.plain.fips, found.traced.fips} != {fips}:
        raise HostError("GODEBUG=fips140 had no effect", source=str(program.path))
    return found


def whole_ns(start: Measured) -> int:
    """Return the time from execve to main."""
    return start.step(GO_STEPS[-1]).end_ns - start.step(GO_STEPS[0]).start_ns


def read_init_trace(text: str) -> tuple[PackageInit, ...]:
    """Return the package initialisations that a Go runtime printed, with the tests in each.

    Raises:
        FormatError: If a line is no line of the runtime or the module, or none is there.
    """
    found: list[PackageInit] = []
    tests: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith(_PASSED):
            tests.append(f"CAST {line.removeprefix(_PASSED)}")
        elif line == _VERIFIED:
            tests.append(INTEGRITY)
        elif match := _INIT.fullmatch(line):
            nanoseconds = round(float(match[2]) * 1e6)
            found.append(PackageInit(package=match[1], duration_ns=nanoseconds, tests=tuple(tests)))
            tests = []
        else:
            raise FormatError("is no line of the Go runtime's trace", line=number)
    if not found or tests:
        raise FormatError("the trace of package initialisation ends early", source="Go runtime")
    return tuple(found)


def look_for_go(tree: Tree | None = None) -> tuple[Presence, GoProgram | None]:
    """Return whether Go's module is here, and the program to measure it with."""
    name = NAME if tree is None else f"{NAME} of {tree.suite}"
    try:
        program = find_go(tree)
    except HostError as error:
        return Presence(library=name, state="absent", note=f"{error.reason}."), None
    note = "Forced by GODEBUG=fips140=on. callgrind is not used: valgrind 3.19 crashes in Go 1.24."
    present = Presence(
        library=name, state="measured", version=program.version, method=BY_INIT_TRACE, note=note
    )
    return present, program


def _run(program: GoProgram, setting: str) -> subprocess.CompletedProcess[str]:
    return run_helper([str(program.path), setting], environment={"PATH": os.defpath})


def _compiler(place: Tree) -> Path:
    if place.loader is None:
        found = shutil.which("go")
        if found is None:
            raise HostError("there is no Go toolchain here")
        return Path(found).resolve()
    path = place.root / "usr" / "lib" / "go" / "bin" / "go"
    if not path.is_file():
        raise HostError("there is no Go toolchain", source=f"the {place.suite} tree")
    return path.resolve()


def _environment(compiler: Path, place: Tree) -> dict[str, str]:
    """Return an environment in which nothing of the caller decides what is built."""
    fixed = {
        "PATH": os.environ.get("PATH", os.defpath),
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
        "GOENV": "off",
        "GOPROXY": "off",
        "GOFIPS140": "off",
        "GOTELEMETRY": "off",
    }
    return fixed | ({"GOROOT": str(compiler.parents[1])} if place.loader is not None else {})


def _version(compiler: Path, environment: Mapping[str, str]) -> str:
    done = _go(compiler, "version", environment=environment)
    match = _VERSION.match(done)
    if match is None:
        raise HostError(f"does not tell its version: {done.strip()!r}", source=str(compiler))
    if (int(match[2]), int(match[3])) < FIRST_VERSION:
        raise HostError(f"Go {match[1]} has no FIPS 140 module: 1.24 is the first that has")
    return match[1]


def _build(compiler: Path, place: Tree, texts: Mapping[str, bytes], path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".go-", dir=path.parent) as name:
        folder = Path(name)
        for each, text in texts.items():
            file = folder / "source" / each
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text)
        environment = _environment(compiler, place) | {
            "GOCACHE": str(folder / "cache"),
            "GOPATH": str(folder / "path"),
        }
        built = folder / "built"
        _go(
            compiler,
            *("build", "-trimpath", "-o", str(built), "."),
            environment=environment,
            folder=folder / "source",
        )
        built.rename(path)


def _go(
    compiler: Path, *words: str, environment: Mapping[str, str], folder: Path | None = None
) -> str:
    # Its own caches need a home; nothing is written there for `version`.
    variables = {"HOME": str(folder or cache_folder()), **environment}
    try:
        done = subprocess.run(
            [str(compiler), *words],
            env=variables,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"could not be run: {error}", source=str(compiler)) from error
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise HostError(f"go {words[0]} failed: {said}", source=str(compiler))
    return done.stdout

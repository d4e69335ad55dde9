"""wolfSSL: a FIPS build is told by the functions it exports, any other build by what it executes.

The validated module is a build of its own (fips.h: `wolfCrypt_GetStatus_fips`,
`wolfCrypt_IntegrityTest_fips`), whose constructor runs the integrity test. Distributions ship a
build without it. What that one runs at its start is shown twice, by its dynamic symbols and by the
instructions it executes: the initialisation of its random generator, which `wolfSSL_Init` makes,
holds a known-answer test in every build (random.c).
"""

from __future__ import annotations

from statistics import median
from typing import Final

from excise.collect.selftest import callgrind
from excise.collect.selftest.libraries import BY_STEPS, WOLFSSL, Presence, start_library
from excise.collect.selftest.measured import Measured
from excise.collect.selftest.native import LIBRARY_START, helper
from excise.collect.selftest.tree import OnStep, Tree, host_tree, make_tree
from excise.errors import HostError

# Brings the library of every suite, whose own package is named by its version.
WOLFSSL_PACKAGES: Final = ("libwolfssl-dev",)
STARTS: Final = 9
SELF_TEST_STEPS: Final = ("wolfCrypt_IntegrityTest_fips", "wc_RunAllCast_fips")


def wolfssl_tree(suite: str, *, on_step: OnStep | None = None) -> Tree:
    """Return a tree with wolfSSL of a Debian suite.

    Raises:
        HostError: If it cannot be made.
    """
    return make_tree(suite, packages=WOLFSSL_PACKAGES, on_step=on_step)


def look_for_wolfssl(tree: Tree | None = None, *, count: bool = True) -> Presence:
    """Return whether wolfSSL is here, and whether its build has self-tests.

    Args:
        tree: Where it is; the host by default.
        count: Whether to count the instructions of a start where valgrind is installed.

    Raises:
        HostError: If there is no C compiler for the helper.
    """
    name = "wolfssl" if tree is None else f"wolfssl of {tree.suite}"
    helper(LIBRARY_START)
    try:
        starts = [start_library(WOLFSSL, forced=False, tree=tree) for _ in range(STARTS)]
    except HostError as error:
        return Presence(library=name, state="absent", note=f"{error.reason}.")
    first = starts[0]
    if first.fips:
        note = "A FIPS build: its constructor runs the integrity test at every load."
        return Presence(
            library=name, state="measured", version=first.version, method=BY_STEPS, note=note
        )
    return Presence(
        library=name,
        state="present",
        version=first.version,
        note=_without_fips(starts, tree or host_tree(), count),
    )


def _without_fips(starts: list[Measured], place: Tree, count: bool) -> str:
    """Return the finding on a build without FIPS, with what shows it."""
    exports = starts[0].exports
    if any(exports.values()):
        there = ", ".join(name for name, present in exports.items() if present)
        return f"Present; no FIPS status, yet it exports {there}: what it runs is not known."
    own, tests = _executed(place) if count and callgrind.present() else (None, ())
    ran = ", ".join(each.name for each in tests)
    text = "Present, built without FIPS: it runs no self-test at start"
    if ran:
        text += f" but {ran}, the known-answer test of its random generator, though FIPS is off"
    elif own is None:
        text += " that belongs to FIPS (what else it runs was not counted)"
    took = {
        step: median(_took_ns(each, step) for each in starts) / 1e3
        for step in start_steps(starts[0])
    }
    text += f". It exports none of {', '.join(exports)}; "
    text += ", ".join(f"{step} takes {each:.1f} µs" for step, each in took.items())
    text += f" (medians of {len(starts)})"
    if own is not None:
        text += f"; its own code executes {own:,} instructions in all of them (callgrind)"
    for each in tests:
        text += f", {each.name} {each.inclusive:,} with what it calls"
    return f"{text}."


def _executed(place: Tree) -> tuple[int, tuple[callgrind.Symbol, ...]]:
    """Return the instructions of the library's own code in a start, and its dearest self-test."""
    found = callgrind.profile_start(WOLFSSL, forced=False, tree=place)
    own = sum(each for name, each in found.objects.items() if name.startswith("libwolfssl"))
    return own, found.self_tests[:1]  # others are called by it


def start_steps(found: Measured) -> list[str]:
    """Return the steps of the start that this build has: one of cryptography alone has no TLS."""
    there = {each.name for each in found.steps}
    return [name for name in WOLFSSL.start if name in there]


def _took_ns(found: Measured, name: str) -> int:
    step = found.step(name)
    return step.end_ns - step.start_ns

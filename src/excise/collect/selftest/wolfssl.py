"""wolfSSL: a FIPS build is told by the functions it exports, any other build by what it executes.

The validated module is a build of its own (fips.h: `wolfCrypt_GetStatus_fips`,
`wolfCrypt_IntegrityTest_fips`), whose constructor runs the integrity test. Distributions ship a
build without it; that its start runs no self-test is shown twice, by its dynamic symbols and by the
instructions it executes.
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
    text = "Present, built without FIPS: it runs no self-test at start. It exports none of "
    text += f"{', '.join(exports)}; "
    load, init = (median(_took_ns(each, step) for each in starts) / 1e3 for step in WOLFSSL.start)
    text += f"dlopen takes {load:.0f} µs, wolfCrypt_Init {init:.1f} µs (medians of {len(starts)})"
    if count and callgrind.present():
        found = callgrind.profile_start(WOLFSSL, forced=False, tree=place)
        own = sum(each for name, each in found.objects.items() if name.startswith("libwolfssl"))
        text += f"; its own code executes {own:,} instructions in both (callgrind)"
        if found.self_tests:
            text += f", though {found.self_tests[0].name} is among them"
    return text + "."


def _took_ns(found: Measured, name: str) -> int:
    step = found.step(name)
    return step.end_ns - step.start_ns

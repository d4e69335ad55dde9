"""The kernel's own self-tests: guests that boot without them, as usual, and with `fips=1`.

Instructions are counted (TCG, icount), so that one boot of each is enough: boots of the same state
differ by less than a hundredth, from what runs beside the start of the first process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from excise.collect.selftest.kernel import KernelTests, kernel_tests
from excise.collect.selftest.tree import OnStep
from excise.lab import Machine, Plan, preset, run_guest
from excise.lab.plan import Step

# State, and the words of the command line that make it; the last one of a parameter counts.
STATES: Final = (
    ("no self-tests", "cryptomgr.notests=1 fips=0"),
    ("as usual", "cryptomgr.notests=0 fips=0"),
    ("fips=1", "cryptomgr.notests=0 fips=1"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelBoot:
    """One boot of a kernel.

    Attributes:
        release: The kernel's release.
        state: One of `STATES`.
        init_instructions: Instructions from power-on to the first process.
        setup_instructions: Instructions from there until the guest is set up; self-tests that run
            beside it are among them.
        tests: What the kernel told of its self-tests.
        dmesg: Its log.
    """

    release: str
    state: str
    init_instructions: int
    setup_instructions: int
    tests: KernelTests
    dmesg: bytes


def boot_kernels(series: str, *, on_step: OnStep | None = None) -> list[KernelBoot]:
    """Boot a kernel in each state and return what it did.

    Args:
        series: Kernel series (`6.12`), package name, or path, as the lab takes it.
        on_step: Called with what is being done, boots done and boots in all.

    Raises:
        HostError: If the lab cannot boot it.
    """
    plan = Plan(
        steps=(
            Step(task="crypto", command=("cat", "/proc/crypto")),
            Step(task="fips", command=("cat", "/proc/sys/crypto/fips_enabled"), must_work=False),
        )
    )
    boots = []
    for done, (state, words) in enumerate(STATES):
        if on_step is not None:
            on_step(f"booting {series}, {state}", done, len(STATES))
        machine = Machine(kernel=series, mode="count", cmdline=words)
        result = run_guest(machine, preset=preset("none"), plan=plan)
        crypto, fips = result.steps
        init = result.marks_ns["init"]
        boots.append(
            KernelBoot(
                release=result.kernel.release,
                state=state,
                init_instructions=init,
                setup_instructions=result.marks_ns["settle"] - init,
                tests=kernel_tests(
                    crypto=crypto.stdout.decode(errors="replace"),
                    log=result.dmesg.decode(errors="replace"),
                    fips=fips.stdout.decode(errors="replace") if fips.exit_code == 0 else None,
                ),
                dmesg=result.dmesg,
            )
        )
    return boots

"""What counted loads say: instructions in self-tests, by algorithm, and the remainder."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from excise.collect.selftest.emulate import CountedLoad
from excise.collect.selftest.openssl import LOAD_STEPS
from excise.cost.selftest import family_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedCost:
    """One load of a provider, in instructions.

    Attributes:
        total: Instructions of configuration and load.
        tests: Self-tests at the load.
        in_tests: Instructions in them.
        families: Instructions by algorithm family, the most first.
    """

    machine: str
    version: str
    configuration: str
    total: int
    tests: int
    in_tests: int
    families: Mapping[str, int]

    @property
    def remainder_share(self) -> float:
        """Return the share of the load that no self-test explains."""
        return 1.0 - self.in_tests / self.total


def counted_costs(loads: Sequence[CountedLoad]) -> list[CountedCost]:
    """Return the cost of each load."""
    found = []
    for load in loads:
        steps = [load.measured.step(name) for name in LOAD_STEPS]
        tests = [test for test in load.measured.tests if test.stage == "load"]
        families: dict[str, int] = defaultdict(int)
        for test in tests:
            families[family_of(test.name)] += test.end_ns - test.start_ns
        found.append(
            CountedCost(
                machine=load.machine,
                version=load.version,
                configuration=load.configuration,
                total=sum(step.end_ns - step.start_ns for step in steps),
                tests=len(tests),
                in_tests=sum(families.values()),
                families=dict(sorted(families.items(), key=lambda item: -item[1])),
            )
        )
    return found

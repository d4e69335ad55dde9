from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from excise.capture.journal import Probe
from excise.errors import UsageError
from excise.lab import GuestResult, Machine, Step, StepResult
from excise.lab.count import counts, differences, noise_floor
from excise.lab.kernel import Kernel


def _guest(values: dict[str, list[float]], *, name: str = "none", **machine: Any) -> GuestResult:
    steps = tuple(
        StepResult(
            step=Step(task=task, command=("x",), probe=True),
            exit_code=0,
            wall_ns=None,
            stdout=b"",
            stderr=b"",
            probe=Probe(workload=task, operations=1, op_ns=op_ns, first_op_ns=9.0),
        )
        for task, op_ns in values.items()
    )
    empty: dict[str, Any] = {field.name: None for field in dataclasses.fields(GuestResult)}
    kernel = Kernel(name="k", release="k", image=None, modules=None, config={})  # type: ignore[arg-type]
    given = {"configuration": name, "machine": Machine(**machine), "steps": steps, "kernel": kernel}
    return GuestResult(**{**empty, **given})


def test_steady_is_the_least_batch_and_first_is_kept_apart():
    found = counts(_guest({"null": [12.0, 10.0, 11.0]}))["null"]
    assert (found.first, found.steady, found.median) == (9.0, 10.0, 11.0)


def test_one_round_that_differs_does_not_count():
    rounds = [_guest({"null": [value, 50.0]}).steps[0] for value in (10.0, 7.0, 10.0)]
    guest = dataclasses.replace(_guest({}), steps=tuple(rounds))
    assert counts(guest)["null"].steady == 10.0


def test_a_guest_in_tpm_mode_is_not_counted():
    with pytest.raises(UsageError, match="count mode only"):
        counts(_guest({"null": [1.0]}, mode="tpm"))


def test_a_guest_that_measured_nothing_is_refused():
    with pytest.raises(UsageError, match="measured no system call"):
        counts(_guest({}))


def test_the_noise_floor_is_the_largest_change_of_any_twin():
    base = _guest({"null": [100.0], "stat": [200.0]})
    twins = [_guest({"null": [101.0], "stat": [200.0]}), _guest({"null": [98.0], "stat": [200.0]})]
    assert noise_floor(base, twins) == pytest.approx({"null": 0.02, "stat": 0.0})


def test_noise_is_never_assumed():
    with pytest.raises(UsageError, match="measured, not assumed"):
        noise_floor(_guest({"null": [1.0]}), [])


def test_a_difference_below_the_noise_is_not_visible():
    base = _guest({"null": [100.0], "stat": [100.0]})
    other = _guest({"null": [101.0], "stat": [103.0]}, name="x")
    found = differences(base, other, noise={"null": 0.02, "stat": 0.02})
    assert [(d.task, d.difference, d.visible) for d in found] == [
        ("null", 1.0, False),
        ("stat", 3.0, True),
    ]

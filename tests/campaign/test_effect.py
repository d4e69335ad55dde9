"""Did it take effect? What passes, what fails, and that nothing is measured after a failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from campaign_runs import records, runs
from excise.campaign.effect import check_effects
from excise.campaign.run import run_campaign
from excise.campaign.spec import Campaign, Configuration, Task, TookEffect
from excise.capture.journal import Effect
from excise.collect.launcher import Exec, ExecResult
from excise.errors import ConnectionLost, EffectError, HostError


def campaign(*checks: TookEffect, probe: list[str] | None = None, **options: object) -> Campaign:
    return Campaign(
        configurations=[
            Configuration(name="off"),
            Configuration(
                name="on",
                environment={"SWITCH": "on"},
                probe=probe or [],
                took_effect=list(checks),
                **options,  # type: ignore[arg-type]
            ),
        ],
        tasks=[Task(name="t", command=["true"], counters=False)],
        blocks=1,
        sync_interval="never",
    )


def effects(path: Path) -> list[Effect]:
    return [record for record in records(path) if isinstance(record, Effect)]


CHECKS = [
    (TookEffect(environment="SWITCH", equals="on"), TookEffect(environment="SWITCH", equals="off")),
    (TookEffect(environment="SWITCH"), TookEffect(environment="OTHER")),
    (
        TookEffect(command=["sh", "-c", "echo mode: $SWITCH"], matches="^mode: on$"),
        TookEffect(command=["sh", "-c", "echo mode: $SWITCH"], matches="^mode: off$"),
    ),
    (
        TookEffect(command=["sh", "-c", "exit 3"], exit_code=3),
        TookEffect(command=["sh", "-c", "echo bad luck >&2; exit 4"], exit_code=3),
    ),
    (TookEffect(command=["true"]), TookEffect(command=["no-such-program-xyz"])),
    (
        TookEffect(file="/proc/self/status", contains="Seccomp:"),
        TookEffect(file="/proc/self/status", contains="Unheard-of:"),
    ),
    (
        TookEffect(file="/proc/sys/kernel/ostype", equals="Linux"),
        TookEffect(file="/proc/no-such-file", equals="Linux"),
    ),
]


@pytest.mark.parametrize("check", [pair[0] for pair in CHECKS])
def test_a_check_that_passes_is_recorded_and_the_campaign_runs(
    tmp_path: Path, check: TookEffect
) -> None:
    planned = campaign(check)
    assert run_campaign(planned, tmp_path / "c").done == planned.runs
    (effect,) = effects(tmp_path / "c")
    assert (effect.configuration, effect.outcome) == ("on", "PASSED")


@pytest.mark.parametrize("check", [pair[1] for pair in CHECKS])
def test_a_check_that_fails_ends_the_campaign_before_anything_is_measured(
    tmp_path: Path, check: TookEffect
) -> None:
    marks = tmp_path / "marks"
    planned = campaign(check, teardown=[["touch", str(marks)]])
    with pytest.raises(EffectError, match="a configuration did not take effect: on: ") as caught:
        run_campaign(planned, tmp_path / "c")
    assert caught.value.exit_code == 4
    (effect,) = effects(tmp_path / "c")
    assert effect.outcome == "FAILED"
    assert effect.got in caught.value.reason
    assert runs(tmp_path / "c") == []
    assert marks.exists(), "what was set up was not torn down"


def test_every_failed_check_is_named_at_once(tmp_path: Path) -> None:
    planned = campaign(*[pair[1] for pair in CHECKS])
    with pytest.raises(EffectError) as caught:
        run_campaign(planned, tmp_path / "c")
    assert caught.value.reason.count("expected") == len(CHECKS)
    assert "exit code 4: bad luck" in caught.value.reason
    assert "ENOENT" in caught.value.reason


def test_checks_are_asked_between_set_up_and_tear_down(tmp_path: Path) -> None:
    switch = tmp_path / "switch"
    planned = campaign(
        TookEffect(file=str(switch), equals="up"),
        setup=[["sh", "-c", f"echo up > {switch}"]],
        teardown=[["rm", str(switch)]],
    )
    assert run_campaign(planned, tmp_path / "c").failed == 0
    assert not switch.exists()


def test_a_set_up_that_fails_before_the_checks_is_an_error(tmp_path: Path) -> None:
    planned = campaign(TookEffect(environment="SWITCH"), setup=[["sh", "-c", "exit 5"]])
    with pytest.raises(HostError, match="exit code 5"):
        run_campaign(planned, tmp_path / "c")
    assert runs(tmp_path / "c") == []


@pytest.mark.parametrize(
    "probe",
    [["--no-new-privs"], ["--seccomp", "3"], ["--landlock"], ["--landlock", "--seccomp", "9"]],
)
def test_the_probe_proves_its_own_mechanisms(tmp_path: Path, probe: list[str]) -> None:
    planned = campaign(probe=probe)
    assert run_campaign(planned, tmp_path / "c").failed == 0
    (effect,) = effects(tmp_path / "c")
    assert (effect.check, effect.expected, effect.outcome) == ("probe", " ".join(probe), "PASSED")


@pytest.mark.parametrize("probe", [["--seccomp", "0x"], ["--dream"], ["--seccomp"]])
def test_what_the_probe_cannot_do_did_not_take_effect(tmp_path: Path, probe: list[str]) -> None:
    with pytest.raises(EffectError, match="on: probe: expected"):
        run_campaign(campaign(probe=probe), tmp_path / "c")


@pytest.mark.parametrize(
    ("option", "answer"),
    [
        (["--landlock"], {"landlock_abi": 4, "landlock_denies_outside": False}),
        (["--landlock"], {}),
        (["--seccomp", "5"], {"seccomp_rules": 4, "seccomp_mode": 2}),
        (["--seccomp", "5"], {"seccomp_rules": 5, "seccomp_mode": 0}),
        (["--no-new-privs"], {"no_new_privs": False}),
        (["--new-thing"], {"no_new_privs": True}),
    ],
)
def test_a_probe_that_proves_something_else_has_not_proven_it(
    option: list[str], answer: dict[str, object]
) -> None:
    """The answers are ones that no working kernel gives: they stand for a broken one."""

    def never(step: Exec) -> ExecResult:
        raise AssertionError(step)

    (effect,) = check_effects(
        Configuration(name="on", probe=option),
        execute=never,
        prefix=[],
        work_directory="/",
        ask=lambda *_words: {"mechanism": answer},
    )
    assert effect.outcome == "FAILED"


@pytest.mark.parametrize(
    "configuration",
    [
        Configuration(name="on", probe=["--landlock"]),
        Configuration(name="on", ima_policy="tcb|appraise_tcb", ima_appraise="enforce"),
        Configuration(name="on", took_effect=[TookEffect(command=["true"])]),
        Configuration(name="on", took_effect=[TookEffect(file="/proc/version", contains="L")]),
    ],
)
def test_a_connection_that_breaks_is_no_answer_about_the_configuration(
    configuration: Configuration,
) -> None:
    def lost(*_: object) -> Any:
        raise ConnectionLost("the connection broke")

    with pytest.raises(ConnectionLost):
        check_effects(
            configuration, execute=lost, prefix=[], work_directory="/", read_file=lost, ask=lost
        )


def test_effects_are_asked_again_when_a_campaign_goes_on(tmp_path: Path) -> None:
    switch = tmp_path / "switch"
    switch.write_text("on")
    planned = campaign(TookEffect(file=str(switch), equals="on"))
    run_campaign(planned, tmp_path / "c")
    journal = tmp_path / "c" / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:4]))
    before = len(runs(tmp_path / "c"))
    switch.write_text("off")
    with pytest.raises(EffectError, match="expected equals 'on', got off"):
        run_campaign(planned, tmp_path / "c")
    assert len(runs(tmp_path / "c")) == before

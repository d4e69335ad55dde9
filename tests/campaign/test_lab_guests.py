"""Campaigns on the lab: which keys mean what, and the guest that a visit becomes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from excise.campaign.effect import effect_of_text
from excise.campaign.lab_demo import demo_campaign
from excise.campaign.run import run_campaign
from excise.campaign.schedule import visits
from excise.campaign.spec import (
    Campaign,
    Configuration,
    Task,
    TookEffect,
    from_plain,
    parse_campaign,
    read_campaign,
)
from excise.campaign.target_spec import LabTarget
from excise.campaign.targets import target_of
from excise.campaign.targets.guests import calibrated, check_spec, planned_guest
from excise.errors import SpecError, UsageError
from excise.lab.machine import Machine
from excise.lab.workloads import task_names

EXAMPLES = Path(__file__).parents[2] / "examples"
GOOD = """
[target]
kind = "lab"
machine = { kernel = "6.1", mode = "count" }
[[configurations]]
name = "none"
[[configurations]]
name = "mine"
preset = "yama"
cmdline = "quiet"
[[tasks]]
name = "t"
workload = "open_close/ext4"
"""


def parsed(text: str = GOOD) -> Campaign:
    return parse_campaign(text.encode(), source="c.toml")


def refused(text: str) -> SpecError:
    campaign = parsed(text)
    assert isinstance(campaign.target, LabTarget)
    with pytest.raises(SpecError, match=r".") as caught:
        check_spec(campaign, campaign.target)
    return caught.value


def test_a_lab_campaign_survives_the_manifest() -> None:
    campaign = parsed()
    assert campaign.target == LabTarget(machine=Machine(kernel="6.1"))
    assert from_plain(msgspec.to_builtins(campaign), source="m") == campaign


def test_the_example_is_the_demonstration() -> None:
    assert read_campaign(EXAMPLES / "lsms.toml") == demo_campaign()


def test_the_workload_syscalls_becomes_a_task_for_each_call() -> None:
    campaign = parsed(GOOD.replace("open_close/ext4", "syscalls"))
    assert [task.name for task in campaign.tasks] == task_names()
    assert {task.name: task.workload for task in campaign.tasks}["stat/tmpfs"] == "stat/tmpfs"


@pytest.mark.parametrize(
    ("change", "key", "reason"),
    [
        (('preset = "yama"', ""), "configurations[1].preset", "no preset mine"),
        (('preset = "yama"', 'preset = "x"'), "configurations[1].preset", "no preset x"),
        (("open_close/ext4", "open_close"), "tasks[0].workload", "no workload open_close"),
        (("open_close/ext4", "files:many"), "tasks[0].workload", "needs a number"),
        (('name = "t"', 'name = "t"\ntimeout = "5s"'), "tasks[0].timeout", "one time limit"),
        (('name = "t"', 'name = "t"\ndirectory = "/"'), "tasks[0].directory", "in its name"),
        (("[target]", 'work_directory = "/tmp"\n[target]'), "work_directory", "its own work"),
        (('kind = "lab"', 'kind = "lab"\nquote = true'), "target.quote", 'mode = "tpm"'),
        (
            ('mode = "count" }', 'mode = "tpm" }\naa_guests = 2'),
            "target.aa_guests",
            "one A/A arm",
        ),
        (
            ('cmdline = "quiet"', 'teardown = [["true"]]'),
            "configurations[1].teardown",
            "thrown away",
        ),
        (('cmdline = "quiet"', 'modules = "m"'), "configurations[1].modules", "kernel given"),
    ],
)
def test_what_a_guest_does_not_have_is_refused_by_its_key(
    change: tuple[str, str], key: str, reason: str
) -> None:
    error = refused(GOOD.replace(*change))
    assert error.key == key
    assert reason in error.reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (('kind = "lab"', 'kind = "lap"'), "'lap' is not one of command, lab, local, serial, ssh"),
        (('mode = "count"', 'mode = "tpm", cpus = 0'), "cpus must be at least 1"),
        (('kernel = "6.1"', 'kernl = "6.1"'), "unknown field `kernl`"),
    ],
)
def test_a_wrong_target_names_key_and_reason(change: tuple[str, str], reason: str) -> None:
    with pytest.raises(SpecError, match="target") as caught:
        parsed(GOOD.replace(*change))
    assert reason in caught.value.reason


def test_several_machines_at_a_time_are_for_the_lab_only(tmp_path: Path) -> None:
    local = Campaign(
        configurations=[Configuration(name="a")], tasks=[Task(name="t", command=["true"])]
    )
    with pytest.raises(UsageError, match="--jobs is for guests of the lab"):
        run_campaign(local, tmp_path / "c", jobs=2)
    assert not (tmp_path / "c").exists()
    assert target_of(parsed(), jobs=2) is not None


def guest_of(text: str, arm: str):
    campaign = parsed(text)
    assert isinstance(campaign.target, LabTarget)
    visit = next(each for each in visits(campaign) if each.arm == arm)
    operations = {task.name: calibrated(task) for task in campaign.tasks}
    return planned_guest(campaign, campaign.target, visit, operations=operations)


def test_an_a_a_guest_differs_in_something_that_nothing_reads() -> None:
    base, word, file = (guest_of(GOOD, name).job for name in ("none", "none (A/A)", "none (A/A 2)"))
    assert word.machine.cmdline == "excise.twin=1"
    assert file.machine == base.machine
    assert set(file.plan.root_files) - set(base.plan.root_files) == {"lab/twin"}
    assert word.plan.steps == base.plan.steps == file.plan.steps


def test_rounds_of_a_counting_guest_are_the_blocks() -> None:
    steps = guest_of(GOOD, "mine").job.plan.steps
    assert [step.round for step in steps] == list(range(31))
    assert steps[0].command[:4] == ("excise-probe", "run", "--workload", "open_close")
    assert "/excise/ext4" in steps[0].command
    assert guest_of(GOOD, "mine").job.machine.cmdline == "quiet"


def test_commands_carry_variables_and_prefix_and_start_by_the_probe_where_one_arm_does() -> None:
    text = GOOD.replace('workload = "open_close/ext4"', 'command = ["uname", "-a"]')
    text = text.replace('cmdline = "quiet"', 'environment = { A = "1" }\nprefix = ["nice"]')
    assert guest_of(text, "mine").job.plan.steps[0].command == ("env", "A=1", "nice", "uname", "-a")
    confined = text.replace('preset = "yama"', 'preset = "landlock"')
    probe = ("excise-probe", "exec")
    assert guest_of(confined, "none").job.plan.steps[0].command == (*probe, "--", "uname", "-a")
    command = guest_of(confined, "mine").job.plan.steps[0].command
    assert command[:3] == (*probe, "--landlock")
    assert command[-6:] == ("--", "env", "A=1", "nice", "uname", "-a")


def test_set_up_and_checks_go_into_the_guest() -> None:
    text = GOOD.replace(
        'cmdline = "quiet"',
        'setup = [["mkdir", "/run/a b"]]\n'
        'took_effect = [{ file = "/proc/cmdline", contains = "x" }, { command = ["id", "-u"] }]',
    )
    guest = guest_of(text, "mine")
    assert "mkdir '/run/a b'" in guest.job.preset.mounted
    assert "|| refuse 'a set-up command failed" in guest.job.preset.mounted
    assert "cat /proc/cmdline" in guest.job.preset.proof
    assert "id -u" in guest.job.preset.proof
    assert list(guest.checks) == ["took_effect.0", "took_effect.1"]
    assert guest_of(text, "none").checks == {}


@pytest.mark.parametrize(
    ("check", "text", "exit_code", "outcome"),
    [
        (TookEffect(file="/f", contains="a"), "xay", 0, "PASSED"),
        (TookEffect(file="/f", contains="a"), "xy", 0, "FAILED"),
        (TookEffect(file="/f", contains="a"), "a", 1, "FAILED"),
        (TookEffect(file="/f", contains="a"), "a", None, "FAILED"),
        (TookEffect(command=["false"], exit_code=1), "", 1, "PASSED"),
        (TookEffect(command=["true"]), "", 1, "FAILED"),
        (TookEffect(environment="A", equals="1"), "1", 0, "PASSED"),
        (TookEffect(environment="A", equals="1"), "2", 0, "FAILED"),
    ],
)
def test_a_check_that_was_asked_elsewhere_is_judged(
    check: TookEffect, text: str, exit_code: int | None, outcome: str
) -> None:
    effect = effect_of_text(check, configuration="c", text=text, exit_code=exit_code)
    assert effect.outcome == outcome
    assert effect.configuration == "c"


def test_files_and_boot_are_workloads_and_a_boot_has_no_step() -> None:
    text = (
        GOOD
        + '[[tasks]]\nname = "f"\nworkload = "exec:3"\n[[tasks]]\nname = "b"\nworkload = "boot"'
    )
    guest = guest_of(text.replace("[target]", "blocks = 1\n[target]"), "none")
    assert [step.task for step in guest.job.plan.steps] == ["t", "f", "t", "f"]
    assert [head.task for head in guest.boots] == ["b", "b"]
    assert sum(path.startswith("many/") for path in guest.job.plan.files) == 3

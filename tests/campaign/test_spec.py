"""Campaign files: what is accepted, and how a wrong one is named."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest

from excise.campaign.spec import ad_hoc, from_plain, parse_campaign, read_campaign
from excise.collect.probe import probe_path
from excise.errors import SpecError

GOOD = """
baseline = "off"
[[configurations]]
name = "off"
[[configurations]]
name = "on"
environment = { A = "1" }
[[tasks]]
name = "t"
command = ["true"]
"""


def wrong(text: str) -> SpecError:
    with pytest.raises(SpecError, match=r".") as caught:
        parse_campaign(text.encode(), source="c.toml")
    return caught.value


def test_a_campaign_survives_the_manifest() -> None:
    campaign = parse_campaign(GOOD.encode(), source="c.toml", default_title="mine")
    assert campaign.title == "mine"
    assert campaign.arms == ["off", "off (A/A)", "on"]
    assert from_plain(msgspec.to_builtins(campaign), source="m") == campaign


def test_the_workload_syscalls_is_a_task_for_each_workload_of_the_probe() -> None:
    text = GOOD.replace('command = ["true"]', 'workload = "syscalls"')
    campaign = parse_campaign(text.encode(), source="c.toml")
    known = subprocess.run(
        [probe_path(), "run", "--workload", "?"], capture_output=True, text=True, check=False
    ).stderr.partition("known are: ")[2]
    assert {task.name for task in campaign.tasks} == set(known.split())
    assert all(task.workload == task.name for task in campaign.tasks)


@pytest.mark.parametrize(
    ("change", "key", "reason"),
    [
        (("baseline", "basline"), "basline", "unknown field `basline`"),
        (('baseline = "off"', 'baseline = "of"'), "baseline", "no configuration is called 'of'"),
        (('baseline = "off"', "blocks = 0"), "blocks", ">= 1"),
        (('baseline = "off"', 'blocks = "many"'), "blocks", "Expected `int`, got `str`"),
        (('baseline = "off"', 'margin = "wide"'), "margin", "wide"),
        (('baseline = "off"', 'margin = "-1%"'), "margin", "below zero"),
        (('name = "on"', 'name = "off"'), "configurations[1].name", "given twice"),
        (('A = "1"', "A = 1"), "configurations[1].environment[...]", "Expected `str`, got `int`"),
        (('command = ["true"]', 'comand = ["true"]'), "tasks[0].comand", "unknown field `comand`"),
        (('command = ["true"]', ""), "tasks[0]", "exactly one of command, workload"),
        (('command = ["true"]', "command = []"), "tasks[0].command", "no words"),
        (('name = "t"', 'name = "t"\ntimeout = "soon"'), "tasks[0].timeout", "soon"),
        (('name = "t"', 'name = "t"\ntimeout = "0s"'), "tasks[0].timeout", "above zero"),
        (
            ('baseline = "off"', 'target = { kind = "shh" }'),
            "target.kind",
            "'shh' is not one of command, lab, local, serial, ssh",
        ),
        (
            ('baseline = "off"', 'target = { kind = "lab", machine = { mode = "fast" } }'),
            "target.machine.mode",
            "'fast' is not one of count, tpm",
        ),
        (
            ('name = "on"', 'name = "on"\nima_appraise = "no"'),
            "configurations[1].ima_appraise",
            "'no' is not one of enforce, fix, log, off",
        ),
        (('name = "on"', 'name = "off (A/A)"'), "configurations", "name of the A/A arm"),
        (
            ('name = "on"', 'name = "on"\ntook_effect = [{ file = "/x" }]'),
            "configurations[1].took_effect[0]",
            "what the file must hold",
        ),
        (
            ('name = "on"', 'name = "on"\ntook_effect = [{ file = "/x", matches = "(" }]'),
            "configurations[1].took_effect[0].matches",
            "not a regular expression",
        ),
    ],
)
def test_a_wrong_campaign_names_key_and_reason(
    change: tuple[str, str], key: str, reason: str
) -> None:
    error = wrong(GOOD.replace(*change))
    assert error.key == key
    assert reason in error.reason
    assert error.source == "c.toml"
    assert error.exit_code == 2


@pytest.mark.parametrize(
    ("change", "meant"),
    [
        (("baseline", "basline"), "baseline"),
        (('command = ["true"]', 'comand = ["true"]'), "command"),
        (('baseline = "off"', 'target = { kind = "ssh", host = "a", giveup = "1s" }'), "give_up"),
        (('baseline = "off"', 'target = { kind = "lab", machine = { kernl = "6" } }'), "kernel"),
    ],
)
def test_an_unknown_key_is_answered_with_the_one_that_was_perhaps_meant(
    change: tuple[str, str], meant: str
) -> None:
    assert f"Did you mean `{meant}`? docs/campaigns.md has all" in str(wrong(GOOD.replace(*change)))


def test_an_unknown_key_like_no_other_gets_no_guess() -> None:
    assert "Did you mean" not in str(wrong("zzzz = 1\n" + GOOD))


def test_what_is_not_toml_names_the_line() -> None:
    assert "line 1" in wrong("= 3").reason


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(SpecError, match="is not TOML"):
        parse_campaign(b"\xff\xfe", source="c.toml")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none\.toml: cannot be read"):
        read_campaign(tmp_path / "none.toml")


def test_ad_hoc_configurations_are_prefixes_and_mechanisms() -> None:
    campaign = ad_hoc(
        ["none", "both: --landlock --seccomp 100 env A=1"], ["gpg", "--version"], blocks=5
    )
    none, both = campaign.configurations
    assert (none.prefix, none.probe) == ([], [])
    assert (both.prefix, both.probe) == ([], ["--landlock", "--seccomp", "100"])
    assert both.environment == {"A": "1"}
    assert campaign.tasks[0].name == "gpg"
    assert campaign.blocks == 5


@pytest.mark.parametrize(
    ("configurations", "command", "reason"),
    [([], [], "no command"), ([": env"], ["true"], "has no name"), (["a: '"], ["true"], "quot")],
)
def test_a_wrong_command_line_is_refused(
    configurations: list[str], command: list[str], reason: str
) -> None:
    with pytest.raises(SpecError, match=reason):
        ad_hoc(configurations, command)


@pytest.mark.parametrize(
    ("prefix", "environment", "words"),
    [
        ("env A=1 B=x=y", {"A": "1", "B": "x=y"}, []),
        ("env A=1 nice -n 5", {"A": "1"}, ["nice", "-n", "5"]),
        ("env -i A=1", {}, ["env", "-i", "A=1"]),
        ("env A=1 -u B", {}, ["env", "A=1", "-u", "B"]),
        ("env", {}, ["env"]),
        ("taskset 1", {}, ["taskset", "1"]),
    ],
)
def test_plain_env_prefixes_cost_no_extra_exec(
    prefix: str, environment: dict[str, str], words: list[str]
) -> None:
    configuration = ad_hoc([f"c: {prefix}"], ["true"]).configurations[0]
    assert configuration.environment == environment
    assert configuration.prefix == words

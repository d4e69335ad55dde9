"""Presets with further rules from a file: what is refused, and what a larger policy costs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from excise.campaign.spec import Campaign, Configuration, LabTarget, Task
from excise.campaign.targets.guests import rules_facts
from excise.errors import EffectError, HostError, UsageError
from excise.lab import Machine, preset, preset_jobs, run_guest
from excise.lab.count import counts

RULE = "file read/getattr /srv/data{}/\\*\n"


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    file = tmp_path / "more.rules"
    file.write_text("".join(RULE.format(number) for number in range(100)))
    return file


def test_further_rules_stand_first_in_the_domain_and_are_asked_for(rules: Path) -> None:
    name = f"tomoyo-enforcing:{rules}"
    plain, more = preset("tomoyo-enforcing"), preset(name)
    policy = more.files()["lab/tomoyo/domain_policy"].decode()
    assert (
        policy.replace(rules.read_text(), "") == plain.files()["lab/tomoyo/domain_policy"].decode()
    )
    assert policy.index(RULE.format(0)) < policy.index("file read/getattr /dev/zero")
    digest = hashlib.sha256(rules.read_bytes()).hexdigest()
    assert (more.name, more.rules_sha256) == (name, digest)
    asked = {each.fact: each.expected for each in more.expectations}
    assert asked["rules"] == digest
    assert asked["rules_not_taken"] == "none"
    assert set(plain.expectations) < set(more.expectations)


def test_a_campaign_keeps_the_digest_of_its_rules(rules: Path) -> None:
    campaign = Campaign(
        configurations=[
            Configuration(name="none"),
            Configuration(name="many", preset=f"tomoyo-enforcing:{rules}"),
        ],
        tasks=[Task(name="stat", workload="stat")],
        target=LabTarget(),
    )
    (fact,) = rules_facts(campaign)
    assert fact.must_agree
    rules.write_text(RULE.format(7))
    (changed,) = rules_facts(campaign)
    assert (fact.name, fact.value) != (changed.name, changed.value)


def test_rules_that_are_not_there_are_refused_by_their_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.rules: cannot be read"):
        preset(f"apparmor:{tmp_path / 'none.rules'}")
    with pytest.raises(UsageError, match="cannot be read"):
        preset(f"apparmor:{tmp_path}")
    (tmp_path / "empty").write_text("\n \n")
    with pytest.raises(UsageError, match="no file is named after apparmor:"):
        preset("apparmor:")
    with pytest.raises(UsageError, match="has no rule"):
        preset(f"tomoyo-enforcing:{tmp_path / 'empty'}")


@pytest.mark.parametrize("name", ["none", "yama", "ima-measure", "all"])
def test_a_preset_without_a_policy_of_rules_takes_none(name: str, rules: Path) -> None:
    with pytest.raises(UsageError, match="takes no file of rules"):
        preset(f"{name}:{rules}")


def test_a_number_of_landlock_rules_is_as_many_folders() -> None:
    found = preset("landlock:3")
    rules = found.files()["lab/rules"]
    assert rules == b"r /run/landlock/000000\nr /run/landlock/000001\nr /run/landlock/000002\n"
    assert found.rules_sha256 == hashlib.sha256(rules).hexdigest()
    plain = preset("landlock")
    assert found.probe_options == (*plain.probe_options, "--landlock-rules", "/lab/rules")
    asked = {each.fact: each.expected for each in found.expectations}
    assert asked["landlock_rules"] == '"landlock_rules":3[,}]'
    assert set(plain.expectations) < set(found.expectations)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("landlock:0", "landlock:0: from 1 to 100,000 rules"),
        ("landlock:100001", "from 1 to 100,000 rules. A file of that name is ./NAME"),
        ("landlock:", "no file is named after landlock:"),
        ("landlock:none.rules", "cannot be read"),
    ],
)
def test_no_number_of_landlock_rules_and_no_file_is_refused(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        preset(name)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\n\n", "has no rule"),
        ("r /srv\nq /home\n", "line 2 is no Landlock rule"),
        ("r srv\n", "line 1 is no Landlock rule"),
        ("/srv\n", "line 1 is no Landlock rule"),
        ("r /srv\n\nrw /srv\n", "line 3 is of the same path as line 1"),
    ],
)
def test_a_line_that_is_no_landlock_rule_is_told_before_anything_boots(
    tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "some.rules"
    file.write_text(text)
    with pytest.raises(UsageError, match=rf"some\.rules: {said}"):
        preset(f"landlock:{file}")


@pytest.mark.lab
def test_rules_that_do_not_compile_are_told_before_a_guest_starts(tmp_path: Path) -> None:
    file = tmp_path / "bad.rules"
    file.write_text("/srv/** r,\nnonsense here\n")
    with pytest.raises(HostError, match=r"bad\.rules: .*profile rules at line 2"):
        preset(f"apparmor:{file}")


def _steady(presets: list[str]) -> Iterator[float]:
    for job in preset_jobs(Machine(), presets=presets, only=("stat/ext4",)):
        result = run_guest(job.machine, preset=job.preset, plan=job.plan)
        assert {effect.outcome for effect in result.effects} == {"PASSED"}
        yield counts(result)["stat/ext4"].steady


@pytest.mark.lab
def test_rules_cost_one_by_one_in_tomoyo_and_nothing_in_apparmor(tmp_path: Path) -> None:
    """TOMOYO goes through a list; AppArmor's rules are one automaton."""
    names = ["tomoyo-enforcing"]
    for number in (100, 200):
        file = tmp_path / f"{number}.rules"
        file.write_text("".join(RULE.format(each) for each in range(1000, 1000 + number)))
        names.append(f"tomoyo-enforcing:{file}")
    none, hundred, two_hundred = _steady(names)
    assert (two_hundred - hundred) == pytest.approx(hundred - none, rel=0.05)
    assert hundred - none > 100 * 20
    file = tmp_path / "apparmor.rules"
    file.write_text("".join(f"/srv/data{each}/** r,\n" for each in range(500)))
    plain, many = _steady(["apparmor", f"apparmor:{file}"])
    assert many == pytest.approx(plain, abs=5)


@pytest.mark.lab
def test_a_rule_that_tomoyo_passes_over_did_not_take_effect(tmp_path: Path) -> None:
    file = tmp_path / "bad.rules"
    file.write_text(RULE.format(1) + "nonsense line\n")
    found = preset(f"tomoyo-enforcing:{file}")
    (job,) = preset_jobs(Machine(), presets=[found.name], only=("null",))
    with pytest.raises(EffectError, match="rules_not_taken: expected equals none, got nonsense"):
        run_guest(job.machine, preset=found, plan=job.plan)


@pytest.mark.lab
def test_landlock_rules_cost_opens_and_no_stat(tmp_path: Path) -> None:
    """The kernel looks each folder of a path up in a tree of the rules; stat has no hook."""
    file = tmp_path / "some.rules"
    file.write_text("".join(f"rx /srv/with space {each}\n" for each in range(256)))
    found = {}
    names = ["landlock", "landlock:256", f"landlock:{file}"]
    for job in preset_jobs(Machine(), presets=names, only=("stat/ext4", "open_close/ext4")):
        result = run_guest(job.machine, preset=job.preset, plan=job.plan)
        assert {effect.outcome for effect in result.effects} == {"PASSED"}
        found[job.configuration] = counts(result)
    alone, many, own = found.values()
    assert many["stat/ext4"].steady == pytest.approx(alone["stat/ext4"].steady, rel=1e-3)
    for each in (many, own):
        assert each["open_close/ext4"].steady > alone["open_close/ext4"].steady + 10


@pytest.mark.lab
def test_a_landlock_rule_that_the_kernel_does_not_take_is_told(tmp_path: Path) -> None:
    file = tmp_path / "some.rules"
    file.write_text("r /lab/rules/below/a/file\n")
    found = preset(f"landlock:{file}")
    (job,) = preset_jobs(Machine(), presets=[found.name], only=("null",))
    with pytest.raises(EffectError, match="a folder of a Landlock rule could not be made"):
        run_guest(job.machine, preset=found, plan=job.plan)

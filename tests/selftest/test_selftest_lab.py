"""Debian 13's FIPS provider from a throw-away tree, whole commands, and a kernel with fips=1."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from excise.campaign.run import run_campaign
from excise.campaign.selftest_bench import run_bench
from excise.campaign.selftest_commands import CACHED_ARM, ON_ARM, baselines_of, plan_commands
from excise.campaign.selftest_kernel import boot_kernels
from excise.campaign.selftest_subjects import openssl_subject
from excise.collect.selftest.openssl import CACHED, ON, Provider, clean_environment, find_provider
from excise.collect.selftest.tree import KEYRING, Tree, make_tree
from excise.collect.selftest.verdict import Answer, check_command
from excise.cost.selftest import cached_answers, family_costs, start_costs
from excise.cost.selftest_commands import command_costs
from excise.events.load import load_capture
from skips import skip

pytest_plugins = ("selftest_programs",)
pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def tree() -> Tree:
    if shutil.which("apt-get") is None or not KEYRING.is_file():
        skip("no apt with the keys of Debian's archive")
    return make_tree("trixie")


@pytest.fixture(scope="module")
def provider(tree: Tree, tmp_path_factory: pytest.TempPathFactory) -> Provider:
    return find_provider(tree, folder=tmp_path_factory.mktemp("fips"))


def test_the_host_is_not_touched_by_a_tree(tree: Tree) -> None:
    assert tree.root != Path("/")
    assert tree.loader is not None
    assert tree.root in tree.loader.parents
    assert "openssl-provider-fips" in tree.versions


def test_loads_of_debian_13_are_explained_and_the_cached_status_does_not_help(
    provider: Provider, tmp_path: Path
) -> None:
    assert provider.version.startswith("3.5.")
    run_bench([openssl_subject(provider, use=False)], tmp_path / "bench", blocks=6)
    dataset = load_capture(tmp_path / "bench")
    costs = {each.configuration: each for each in start_costs(dataset)}
    assert costs[ON].tests >= 40
    assert costs[ON].remainder_share < 0.10
    shares = {each.family: each.share for each in family_costs(dataset) if each.configuration == ON}
    assert max(shares, key=lambda name: shares[name]) == "SLH-DSA"
    assert shares["SLH-DSA"] > 0.5
    (answer,) = cached_answers(dataset, on=ON, cached=CACHED)
    assert answer.helps is False
    assert answer.cached_tests == answer.tests


def test_conditional_self_tests_run_within_key_generation(provider: Provider) -> None:
    on = next(each for each in provider.variants if each.name == ON)
    found = provider.load(on, use=True)
    stages = {test.stage for test in found.tests if test.type == "Conditional_PCT"}
    assert "EC keygen" in stages
    assert all(test.phase == "Pass" for test in found.tests)


def test_yes_for_a_program_that_loads_the_provider_unconditionally(
    provider: Provider, provider_loader: Path
) -> None:
    on = next(each for each in provider.variants if each.name == ON)
    environment = clean_environment(provider.tree, OPENSSL_CONF=str(on.load_configuration))
    command = provider.tree.start(provider_loader)
    found = check_command(command, environment=environment, fips_on=False)
    assert found.answer is Answer.YES
    assert len(found.tests) >= 40
    without = provider.tree.start(provider_loader, "no")
    assert check_command(without, environment=environment, fips_on=False).answer is Answer.NO


def test_a_command_pays_with_and_without_cached_status(tree: Tree, tmp_path: Path) -> None:
    plan = plan_commands(["openssl rand -hex 8"], tree=tree, blocks=8, cold=True)
    finished = run_campaign(plan.campaign, tmp_path / "commands")
    assert finished.failed == 0
    dataset = load_capture(tmp_path / "commands")
    assert {each.outcome for each in dataset.effects} == {"PASSED"}
    costs = command_costs(dataset, baselines=baselines_of(plan.campaign), starts_per_day=1000)
    by_state = {each.comparison.configuration: each for each in costs}
    assert len(by_state) == 4
    for state in (ON_ARM, CACHED_ARM):
        assert by_state[state].comparison.ratio > 2
        assert by_state[state].extra_ns > 0
        assert by_state[state].per_day_ns == pytest.approx(1000 * by_state[state].extra_ns)


def test_a_kernel_runs_its_self_tests_with_fips_off_too(lab_cache: Path) -> None:
    assert os.environ["EXCISE_LAB_CACHE"] == str(lab_cache)
    none, usual, fips = boot_kernels("6.12-cloud")
    assert none.tests.fips_enabled is False
    assert fips.tests.fips_enabled is True
    assert none.init_instructions < usual.init_instructions
    assert none.init_instructions < fips.init_instructions
    assert len(fips.tests.logged) > 20
    assert {each.result for each in fips.tests.logged} == {"passed"}

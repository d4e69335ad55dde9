from __future__ import annotations

import pytest

from excise.errors import UsageError
from excise.lab import preset, presets
from excise.lab.policies import tomoyo_domain_policy

NAMES = [
    "none",
    "yama",
    "lockdown",
    "landlock",
    "apparmor",
    "selinux-permissive",
    "selinux-enforcing",
    "tomoyo-learning",
    "tomoyo-enforcing",
    "bpf",
    "ima-off",
    "ima-measure",
    "ima-fix",
    "ima-enforce",
    "evm",
    "fips",
    "all",
]


def test_all_presets_of_the_field_are_there():
    assert list(presets()) == NAMES


def test_every_preset_must_prove_something():
    assert [name for name, found in presets().items() if not found.expectations] == []


def test_an_attempt_that_is_expected_is_made():
    for found in presets().values():
        fragments = found.setup + found.mounted + found.proof
        for expectation in found.expectations:
            if expectation.fact.startswith("attempt."):
                assert f"attempt {expectation.fact.removeprefix('attempt.')} " in fragments


def test_an_unknown_preset_is_refused_with_the_list():
    with pytest.raises(UsageError, match="Presets: none, yama"):
        preset("slelinux")


def test_the_enforcing_policy_has_rules_and_the_learning_one_has_none():
    assert "use_profile 3" in tomoyo_domain_policy(profile=3)
    assert "/excise/ext4/" in tomoyo_domain_policy(profile=3)
    assert "/excise/" not in tomoyo_domain_policy(profile=1)

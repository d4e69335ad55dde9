from __future__ import annotations

import pytest

from excise.errors import EffectError
from excise.lab.effects import Expectation, check_effects, require_effects


def _one(fact: str, rule: str, expected: str, facts: dict[str, str]) -> str:
    expectation = Expectation(fact=fact, rule=rule, expected=expected)  # type: ignore[arg-type]
    return expectation.check(facts, configuration="x").outcome


@pytest.mark.parametrize(
    ("rule", "expected", "got", "outcome"),
    [
        ("equals", "1", "1", "PASSED"),
        ("equals", "1", "11", "FAILED"),
        ("contains", "[integrity]", "none [integrity] confidentiality", "PASSED"),
        ("word", "ima", "lockdown,capability,ima", "PASSED"),
        ("word", "ima", "lockdown,imaginary", "FAILED"),
        ("at_least", "3", "3", "PASSED"),
        ("at_least", "3", "2", "FAILED"),
        ("at_least", "3", "no number", "FAILED"),
        ("at_most", "1", "2", "FAILED"),
        ("matches", "^refused", "refused: EPERM", "PASSED"),
        ("matches", "^refused", "allowed", "FAILED"),
        ("absent", "", "there", "FAILED"),
    ],
)
def test_a_rule_holds_only_for_what_it_says(rule, expected, got, outcome):
    assert _one("f", rule, expected, {"f": got}) == outcome


@pytest.mark.parametrize("rule", ["equals", "contains", "word", "at_least", "matches"])
def test_a_fact_that_was_not_reported_never_passes(rule):
    assert _one("f", rule, "", {}) == "FAILED"


def _effects(**changes):
    arguments = {
        "facts": {"cmdline": "quiet", "lsm": "yama"},
        "expectations": (Expectation(fact="lsm", rule="word", expected="yama"),),
        "cmdline": "quiet",
        "configuration": "yama",
        "dmesg": "",
    }
    facts = arguments.pop("facts")
    return check_effects(changes.pop("facts", facts), **{**arguments, **changes})


def test_all_answers_pass_for_a_guest_that_is_as_asked():
    assert {effect.outcome for effect in _effects()} == {"PASSED"}
    require_effects(_effects(), configuration="yama", kernel="6.12")


def test_a_parameter_the_kernel_does_not_know_fails():
    dmesg = 'Unknown kernel command line parameters "lockdwon=integrity", will be passed to user'
    with pytest.raises(EffectError, match="got lockdwon=integrity"):
        require_effects(_effects(dmesg=dmesg), configuration="yama", kernel="6.12")


def test_a_step_of_the_set_up_that_failed_is_the_message():
    effects = _effects(refused="the AppArmor profile was not loaded")
    with pytest.raises(EffectError, match="the AppArmor profile was not loaded"):
        require_effects(effects, configuration="apparmor", kernel="6.12")


def test_every_failed_check_is_listed():
    effects = _effects(facts={"cmdline": "loud", "lsm": "capability"})
    with pytest.raises(EffectError, match=r"cmdline.*got loud; guest lsm.*got capability"):
        require_effects(effects, configuration="yama", kernel="6.12")

"""Tables are held to their own sums, percentages and order, within what printing allows."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from excise.cost.lint import Rules, lint_published, lint_tables, read_rules, read_table
from excise.cost.lint.text_table import parse_number
from excise.errors import FormatError, SpecError, UsageError
from excise.evidence.checks import Check, Outcome
from excise.reference.published import names, published

REBOOT = """stage,off,fix
shutdown,1.1,21.0
boot to disk decryption,13.5,14.1
decrypt disk,3.9,4.2
boot with disk,10.2,27.4
complete,28.7,66.7
"""
LMBENCH = """| LMbench | None | SELinux | TOMOYO |
|---|---|---|---|
| stat | 1.67 | 2.65 (58 %) | 2.02 (21 %) |
| open/close | 2.49 | 3.62 (45 %) | 8.76 (252 %) |
| 0K create | 9.67 | 25.92 (168 %) | 16.00 (66 %) |
"""
TIMES = """task,statistic,off,fix
send,min,.25,.25
,avg,.25,.26
,max,.26,.27
"""


def _checks(text: str, rules: Rules | None = None, *others: str) -> list[Check]:
    tables = [read_table(each, name=f"t{n}.csv") for n, each in enumerate((text, *others))]
    results = lint_tables(tables, rules or read_rules(shipped=False))
    return [check for result in results for check in result.checks]


def _rules(tmp_path: Path, text: str) -> Rules:
    path = tmp_path / "rules.toml"
    path.write_text(text)
    return read_rules([path], shipped=False)


def test_a_total_is_the_sum_of_the_rows_within_rounding() -> None:
    (check,) = _checks(REBOOT)
    assert (check.id, check.outcome, check.got) == ("lint.parts", Outcome.PASSED, "2 of 2")
    # Four parts and the total, each printed to 0.1, may be off by 0.25 together.
    (check,) = _checks(REBOOT.replace("66.7", "66.9"))
    assert check.outcome is Outcome.PASSED
    (check,) = _checks(REBOOT.replace("66.7", "67.0"))
    assert (check.outcome, check.got) == (Outcome.FAILED, "1 of 2")
    assert "fix: 67 printed, the parts give 66.7" in check.detail


def test_percentages_in_parentheses_are_held_to_the_column_that_explains_them() -> None:
    selinux, tomoyo = _checks(LMBENCH)
    assert {selinux.outcome, tomoyo.outcome} == {Outcome.PASSED}
    assert selinux.expected == "% of SELinux = (SELinux - None) / None"
    broken, _ = _checks(LMBENCH.replace("45 %", "54 %"))
    assert (broken.outcome, broken.got) == (Outcome.FAILED, "2 of 3")
    assert broken.detail == "open/close: 54 % printed, 45.38 % computed"


def test_a_column_of_percentages_may_be_shares() -> None:
    text = "part,time,whole,time %\na,1.0,4.0,25\nb,3.0,4.0,75\nc,2.0,4.0,50\n"
    shares = [check for check in _checks(text) if check.id == "lint.percent"]
    assert [check.outcome for check in shares] == [Outcome.PASSED]
    assert shares[0].expected == "% of time % = time / whole"


def test_a_column_whose_numbers_have_percent_signs_needs_no_heading_that_says_so() -> None:
    text = "task,None,SELinux,overhead\nstat,1.67,2.65,58%\nopen,2.49,3.62,45%\n"
    text += "create,9.67,25.92,170%\n"
    (check,) = _checks(text)
    assert check.expected == "% of overhead = (SELinux - None) / None"
    assert (check.outcome, check.got) == (Outcome.FAILED, "2 of 3")
    assert check.detail == "create: 170 % printed, 168 % computed"
    (passed,) = _checks(text.replace("170%", "168 %"))
    assert passed.outcome is Outcome.PASSED


def test_percentages_that_nothing_explains_are_not_covered() -> None:
    text = "task,a,b,%\nx,1.0,2.0,17\ny,1.0,3.0,23\nz,1.0,9.0,31\n"
    (check,) = _checks(text)
    assert (check.id, check.outcome) == ("lint.percent", Outcome.NOT_COVERED)


def test_statistics_ascend_in_columns_and_in_rows() -> None:
    assert {check.outcome for check in _checks(TIMES)} == {Outcome.PASSED}
    wrong = [
        c for c in _checks(TIMES.replace(",max,.26", ",max,.21")) if c.outcome is Outcome.FAILED
    ]
    assert any("send, off: avg 0.25 > max 0.21" in check.detail for check in wrong)
    (column,) = _checks("hook,min,ave,max\ninode_create,97,105,90\n")[-1:]
    assert column.outcome is Outcome.FAILED


def test_a_tie_within_rounding_is_no_fall() -> None:
    (check,) = _checks("task,min,max\nx,.26,.26\ny,.26,.25\n")
    assert check.outcome is Outcome.PASSED


def test_counts_of_a_row_agree_across_tables() -> None:
    one, other = "task,n,t\nstat,100,1.5\n", "task,n,u\nstat,101,2.5\n"
    found = [check for check in _checks(one, None, other) if check.id == "lint.agree"]
    assert [check.outcome for check in found] == [Outcome.FAILED]
    assert found[0].detail == "stat: 100 in t0.csv, 101 in t1.csv"


def test_a_users_rule_replaces_guessing(tmp_path: Path) -> None:
    rules = _rules(tmp_path, '[[percent]]\ncolumn = "more"\nvalue = "b"\nbase = "a"\n')
    (check,) = _checks("task,a,b,more\nx,100,150,50\n", rules)
    assert (check.outcome, check.expected) == (Outcome.PASSED, "% of more = (b - a) / a")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[[percent]]\ncolumn = "c"\nbase = "nowhere"\n', "no table has 'nowhere'"),
        ('[[parts]]\ntotal = "nowhere"\n', "no table has 'nowhere'"),
        ('[[order]]\nnames = ["a", "nowhere"]\n', "no table has 'nowhere'"),
    ],
)
def test_a_rule_about_nothing_is_an_error_that_names_what_there_is(
    tmp_path: Path, text: str, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        _checks("task,a,c\nx,1,2\n", _rules(tmp_path, text))
    assert "There are: " in str(caught.value)


def test_a_rule_about_one_table_says_nothing_of_the_other(tmp_path: Path) -> None:
    rules = _rules(tmp_path, '[[parts]]\ntotal = "whole"\n')
    tables = [
        read_table("what,ms\na,1\nb,2\n", name="one"),
        read_table("what,ms\nx,1\ny,2\nwhole,3\n", name="two"),
    ]
    one, two = lint_tables(tables, rules)
    assert [check.outcome for check in one.checks] == [Outcome.NOT_COVERED]
    assert [check.outcome for check in two.checks] == [Outcome.PASSED]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[[identity]]\nid = 3\n", "id"),
        ("[[nothing]]\n", "nothing"),
        ('[[parts]]\ntotal = "a"\ntolerance = "3"\n', "is not a percentage"),
        ("[[parts", "rules.toml"),
    ],
)
def test_rules_that_are_none_name_file_and_reason(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        _rules(tmp_path, text)


@pytest.mark.parametrize("text", ["", "a,b\n", "a,b\nx,y\n", "| a |\n|---|\n"])
def test_what_is_no_table_is_a_format_error(text: str) -> None:
    with pytest.raises(FormatError, match=r"table|column of numbers"):
        read_table(text, name="t.csv")


@pytest.mark.parametrize(
    ("cell", "value", "half_step"),
    [("1.67", 1.67, 0.005), (".25", 0.25, 0.005), ("1,385,416", 1385416, 0.5),
     ("56 535", 56535, 0.5), ("-4", -4, 0.5), ("12.5 ms", 12.5, 0.05),
     ("31.6x", 31.6, 0.05), ("1.2e3", 1200, 50)],
)  # fmt: skip
def test_a_number_keeps_its_printed_precision(cell: str, value: float, half_step: float) -> None:
    number, percent = parse_number(cell)
    assert number is not None
    assert (number.value, percent) == (value, None)
    assert number.half_step == pytest.approx(half_step)


@pytest.mark.parametrize("cell", ["n/a", "-", "", "inode_create", "1.2.3", "10:20"])
def test_words_are_no_numbers(cell: str) -> None:
    assert parse_number(cell) == (None, None)


@given(st.text(max_size=200))
def test_any_text_is_a_table_or_a_format_error(text: str) -> None:
    try:
        table = read_table(text, name="t")
    except FormatError:
        return
    assert table.columns
    list(lint_tables([table], read_rules(shipped=False)))


def test_published_tables_agree_with_themselves() -> None:
    rules = read_rules(shipped=False)
    found = {
        name: {
            check.id: check.outcome
            for r in lint_published(name, published(name), rules)
            for check in r.checks
        }
        for name in names()
    }
    assert all(outcome is Outcome.PASSED for each in found.values() for outcome in each.values())
    assert found["lsmpmon-2008"]["lint.percent"] is Outcome.PASSED
    assert found["thesis-reboot"]["lint.parts"] is Outcome.PASSED
    assert found["thesis-tasks"]["lint.order"] is Outcome.PASSED
    assert found["tpm-hmac-2024"]["lint.covers"] is Outcome.PASSED

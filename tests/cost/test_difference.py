"""What explains published differences: the hooks of LSMPMON's tables."""

from __future__ import annotations

import pytest

from excise.cost.difference import difference_attributions
from excise.cost.explain import attributions
from excise.errors import UsageError
from excise.reference import load


def explained() -> dict[tuple[str, str], float]:
    rows = difference_attributions(load("lsmpmon-2008"))
    return {(row.task, row.configuration.split()[0]): row.explained for row in rows}


def test_shares_span_what_the_paper_itself_found() -> None:
    shares = explained()
    assert len(shares) == 24
    assert min(shares, key=shares.__getitem__) == ("open/close", "TOMOYO")
    assert max(shares, key=shares.__getitem__) == ("10K create", "TOMOYO")
    # 3 calls of inode_permission at .142 against .034 us, of 8.76 - 2.49 us
    assert shares["open/close", "TOMOYO"] == pytest.approx(3 * (142 - 34) / (8760 - 2490))
    # 2 x inode_permission and 1 x inode_getattr, of 2.65 - 1.67 us
    assert shares["stat", "SELinux"] == pytest.approx((2 * (152 - 34) + (124 - 35)) / 980)


def test_parts_and_remainder_are_the_difference() -> None:
    for row in difference_attributions(load("lsmpmon-2008")):
        assert sum(part.value for part in row.parts) == pytest.approx(row.total)
        assert sum(part.share for part in row.parts) == pytest.approx(1.0)


def test_a_sum_above_100_per_cent_is_flagged() -> None:
    flagged = {
        (row.task, row.configuration.split()[0])
        for row in difference_attributions(load("lsmpmon-2008"))
        if any("more than 100 %" in flag for flag in row.flags)
    }
    assert flagged == {key for key, share in explained().items() if share > 1.0}
    assert flagged == {("10K create", "TOMOYO")}


def test_a_hook_without_a_cost_is_named() -> None:
    (row,) = (
        row
        for row in difference_attributions(load("lsmpmon-2008"), task="stat")
        if row.configuration.startswith("LIDS")
    )
    assert any("inode_getattr" in flag for flag in row.flags)


def test_a_table_without_parts_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing has child events"):
        attributions(load("thesis-memory"))
    with pytest.raises(UsageError, match="there is no task 'walk'"):
        attributions(load("lsmpmon-2008"), task="walk")

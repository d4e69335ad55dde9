"""How runs are grouped where a configuration is entered by a boot."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from excise.campaign.schedule import schedule, visits
from excise.campaign.spec import Campaign, Configuration, Task
from excise.campaign.target_spec import LabTarget
from excise.lab.machine import Machine


def campaign(mode: str, *, blocks: int = 2) -> Campaign:
    return Campaign(
        configurations=[Configuration(name="none"), Configuration(name="yama")],
        tasks=[Task(name="a", workload="null"), Task(name="b", workload="pipe")],
        blocks=blocks,
        target=LabTarget(machine=Machine(mode=mode)),  # type: ignore[arg-type]
    )


def test_a_running_machine_is_visited_run_by_run() -> None:
    local = msgspec.structs.replace(campaign("count"), target=Campaign.__struct_defaults__[-1])
    found = list(visits(local, done=5))
    assert [visit.heads for visit in found] == [(head,) for head in schedule(local, start=5)]


@pytest.mark.parametrize("mode", ["count", "tpm"])
def test_every_run_is_in_exactly_one_visit_of_its_arm(mode: str) -> None:
    planned = campaign(mode)
    heads = [head for visit in visits(planned) for head in visit.heads]
    assert sorted(head.sequence for head in heads) == list(range(planned.runs))
    assert all(h.configuration == v.arm for v in visits(planned) for h in v.heads)
    assert {head.phase for head in heads if head.block == 0} == {"first"}
    assert {head.phase for head in heads if head.block > 0} == {"measured"}


def test_counting_guests_are_booted_once_and_their_rounds_are_the_blocks() -> None:
    planned = campaign("count")
    found = list(visits(planned))
    assert [visit.arm for visit in found] == planned.arms
    assert planned.arms == ["none", "none (A/A)", "none (A/A 2)", "yama"]
    assert [(h.block, h.task) for h in found[0].heads] == [
        (block, task) for block in range(3) for task in ("a", "b")
    ]


def test_timed_guests_are_booted_in_every_block_in_random_order() -> None:
    planned = campaign("tpm", blocks=20)
    found = list(visits(planned))
    assert planned.arms == ["none", "none (A/A)", "yama"]
    assert len(found) == 21 * 3
    assert all(len({head.block for head in visit.heads}) == 1 for visit in found)
    blocks = [visit.heads[0].block for visit in found]
    assert blocks == sorted(blocks)
    orders = {tuple(v.arm for v in found[n : n + 3]) for n in range(0, len(found), 3)}
    assert len(orders) > 3
    assert list(visits(planned)) == found


def test_what_the_journal_has_is_not_measured_again() -> None:
    timed = campaign("tpm")
    first, second, *_ = visits(timed)
    done = {head.sequence for head in first.heads} | {second.heads[0].sequence}
    left = next(iter(visits(timed, done=done)))
    assert left.heads == second.heads[1:]


def test_a_counting_guest_repeats_all_rounds_and_says_which_are_known() -> None:
    counted = campaign("count")
    first, second, *_ = visits(counted)
    known = {head.sequence for head in first.heads} | {second.heads[0].sequence}
    left = next(iter(visits(counted, done=known)))
    assert left.arm == second.arm
    assert left.heads == second.heads
    assert left.recorded == {second.heads[0].sequence}


def test_more_blocks_keep_the_numbers_of_the_first_ones() -> None:
    for mode in ("count", "tpm"):
        short = {h.sequence: h for v in visits(campaign(mode)) for h in v.heads}
        longer = {h.sequence: h for v in visits(campaign(mode, blocks=4)) for h in v.heads}
        assert {sequence: longer[sequence] for sequence in short} == short


def test_sequence_numbers_have_no_gap_within_a_visit_of_one_block() -> None:
    for visit in visits(campaign("tpm")):
        assert all(b.sequence - a.sequence == 1 for a, b in pairwise(visit.heads))

"""The order of runs."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from excise.campaign.schedule import environment_padding, schedule
from excise.campaign.spec import Campaign, Configuration, Task

names = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=4, unique=True)


def campaign(arms: list[str], tasks: list[str], **options: int) -> Campaign:
    return Campaign(
        configurations=[Configuration(name=name) for name in arms],
        tasks=[Task(name=name, command=["true"]) for name in tasks],
        **options,  # type: ignore[arg-type]
    )


@given(names, names, st.integers(1, 5), st.integers(0, 3), st.integers(0, 2**31))
def test_every_block_holds_every_task_under_every_arm_once(
    arms: list[str], tasks: list[str], blocks: int, warmup: int, seed: int
) -> None:
    planned = campaign(arms, tasks, blocks=blocks, warmup=warmup, seed=seed)
    heads = list(schedule(planned))
    assert len(heads) == planned.runs
    assert [head.sequence for head in heads] == list(range(len(heads)))
    once = Counter((head.block, head.task, head.configuration) for head in heads)
    assert set(once.values()) == {1}
    assert {head.configuration for head in heads} == {*arms, planned.twin_name}
    phases = Counter(head.phase for head in heads)
    per_block = (len(arms) + 1) * len(tasks)
    assert phases == Counter(
        {"first": per_block, "warmup": warmup * per_block, "measured": blocks * per_block}
    )


@given(st.integers(0, 200), st.integers(0, 2**31))
def test_a_resumed_order_is_the_rest_of_the_uninterrupted_one(start: int, seed: int) -> None:
    planned = campaign(["a", "b", "c"], ["x", "y"], blocks=20, warmup=2, seed=seed)
    assert list(schedule(planned, start=start)) == list(schedule(planned))[start:]


def test_arms_of_a_task_follow_each_other_within_a_block() -> None:
    heads = list(schedule(campaign(["a", "b"], ["x", "y", "z"], blocks=10)))
    for start in range(0, len(heads), 3):
        assert len({(head.block, head.task) for head in heads[start : start + 3]}) == 1


def test_order_differs_between_blocks_and_seeds() -> None:
    orders = {
        tuple(
            (head.task, head.configuration)
            for head in schedule(campaign(["a", "b"], ["x", "y"], blocks=1, seed=seed))
            if head.block == 1
        )
        for seed in range(50)
    }
    assert len(orders) > 20


def test_every_arm_comes_first_about_equally_often() -> None:
    planned = campaign(["a", "b"], ["x"], blocks=3000)
    heads = list(schedule(planned))
    first = Counter(heads[start].configuration for start in range(0, len(heads), 3))
    assert all(900 < count < 1100 for count in first.values()), first


def test_padding_is_by_seed_and_sequence_and_spread_over_a_page() -> None:
    lengths = [len(environment_padding(sequence, seed=1)) for sequence in range(2000)]
    assert lengths == [len(environment_padding(sequence, seed=1)) for sequence in range(2000)]
    assert min(lengths) < 100
    assert max(lengths) > 3990
    assert len({length // 256 for length in lengths}) == 16

"""The order of runs: randomised blocks, each with every task under every arm once.

The arms of one task follow each other within a block, so that what is paired is close in time; the
order of tasks, and of arms within a task, is random in every block. The order depends on nothing
but the seed, so that a resumed campaign goes on as if it had never stopped.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from excise.campaign.spec import BOOT, Campaign
from excise.capture.journal import Phase, RunHead


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """Runs under one configuration that follow each other without leaving it.

    Attributes:
        arm: Name of the configuration, or of an A/A arm.
        heads: Runs in order. They are of one block, or of all blocks where an arm is entered once.
        recorded: Sequence numbers among them that the journal holds already.
    """

    arm: str
    heads: tuple[RunHead, ...]
    recorded: frozenset[int] = frozenset()


def visits(campaign: Campaign, *, done: Collection[int] | int = 0) -> Iterator[Visit]:
    """Yield what is left of a campaign as visits, in order.

    Args:
        campaign: What to run.
        done: Sequence numbers in the journal, or how many of the first ones.
    """
    recorded = range(done) if isinstance(done, int) else done
    match campaign.target.entry:
        case "run":
            start = len(recorded)
            for head in schedule(campaign, start=start):
                yield Visit(arm=head.configuration, heads=(head,))
        case "block":
            for heads in _arms_by_block(campaign):
                left = tuple(head for head in heads if head.sequence not in recorded)
                if left:
                    yield Visit(arm=left[0].configuration, heads=left)
        case "boot":
            for heads in _arms_by_boot(campaign):
                left = tuple(head for head in heads if head.sequence not in recorded)
                if left:
                    yield Visit(arm=left[0].configuration, heads=left)
        case "once":
            yield from _arms_once(campaign, frozenset(recorded))


def _arms_by_block(campaign: Campaign) -> Iterator[list[RunHead]]:
    """Yield the runs of each arm in each block: arms, and tasks within them, in random order."""
    tasks = [task.name for task in campaign.tasks]
    sequence = 0
    for block in range(1 + campaign.warmup + campaign.blocks):
        order = random.Random(f"{campaign.seed}:{block}")
        for arm in order.sample(campaign.arms, len(campaign.arms)):
            heads = []
            for task in order.sample(tasks, len(tasks)):
                heads.append(_head(campaign, sequence, block=block, task=task, arm=arm))
                sequence += 1
            yield heads


def _arms_by_boot(campaign: Campaign) -> Iterator[list[RunHead]]:
    """Yield the runs of each boot: arms in random order within a block, and the tasks of each.

    All runs of a boot have the block's number: what is compared are boots, one value of each. The
    first run of a task after the boot is kept apart; the boot itself is one run, and counts.
    """
    boots = [task for task in campaign.tasks if task.workload == BOOT]
    others = [task for task in campaign.tasks if task.workload != BOOT]
    sequence = 0
    for block in range(campaign.warmup + campaign.blocks):
        order = random.Random(f"{campaign.seed}:{block}")
        usual: Phase = "warmup" if block < campaign.warmup else "measured"
        for arm in order.sample(campaign.arms, len(campaign.arms)):
            heads = []
            for task in [*boots, *order.sample(others, len(others))]:
                runs = campaign.runs_in_boot(task)
                for number in range(runs):
                    heads.append(
                        RunHead(
                            sequence=sequence,
                            block=block,
                            task=task.name,
                            configuration=arm,
                            run=block * runs + number,
                            phase="first" if number == 0 and runs > 1 else usual,
                        )
                    )
                    sequence += 1
            yield heads


def _arms_once(campaign: Campaign, recorded: frozenset[int]) -> Iterator[Visit]:
    """Yield a visit for each arm with its runs of all blocks, tasks in the campaign's order.

    A machine that repeats exactly needs no random order: what ran before would be part of the
    figure, and so it is the same for every arm. Sequence numbers go by block, so that a campaign
    of more blocks keeps those of the first ones.
    """
    per_block = len(campaign.arms) * len(campaign.tasks)
    for place, arm in enumerate(campaign.arms):
        heads = tuple(
            _head(
                campaign,
                block * per_block + place * len(campaign.tasks) + number,
                block=block,
                task=task.name,
                arm=arm,
            )
            for block in range(1 + campaign.warmup + campaign.blocks)
            for number, task in enumerate(campaign.tasks)
        )
        known = recorded & {head.sequence for head in heads}
        if len(known) < len(heads):
            yield Visit(arm=arm, heads=heads, recorded=known)


def _head(campaign: Campaign, sequence: int, *, block: int, task: str, arm: str) -> RunHead:
    return RunHead(
        sequence=sequence,
        block=block,
        task=task,
        configuration=arm,
        run=block,
        phase=block_phase(block, warmup=campaign.warmup),
    )


def block_phase(block: int, *, warmup: int) -> Phase:
    """Return the phase of all runs in a block: block 0 holds the first runs."""
    if block == 0:
        return "first"
    return "warmup" if block <= warmup else "measured"


def runs_of_block(
    block: int, *, tasks: Sequence[str], arms: Sequence[str], seed: int, warmup: int
) -> list[RunHead]:
    """Return the runs of one block in order; `run` equals the block's number."""
    # A string seed is hashed with SHA-512, the same in every Python.
    order = random.Random(f"{seed}:{block}")
    heads = []
    sequence = block * len(tasks) * len(arms)
    for task in order.sample(tasks, len(tasks)):
        for arm in order.sample(arms, len(arms)):
            heads.append(
                RunHead(
                    sequence=sequence,
                    block=block,
                    task=task,
                    configuration=arm,
                    run=block,
                    phase=block_phase(block, warmup=warmup),
                )
            )
            sequence += 1
    return heads


def schedule(campaign: Campaign, *, start: int = 0) -> Iterator[RunHead]:
    """Yield the campaign's runs in order, from sequence number `start` on.

    Args:
        campaign: What to run.
        start: First sequence number wanted; earlier runs are skipped without being built.
    """
    tasks = [task.name for task in campaign.tasks]
    arms = campaign.arms
    per_block = len(tasks) * len(arms)
    for block in range(start // per_block, 1 + campaign.warmup + campaign.blocks):
        heads = runs_of_block(
            block, tasks=tasks, arms=arms, seed=campaign.seed, warmup=campaign.warmup
        )
        yield from (head for head in heads if head.sequence >= start)


def environment_padding(sequence: int, *, seed: int) -> str:
    """Return the padding variable's value for a run: 0 to 4,095 bytes, by seed and sequence."""
    digest = hashlib.blake2b(f"{seed}:environment:{sequence}".encode(), digest_size=2).digest()
    return "x" * (int.from_bytes(digest, "big") % 4096)

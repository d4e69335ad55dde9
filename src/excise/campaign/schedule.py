"""The order of runs: randomised blocks, each with every task under every arm once.

The arms of one task follow each other within a block, so that what is paired is close in time; the
order of tasks, and of arms within a task, is random in every block. The order depends on nothing
but the seed, so that a resumed campaign goes on as if it had never stopped.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence

from excise.campaign.spec import Campaign
from excise.capture.journal import Phase, RunHead


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

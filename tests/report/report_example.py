"""A rich example report, built the way the program builds one, with hostile names on request."""

from __future__ import annotations

import math
import random
from typing import Any

from excise.report.model import (
    Cell,
    Chart,
    Column,
    Emphasis,
    Paragraph,
    Report,
    Section,
    Table,
)

HOSTILE = "</script><img src=x onerror=alert(1)>|`_\\x1b[31m\x1b[31m\u202e${7*7}\\input{x}&\"'"
"""A task name that tries every renderer at once."""

_TASKS = {
    "stat": (412.6, {"landlock": 1.187, "seccomp-64": 1.062, "none (A/A)": 1.001}),
    "open_close": (1210.4, {"landlock": 1.402, "seccomp-64": 1.031, "none (A/A)": 0.999}),
    "null_call": (61.25, {"landlock": 1.003, "seccomp-64": 1.344, "none (A/A)": 1.000}),
    "fork_execve": (512_400.0, {"landlock": 1.012, "seccomp-64": 1.004, "none (A/A)": 0.998}),
}


def build_example(*, task: str = "stat", points: int = 60) -> Report:
    """Return a report with every kind of block; `task` names the first task."""
    rows = [_estimate_row(name, task=task) for name in _TASKS]
    flat = [cell for group in rows for cell in group]
    return Report(
        title="Cost of Landlock and seccomp on four system calls",
        sections=[
            Section(heading="Comparison with none", blocks=_comparison(flat, task=task)),
            Section(
                heading="Distributions",
                blocks=[_distribution(task, points=points), _run_order(task, points=points)],
            ),
            Section(heading="Attribution of open_close", blocks=_attribution()),
            Section(heading="Checks", blocks=[_checks()]),
            Section(
                heading="Losses",
                blocks=[
                    Paragraph(text="Nothing was lost: 4,800 of 4,800 journal lines were read."),
                ],
            ),
            Section(
                heading="Method",
                blocks=[
                    Paragraph(
                        text="Randomised blocks hold every configuration once. The ratio is the "
                        "exponential of the median ln ratio over paired blocks, its interval the "
                        "sign test's; Holm's correction over 4 tasks. First runs stand apart."
                    ),
                    Paragraph(
                        text="excise run --blocks 60 campaign.toml\nexcise report capture/",
                        kind="command",
                    ),
                ],
            ),
        ],
        facts=[
            ("Kernel", "6.1.0-32-amd64 (Debian 6.1.129-1)"),
            ("Command line", "quiet lsm=landlock,lockdown,yama,integrity,apparmor,bpf audit=0"),
            ("CPU", "2 × AMD EPYC 7B13, governor not exposed, SMT on"),
            ("Clock", "CLOCK_MONOTONIC_RAW, resolution 1 ns, read in 25 ns"),
            ("excise", "0.1.0, capture sealed as sha256:9f86d081884c7d659a2feaa0c55ad015"),
        ],
        data={
            "schema": 1,
            "tasks": {task: {"ratio": 1.187, "ess": math.nan, "n": 60}},
            "ratios": (1.187, 1.062),
        },
    )


def _estimate_row(name: str, *, task: str) -> list[list[Cell]]:
    base, ratios = _TASKS[name]
    shown = task if name == "stat" else name
    marks: dict[str, Emphasis] = {"landlock": "bad", "seccomp-64": "warn", "none (A/A)": "muted"}
    rows = []
    for configuration, ratio in ratios.items():
        verdict = "equivalent within 1 %" if ratio < 1.01 else "costs"
        low, high = ratio - 0.004, ratio + 0.0045
        rows.append(
            [
                Cell(text=shown, value=shown),
                Cell(text=configuration, value=configuration),
                Cell(text="60", value=60),
                Cell(text="41", value=41.30000000000001),
                Cell(text=f"{base * ratio * 4.1:,.1f}", value=base * ratio * 4.1),
                Cell(text=f"{base * ratio * 0.97:,.1f}", value=base * ratio * 0.97),
                Cell(text=f"{base * ratio:,.1f}", value=base * ratio),
                Cell(text=f"{base * ratio * 1.31:,.1f}", value=base * ratio * 1.31),
                Cell(text=f"{100 * ratio - 100:+.1f} %", value=ratio),
                Cell(text=f"[{100 * low - 100:+.1f}, {100 * high - 100:+.1f}]"),
                Cell(
                    text=verdict,
                    value=verdict,
                    emphasis=marks[configuration] if verdict == "costs" else "good",
                ),
            ]
        )
    return rows


def _comparison(rows: list[list[Cell]], *, task: str) -> list[Any]:
    table = Table(
        name="comparison",
        caption="Time per operation, and the ratio to none over paired blocks.",
        columns=[
            Column(name="task", heading="task", align="left"),
            Column(name="configuration", heading="configuration", align="left"),
            Column(name="n", heading="n"),
            Column(name="ess", heading="ESS", optional=True),
            Column(name="first_ns", heading="first", unit="ns", optional=True),
            Column(name="min_ns", heading="min", unit="ns", optional=True),
            Column(name="median_ns", heading="median", unit="ns"),
            Column(name="p95_ns", heading="p95", unit="ns", optional=True),
            Column(name="ratio", heading="change of median", value_unit="ratio"),
            Column(name="interval", heading="95 % interval", unit="%"),
            Column(name="verdict", heading="verdict", align="left"),
        ],
        rows=rows,
        notes=[
            "ESS: effective sample size after autocorrelation.",
            "Probe cost 0.9 ns a call is subtracted.",
        ],
    )
    ratios = [
        {
            "label": f"{task if name == 'stat' else name} · {configuration}",
            "ratio": ratio,
            "low": ratio - 0.004,
            "high": ratio + 0.0045,
            "verdict": "equivalent within 1 %" if ratio < 1.01 else "costs",
            "margin_low": 0.99,
            "margin_high": 1.01,
        }
        for name, (_, per) in _TASKS.items()
        for configuration, ratio in per.items()
    ]
    return [
        Paragraph(
            text=f"{task}() +18.7 % [+18.3, +19.2] with landlock (paired, 60 blocks, ESS 41; A/A "
            "arm +0.1 % [-0.3, +0.5]; margin 1 %: costs; probe cost 0.9 ns/call subtracted; "
            "configuration verified: landlock ABI 2)",
            kind="result",
        ),
        Paragraph(
            text="The CPU frequency governor is not visible on this host, so drift may be "
            "frequency scaling.",
            kind="warning",
        ),
        table,
        Chart(
            name="ratios",
            kind="interval",
            title="Change against none",
            rows=ratios,
            unit="1 = no change",
            axis="ratio to none",
            caption="Ratio of each configuration to none with its 95 % interval and the margin.",
        ),
    ]


def _samples(task: str, *, points: int) -> list[dict[str, Any]]:
    rng = random.Random(7)
    rows = []
    for configuration, ratio in {"none": 1.0, "landlock": 1.187, "seccomp-64": 1.062}.items():
        for run in range(points):
            value = 412.6 * ratio * rng.lognormvariate(0.0, 0.02) * (1 + 0.0004 * run)
            first = run == 0
            rows.append(
                {
                    "run": run + 1,
                    "configuration": configuration,
                    "value": value * 6.7 if first else value,
                    "phase": "first" if first else "rest",
                }
            )
    return rows


def _distribution(task: str, *, points: int) -> Chart:
    return Chart(
        name="distribution-stat",
        kind="distribution",
        title=f"Time of {task}",
        rows=_samples(task, points=points),
        unit="ns",
        axis="time per operation",
        caption=f"Each run of {task} by configuration; first runs stand apart.",
    )


def _run_order(task: str, *, points: int) -> Chart:
    return Chart(
        name="order-stat",
        kind="run_order",
        title=f"{task} in the order of its runs",
        rows=_samples(task, points=points),
        unit="ns",
        axis="time per operation",
        caption=f"Time of {task} against the run number; a slope is drift of the machine.",
    )


def _attribution() -> list[Any]:
    parts = [
        ("open_close", 0.0, 1697.0, "total", "100 %"),
        ("security_file_open", 0.0, 402.0, "child", "23.7 %"),
        ("path_lookup", 402.0, 1021.5, "child", "36.5 %"),
        ("probe cost", 1021.5, 1111.5, "probe", "5.3 %"),
        ("remainder", 1111.5, 1697.0, "remainder", "34.5 %"),
    ]
    table = Table(
        name="attribution",
        columns=[
            Column(name="part", heading="part", align="left"),
            Column(name="mean_ns", heading="mean", unit="ns"),
            Column(name="share", heading="share of the total", unit="%", value_unit="1"),
        ],
        rows=[
            [
                Cell(text=label, value=label, emphasis="muted" if role == "probe" else "none"),
                Cell(text=f"{end - start:,.1f}", value=end - start),
                Cell(text=share, value=(end - start) / 1697.0),
            ]
            for label, start, end, role, share in parts
        ],
    )
    chart = Chart(
        name="attribution-open-close",
        kind="waterfall",
        title="Where the time of open_close goes",
        rows=[
            {
                "label": label,
                "start": start,
                "end": end,
                "role": role,
                "text": f"{end - start:,.1f} ns, {share}",
            }
            for label, start, end, role, share in parts
        ],
        unit="ns",
        axis="time per operation",
        caption="Children, probe cost and remainder add up to the mean of open_close, 1,697 ns.",
    )
    return [table, chart]


def _checks() -> Table:
    return Table(
        name="checks",
        caption="Did each configuration take effect?",
        columns=[
            Column(name="id", heading="check", align="left"),
            Column(name="outcome", heading="outcome", align="left"),
            Column(name="expected", heading="expected", align="left"),
            Column(name="got", heading="got", align="left"),
        ],
        rows=[
            [
                Cell(text="effect.landlock", value="effect.landlock"),
                Cell(text="PASSED", value="PASSED", emphasis="good"),
                Cell(text="landlock_create_ruleset gives ABI ≥ 1"),
                Cell(text="2", value=2),
            ],
            [
                Cell(text="effect.seccomp", value="effect.seccomp"),
                Cell(text="FAILED", value="FAILED", emphasis="bad"),
                Cell(text="Seccomp: 2 in the status of the process"),
                Cell(text="Seccomp: 0"),
            ],
            [
                Cell(text="host.governor", value="host.governor"),
                Cell(text="NOT_COVERED", value="NOT_COVERED", emphasis="warn"),
                Cell(text="one governor on all CPUs"),
                Cell(text="not exposed"),
            ],
        ],
    )

"""Reports on self-tests: what a start costs, which tests it runs, and does caching help."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

from excise.cost.explain import attributions
from excise.cost.selftest import (
    CachedAnswer,
    FamilyCost,
    StartCost,
    TestCost,
    UseCost,
    cached_answers,
    family_costs,
    start_costs,
    test_costs,
    use_costs,
)
from excise.cost.selftest_counted import CountedCost
from excise.cost.summary import summaries
from excise.events.dataset import Dataset
from excise.report import pictures, tables
from excise.report.facts import facts_of
from excise.report.model import (
    Block,
    Cell,
    Column,
    Paragraph,
    Report,
    Section,
    Table,
    file_safe,
)
from excise.units import counted, format_ratio, format_ratio_beside

SMALLEST_SHARE: Final = 0.005


def build_bench(
    dataset: Dataset,
    *,
    on: str,
    cached: str,
    present: Sequence[Any] = (),
    kernel: Any = None,
    boots: Sequence[Any] = (),
    profiles: Sequence[Any] = (),
    counted: Sequence[CountedCost] = (),
    beside: Sequence[Dataset] = (),
) -> Report:
    """Return what `selftest bench` measured.

    Args:
        dataset: Its capture.
        on: Configuration with self-tests run on load.
        cached: Configuration with the status of an earlier run cached.
        present: Libraries that were looked for, whether they are here or not.
        kernel: What the kernel tells of its own self-tests, or None.
        boots: Kernels that were booted in guests, in several states; the first is the baseline.
        profiles: Instructions of starts by shared object, as callgrind counted them.
        counted: Loads that were counted on emulated machines.
        beside: Published figures to print beside.
    """
    starts, tests = start_costs(dataset), test_costs(dataset)
    families, uses = family_costs(dataset), use_costs(dataset)
    answers = cached_answers(dataset, on=on, cached=cached)
    first = _first_section(dataset, starts, tests, families, answers, on=on)
    off = dataset.manifest.baseline or ""
    tabled = [
        ("First use and second use", uses and _uses_table(uses, off=off, on=on)),
        ("Loads in instructions", counted and _counted_table(counted)),
        ("Self-tests of a kernel", boots and _boots_table(boots)),
        ("Instructions of a start", profiles and _profiles_table(profiles)),
    ]
    return Report(
        title=dataset.manifest.title,
        sections=[
            first,
            *(Section(heading=name, blocks=[each]) for name, each in tabled if each),
            *_looked_for(present, kernel),
            *(_beside(other) for other in beside),
        ],
        facts=facts_of([dataset], private=False),
        data={
            "starts": _plain(starts),
            "tests": [{**row, "first_use_ns": test.first_use_ns} for row, test in _pairs(tests)],
            "families": _plain(families),
            "uses": _plain(uses),
            "cached": [_plain_answer(each) for each in answers],
            "libraries": _plain(present),
            "counted": [_plain_count(each) for each in counted],
            "profiles": [_plain_profile(each) for each in profiles],
            "kernel": dataclasses.asdict(kernel) if kernel is not None else None,
            "boots": [_plain_boot(each) for each in boots],
        },
    )


def _first_section(
    dataset: Dataset,
    starts: Sequence[StartCost],
    tests: Sequence[TestCost],
    families: Sequence[FamilyCost],
    answers: Sequence[CachedAnswer],
    *,
    on: str,
) -> Section:
    """Return what a start costs: in sentences, tables, and a picture of each library."""
    blocks: list[Block] = [Paragraph(text=line, kind="result") for line in _sentences(starts, on)]
    blocks += [Paragraph(text=_answer(each), kind="result") for each in answers]
    blocks += [Paragraph(text=note) for note in dataset.manifest.notes]
    blocks.append(_starts_table(starts))
    if families:
        blocks.append(_families_table([each for each in families if each.configuration == on]))
    blocks += _tests_tables(tests, on)
    tasks = {start.task for start in starts}
    for each in attributions(dataset) if starts else ():
        if each.configuration == on and each.task in tasks:
            blocks += pictures.waterfalls([each])
    return Section(heading="Self-tests at start", blocks=blocks)


def _plain_answer(answer: CachedAnswer) -> dict[str, Any]:
    ratio = answer.ratio
    return {
        "task": answer.task,
        "helps": answer.helps,
        "tests": answer.tests,
        "cached_tests": answer.cached_tests,
        "ratio": ratio.ratio if ratio else None,
        "low": ratio.low if ratio else None,
        "high": ratio.high if ratio else None,
    }


def _plain_count(count: CountedCost) -> dict[str, Any]:
    names = ("machine", "version", "configuration", "total", "tests", "in_tests", "remainder_share")
    return {**{name: getattr(count, name) for name in names}, "families": dict(count.families)}


def _plain_profile(profile: Any) -> dict[str, Any]:
    return {
        "library": profile.library,
        "forced": profile.forced,
        "total": profile.total,
        "objects": dict(profile.objects),
        "self_tests": _plain(profile.self_tests),
    }


def _plain_boot(boot: Any) -> dict[str, Any]:
    names = ("release", "state", "init_instructions", "setup_instructions")
    return {
        **{name: getattr(boot, name) for name in names},
        "tests": dataclasses.asdict(boot.tests),
    }


def _sentences(starts: Sequence[StartCost], on: str) -> list[str]:
    by_task = {each.task: each for each in starts if each.configuration == on}
    return [
        f"{each.task}: {counted(each.tests, 'self-test takes', 'self-tests take')} "
        f"{tables.shown(each.tests_ns, 'ns')} of "
        f"{tables.shown(each.total_ns, 'ns')} (medians of {each.n} starts); remainder "
        f"{each.remainder_share:.1%}."
        for each in by_task.values()
    ]


def _answer(answer: CachedAnswer) -> str:
    word = {True: "yes", False: "no", None: "cannot be told"}[answer.helps]
    text = (
        f"Does the cached status help ({answer.task})? {word}: "
        f"{counted(answer.cached_tests, 'self-test')} "
    )
    text += f"run with it, {answer.tests} without"
    if answer.ratio is None:
        return text + "."
    low, high = answer.ratio.low, answer.ratio.high
    text += f"; a start takes {format_ratio_beside(answer.ratio.ratio, low, high)}"
    if low is not None:
        text += f" {tables.interval_text(low, high)}"
    return text + " with it."


def _starts_table(starts: Sequence[StartCost]) -> Table:
    fields = ("total_ns", "tests_ns", "steps_ns", "remainder_ns")
    rows = [
        [
            _word(each.task),
            _word(each.configuration),
            Cell(text=str(each.n), value=each.n),
            Cell(text=str(each.tests), value=each.tests),
            *(tables.value_cell(getattr(each, name), "ns") for name in fields),
            Cell(
                text=f"{each.remainder_share:.1%}",
                value=each.remainder_share,
                emphasis="warn" if each.tests and each.remainder_share > 0.1 else "none",
            ),
            *(
                tables.value_cell(getattr(each, name), "ns")
                for name in ("before_ns", "between_ns", "after_ns")
            ),
        ]
        for each in starts
    ]
    return Table(
        name="starts",
        columns=[
            Column(name="task", heading="Start", align="left"),
            Column(name="configuration", heading="Configuration", align="left"),
            Column(name="n", heading="n"),
            Column(name="tests", heading="Tests"),
            Column(name="total", heading="Whole", value_unit="ns"),
            Column(name="in_tests", heading="In tests", value_unit="ns"),
            Column(name="steps", heading="Steps", value_unit="ns"),
            Column(name="remainder", heading="Remainder", value_unit="ns"),
            Column(name="share", heading="of whole"),
            Column(name="before", heading="Before first", value_unit="ns", optional=True),
            Column(name="between", heading="Between", value_unit="ns", optional=True),
            Column(name="after", heading="After last", value_unit="ns", optional=True),
        ],
        rows=rows,
        caption="One start in a process of its own; medians. The remainder is what no self-test "
        "and no step explains",
        notes=[
            "Steps: configuration, and what else runs before the step that holds the tests.",
            "Before first: dlopen and the module's entry.",
        ],
    )


def _families_table(families: Sequence[FamilyCost]) -> Table:
    shown = [each for each in families if each.share >= SMALLEST_SHARE]
    return Table(
        name="families",
        columns=[
            Column(name="task", heading="Start", align="left"),
            Column(name="family", heading="Algorithm", align="left"),
            Column(name="tests", heading="Tests"),
            Column(name="time", heading="Time", value_unit="ns"),
            Column(name="share", heading="Share"),
        ],
        rows=[
            [
                _word(each.task),
                _word(each.family),
                Cell(text=str(each.tests), value=each.tests),
                tables.value_cell(each.load_ns, "ns"),
                Cell(text=f"{each.share:.1%}", value=each.share),
            ]
            for each in shown
        ],
        caption="Share of each algorithm in a start with self-tests on; medians over starts",
        notes=_left_out(len(families) - len(shown)),
    )


def _tests_tables(tests: Sequence[TestCost], on: str) -> list[Table]:
    """Return a table for each start with its tests under the configuration that is on."""
    wanted = [each for each in tests if each.configuration == on]
    return [
        _tests_table(task, [each for each in wanted if each.task == task])
        for task in dict.fromkeys(each.task for each in wanted)
    ]


def _tests_table(task: str, tests: Sequence[TestCost]) -> Table:
    shown = [each for each in tests if each.share >= SMALLEST_SHARE]
    again = any(each.again_ns is not None for each in tests)
    columns = [
        Column(name="test", heading="Self-test", align="left"),
        Column(name="count", heading="Times"),
        Column(name="load", heading="At start", value_unit="ns"),
        Column(name="share", heading="Share"),
    ]
    notes = _left_out(len(tests) - len(shown))
    if again:
        columns.append(Column(name="again", heading="Again", value_unit="ns"))
        columns.append(Column(name="first_use", heading="First use", value_unit="ns"))
        text = "First use: at start less again; tables, seeding and page faults, not the test."
        notes = [text, *notes]
    rows = [
        [
            _word(each.event),
            Cell(text=str(each.count), value=each.count),
            tables.value_cell(each.load_ns, "ns"),
            Cell(text=f"{each.share:.1%}", value=each.share),
            tables.value_cell(each.again_ns, "ns"),
            tables.value_cell(each.first_use_ns, "ns"),
        ][: len(columns)]
        for each in shown
    ]
    caption = f"{task}: each self-test at the start"
    if again:
        caption += ", and when all are run again in the same process"
    return Table(
        name=file_safe(f"tests-{task}"), columns=columns, rows=rows, caption=caption, notes=notes
    )


def _left_out(count: int) -> list[str]:
    if not count:
        return []
    return [f"Without {counted(count, 'row')} below {SMALLEST_SHARE:.1%}, which --json has."]


def _uses_table(uses: Sequence[UseCost], *, off: str, on: str) -> Table:
    """Return each operation's first and second use, with self-tests off and on side by side."""
    rows = {(each.operation, each.configuration): each for each in uses}
    operations = dict.fromkeys(each.operation for each in uses if each.configuration == on)
    return Table(
        name="uses",
        columns=[
            Column(name="operation", heading="Operation", align="left"),
            Column(name="off_first", heading="Off: first", value_unit="ns"),
            Column(name="off_second", heading="second", value_unit="ns"),
            Column(name="on_first", heading="On: first", value_unit="ns"),
            Column(name="on_second", heading="second", value_unit="ns"),
            Column(name="tests", heading="Self-tests within", align="left"),
        ],
        rows=[
            [
                _word(name),
                *(
                    tables.value_cell(getattr(rows.get((name, state)), field, None), "ns")
                    for state in (off, on)
                    for field in ("first_ns", "second_ns")
                ),
                _word(_within(rows[name, on])),
            ]
            for name in operations
        ],
        caption="Operations after the start, each done twice: a deferred self-test runs within the "
        "first use only, a conditional one within every use",
        notes=["The time of an RSA key is chance: it searches for primes."],
    )


def _within(use: UseCost) -> str:
    """Return the self-tests of an operation, with the uses they ran in."""
    every = [name for name in use.tests if name in use.again]
    first = [f"{name} (first only)" for name in use.tests if name not in use.again]
    return ", ".join([*first, *every]) or "–"


def _boots_table(boots: Sequence[Any]) -> Table:
    base = boots[0].init_instructions
    return Table(
        name="boots",
        columns=[
            Column(name="release", heading="Kernel", align="left"),
            Column(name="state", heading="State", align="left"),
            Column(name="init", heading="To first process", value_unit="1"),
            Column(name="change", heading="Change"),
            Column(name="setup", heading="Set-up after it", value_unit="1"),
            Column(name="passed", heading="Passed"),
            Column(name="unknown", heading="Not tested"),
            Column(name="logged", heading="In the log"),
        ],
        rows=[
            [
                _word(boot.release),
                _word(boot.state),
                tables.value_cell(boot.init_instructions, "1"),
                Cell(
                    text=format_ratio(boot.init_instructions / base),
                    value=boot.init_instructions / base,
                ),
                tables.value_cell(boot.setup_instructions, "1"),
                _number(boot.tests.selftests.get("passed", 0)),
                _number(boot.tests.selftests.get("unknown", 0)),
                _number(len(boot.tests.logged)),
            ]
            for boot in boots
        ],
        caption="Instructions of a boot in a guest, counted",
        notes=[
            "As usual: the kernel's default, FIPS off. The log names tests in FIPS mode only.",
            "Self-tests that run beside the set-up are counted there, later ones nowhere.",
        ],
    )


def _profiles_table(profiles: Sequence[Any]) -> Table:
    """Return where the instructions of each start went; objects of a start sum to its total."""
    rows = []
    for each in profiles:
        largest = list(each.objects.items())[:3]
        rest = each.total - sum(count for _, count in largest)
        parts = [f"{name} {count / each.total:.1%}" for name, count in largest]
        symbols = ", ".join(f"{symbol.name} {symbol.inclusive:,}" for symbol in each.self_tests[:3])
        rows.append(
            [
                _word(each.library),
                _word("forced" if each.forced else "off"),
                tables.value_cell(each.total, "1"),
                _word(", ".join([*parts, f"rest {rest / each.total:.1%}"])),
                _word(symbols or "–"),
            ]
        )
    return Table(
        name="profiles",
        columns=[
            Column(name="library", heading="Library", align="left"),
            Column(name="state", heading="FIPS mode", align="left"),
            Column(name="instructions", heading="Instructions", value_unit="1"),
            Column(name="objects", heading="Dearest objects", align="left"),
            Column(name="symbols", heading="Self-tests by name", align="left", optional=True),
        ],
        rows=rows,
        caption="By callgrind: names of functions where the library kept them, else its objects",
        notes=["Off and forced alike: the switch makes no self-test run."],
    )


def _counted_table(counted: Sequence[CountedCost]) -> Table:
    rows = []
    for each in counted:
        dearest = list(each.families.items())[:3]
        shares = ", ".join(f"{name} {count / each.total:.1%}" for name, count in dearest)
        rows.append(
            [
                _word(f"{each.machine}, {each.version}"),
                _word(each.configuration),
                _number(each.tests),
                tables.value_cell(each.total, "1"),
                tables.value_cell(each.in_tests, "1"),
                Cell(text=f"{each.remainder_share:.1%}", value=each.remainder_share),
                _word(shares or "–"),
            ]
        )
    return Table(
        name="counted",
        columns=[
            Column(name="machine", heading="Machine", align="left"),
            Column(name="configuration", heading="Configuration", align="left"),
            Column(name="tests", heading="Tests"),
            Column(name="total", heading="Whole", value_unit="1"),
            Column(name="in_tests", heading="In tests", value_unit="1"),
            Column(name="remainder", heading="Remainder"),
            Column(name="families", heading="Dearest algorithms", align="left"),
        ],
        rows=rows,
        caption="Loads of the FIPS provider under QEMU's user emulation, in instructions executed",
        notes=["Instructions do not depend on other load of this machine; they are no time."],
    )


def _number(value: int) -> Cell:
    return Cell(text=str(value), value=value)


def _looked_for(present: Sequence[Any], kernel: Any) -> list[Section]:
    blocks: list[Block] = []
    if present:
        columns = [
            Column(name="library", heading="Library", align="left"),
            Column(name="version", heading="Version", align="left"),
            Column(name="state", heading="State", align="left"),
            Column(name="method", heading="Children found by", align="left"),
            Column(name="note", heading="Note", align="left"),
        ]
        rows = [
            [_word(getattr(each, column.name) or "–") for column in columns] for each in present
        ]
        blocks.append(Table(name="libraries", columns=columns, rows=rows, caption="Looked for"))
    if kernel is not None:
        states = ", ".join(f"{count} {state}" for state, count in sorted(kernel.selftests.items()))
        switch = {None: "has no FIPS switch", True: "is in FIPS mode", False: "is not in FIPS mode"}
        text = (
            f"The kernel {switch[kernel.fips_enabled]}; "
            f"{counted(kernel.algorithms, 'algorithm')} in "
        )
        text += (
            f"/proc/crypto, self-test {states or 'not told'}; "
            f"{counted(len(kernel.logged), 'self-test')} "
        )
        blocks.append(Paragraph(text=text + "in its log."))
    return [Section(heading="Libraries and kernel", blocks=blocks)] if blocks else []


def _beside(other: Dataset) -> Section:
    rows = [
        row
        for row in summaries(other)
        if row.layer == "task"
        and row.metric in ("duration", "wall_ns")
        and not row.task.startswith("openssl rand")
    ]
    sources = "; ".join(
        f"{each.title} {each.url}".strip() for each in other.manifest.sources if each.title
    )
    table = tables.summary_table(rows, name=f"beside-{other.name.replace(':', '-')}")
    return Section(
        heading=f"Beside it: {other.manifest.title}",
        blocks=[Paragraph(text=f"Source: {sources}"), table],
    )


def _word(text: str) -> Cell:
    return Cell(text=text, value=text)


def _plain(rows: Sequence[Any]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(row) for row in rows]


def _pairs(tests: Sequence[TestCost]) -> list[tuple[dict[str, Any], TestCost]]:
    return [(dataclasses.asdict(test), test) for test in tests]

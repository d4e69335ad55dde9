"""Building reports: results in, one model out, which every renderer prints."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from excise.cost.attribution import Attribution
from excise.cost.call_tree import is_trace
from excise.cost.compared import Comparison, Comparisons
from excise.cost.comparison import compare_configurations
from excise.cost.explain import attributions
from excise.cost.levels import LevelComparison
from excise.cost.series import SeriesReader
from excise.cost.summary import TaskSummary, step_summaries, summaries, summary_of
from excise.cost.trend import stabilities
from excise.errors import UsageError
from excise.events.dataset import Dataset
from excise.evidence.checks import AppraisalResult
from excise.report import pictures, tables
from excise.report.evidence import evidence_section
from excise.report.facts import facts_in_short, facts_of
from excise.report.levels import level_rows, level_sections
from excise.report.model import Block, Chart, Paragraph, Report, Section, file_safe
from excise.report.stacks import stack_charts
from excise.report.steps import step_sections
from excise.report.trace import trace_data, trace_sections, untraced
from excise.report.trends import trend_sections
from excise.report.untotalled import untotalled_sections
from excise.report.verdicts import attribution_brief, comparison_brief, headline
from excise.stats import AAOutcome, Verdict
from excise.units import counted, format_ratio_beside

SENTENCES: Final = 5


def build_show(dataset: Dataset, *, metric: str | None = None, private: bool = False) -> Report:
    """Return what a capture holds: summaries, memory, effects, losses, facts.

    Raises:
        UsageError: If no run has the metric.
    """
    reader = SeriesReader(dataset)
    series = list(reader.read(metric=metric))
    rows = summaries(dataset, metric=metric, series=series)
    verdicts = list(stabilities(series))
    loose = [*untotalled_sections(dataset), *trace_sections(dataset)]
    told = untraced(rows, dataset)
    summary = _summary_blocks(told, metric) if told or not loose else []
    steps = _steps(dataset)
    sections = [
        Section(heading="Summary", blocks=[*_held(dataset), *_warnings(dataset), *summary]),
        *loose,
        *step_sections(steps),
        *trend_sections(rows, verdicts),
        *_memory(reader, metric, rows),
        *_entries(reader, metric),
        *_notes(dataset),
        *_proof(dataset),
    ]
    return Report(
        title=dataset.manifest.title,
        sections=[section for section in sections if section.blocks],
        facts=facts_of([dataset], private=private),
        data={
            "capture": _identity(dataset),
            "summaries": _plain(rows),
            **({"steps": _plain(steps)} if steps else {}),
            "stability": _plain(verdicts),
            **trace_data(dataset),
        },
    )


def build_comparison(
    found: Comparisons, *datasets: Dataset, levels: Sequence[LevelComparison] = ()
) -> Report:
    """Return comparisons as a report: the default lines, the table, the A/A arm.

    Args:
        found: What was compared.
        datasets: What it was found in, the baseline first.
        levels: Cross-checks by bootstrap, where asked for.
    """
    title = " against ".join(dataset.manifest.title for dataset in datasets)
    sections = [
        _comparison_section(found, datasets),
        *level_sections(levels),
        *_notes(*datasets),
        *_proof(*datasets, in_short=True),
    ]
    data = {"captures": [_identity(each) for each in datasets], **_comparison_data(found)}
    if levels:
        data["bootstrap"] = level_rows(levels)
    return Report(
        title=title,
        sections=sections,
        facts=facts_of(datasets, private=False),
        facts_in_short=facts_in_short(datasets),
        brief=comparison_brief(found, title=title),
        data=data,
    )


def build_attribution(
    *datasets: Dataset,
    task: str | None = None,
    baseline: str | None = None,
    configuration: str | None = None,
    calls: Mapping[str, Mapping[str, float]] | None = None,
) -> Report:
    """Return the attribution of totals and differences as a report; see `attributions`.

    Raises:
        UsageError: If there is no such task or configuration, or nothing to attribute.
    """
    found = attributions(
        *datasets, task=task, baseline=baseline, configuration=configuration, calls=calls
    )
    identities = [_identity(dataset) for dataset in datasets]
    title = " and ".join(dataset.manifest.title for dataset in datasets)
    return Report(
        title=title,
        sections=[
            _attribution_section(found),
            *_notes(*datasets),
            *_proof(*datasets, in_short=True),
        ],
        facts=facts_of(datasets, private=False),
        facts_in_short=facts_in_short(datasets),
        brief=attribution_brief(found, title=title),
        data={
            **({"capture": identities[0]} if len(datasets) == 1 else {"captures": identities}),
            "attributions": _plain(found),
        },
    )


def build_report(
    dataset: Dataset,
    *,
    beside: Sequence[Dataset] = (),
    appraisals: Sequence[AppraisalResult] = (),
    baseline: str | None = None,
    metric: str | None = None,
    margin_ratio: float = 0.01,
    private: bool = False,
) -> Report:
    """Return the whole report of a capture.

    Args:
        dataset: The capture.
        beside: Captures or references printed beside it, each in a section of its own.
        appraisals: What the evidence beside the capture proves.
        baseline: Configuration that others are compared with; the campaign's own by default.
        metric: Metric of the runs; a task's own by default.
        margin_ratio: Difference that would not matter: 0.01 is 1 %.
        private: Whether to print facts that name the host.

    Raises:
        UsageError: If no run has the metric, or there is nothing to compare with the baseline
            that was asked for.
    """
    reader = SeriesReader(dataset)
    series = list(reader.read(metric=metric))
    rows = summaries(dataset, metric=metric, series=series)
    sections: list[Section] = _of_its_kind(dataset)
    data: dict[str, Any] = {"capture": _identity(dataset)}
    found = _compared(dataset, baseline, metric, margin_ratio)
    brief = None
    if found is not None:
        sections.append(_comparison_section(found, [dataset]))
        data |= _comparison_data(found)
        brief = comparison_brief(found, title=dataset.manifest.title)
    blocks: list[Block] = [] if found is not None else _warnings(dataset)
    loose = [*untotalled_sections(dataset), *trace_sections(dataset, pictures=True)]
    told = untraced(rows, dataset)
    summary = _summary_blocks(told, metric) if told or not loose else []
    data |= trace_data(dataset)
    steps = _steps(dataset)
    sections += [Section(heading="Runs", blocks=[*blocks, *summary]), *loose, *step_sections(steps)]
    data["summaries"] = _plain(rows)
    if steps:
        data["steps"] = _plain(steps)
    verdicts = list(stabilities(series))
    data["stability"] = _plain(verdicts)
    sections += trend_sections(rows, verdicts)
    sections += _memory(reader, metric, rows)
    sections += _entries(reader, metric)
    explained = _attributed(dataset, baseline)
    if with_parts := [each for each in explained if each.has_children]:
        sections.append(_attribution_section(with_parts))
    elif explained:
        sections.append(
            Section(heading="What explains the totals", blocks=[_only_probe(explained)])
        )
    if explained:
        data["attributions"] = _plain(explained)
    if stacked := list(stack_charts(dataset)):
        sections.append(Section(heading="Steps by run number", blocks=stacked))
    charts: list[Chart] = list(pictures.run_charts(dataset, metric=metric))
    if charts:
        sections.append(Section(heading="Every run", blocks=charts))
    sections += _notes(dataset)
    sections += _proof(dataset)
    sections += [evidence_section(each) for each in appraisals]
    if appraisals:
        data["evidence"] = [each.as_dict() for each in appraisals]
    for other in beside:
        sections.append(_beside(other))
        data.setdefault("beside", []).append(
            {"capture": _identity(other), "summaries": _plain(summaries(other))}
        )
    return Report(
        title=dataset.manifest.title,
        sections=[section for section in sections if section.blocks],
        facts=facts_of([dataset], private=private),
        brief=brief,
        data=data,
    )


def _of_its_kind(dataset: Dataset) -> list[Section]:
    """Return the sections that captures of one kind alone have: those of a TPM's bench."""
    from excise.cost.tpm_record import is_bench

    if not is_bench(dataset.manifest):
        return []
    from excise.report.tpm import bench_sections

    return bench_sections(dataset)


def result_line(row: Comparison, *, effects: Iterable[str] = ()) -> str:
    """Return one comparison as a sentence that can stand alone.

    It tells change, interval, how and how often it was measured, the A/A arm, the margin with the
    verdict, and how the configuration was verified: a reader needs nothing else to judge it.
    """
    name = row.name
    if math.isnan(row.ratio):
        return f"{name} under {row.configuration}: not comparable ({row.obstacle})"
    units = {"paired blocks": "pairs", "exact counts": "rounds"}
    said = [f"{row.n:,} {units.get(row.order, 'runs')}"]
    if row.noise_ratio is not None:
        said.append(f"noise floor {100 * row.noise_ratio:.3f} %")
    if row.effective_n is not None:
        said[0] += f", ESS {row.effective_n:.0f}"
    if row.aa is not None:
        interval = row.aa.interval
        low, high = (interval.low, interval.high) if interval else (None, None)
        twin = format_ratio_beside(row.aa.comparison.ratio, low, high)
        said.append(f"A/A arm {twin} {tables.interval_text(low, high)}")
    said.append(
        f"margin {tables.per_cent(row.margin_ratio)}: {tables.verdict_text(row, with_reason=True)}"
    )
    if verified := ", ".join(effects):
        said.append(f"verified: {verified}")
    change = format_ratio_beside(row.ratio, row.low, row.high)
    if row.low is not None:
        change += f" {tables.interval_text(row.low, row.high)}"
    return f"{name} under {row.configuration}: {change} ({row.order}; {'; '.join(said)})"


def _comparison_section(found: Comparisons, datasets: Sequence[Dataset]) -> Section:
    verified = {
        effect.configuration: effect.check
        for dataset in datasets
        for effect in dataset.effects
        if effect.outcome == "PASSED"
    }
    blocks: list[Block] = [Paragraph(text=headline(found), kind="result")]
    blocks += [
        Paragraph(
            text=result_line(row, effects=filter(None, [verified.get(row.configuration)])),
            kind="result",
        )
        for row in _worth_a_sentence(found.rows)
    ]
    blocks += [warning for dataset in datasets for warning in _warnings(dataset)]
    blocks += [Paragraph(text=note, kind="warning") for note in found.notes]
    if failed := [task for task, aa in found.aa.items() if aa.outcome is AAOutcome.FAILED]:
        text = (
            f"The A/A arm differs from the baseline in {', '.join(failed)}: this machine makes "
            "differences where there are none, so nothing is concluded there."
        )
        blocks.append(Paragraph(text=text, kind="warning"))
    blocks += [
        Paragraph(text=f"Compared by force although {line}", kind="warning")
        for line in found.forced
    ]
    exact = all(row.order == "exact counts" for row in found.rows)
    side_by_side = exact and len({row.configuration for row in found.rows}) > 1
    blocks.append((tables.counts_table if side_by_side else tables.comparison_table)(found))
    if once := dict.fromkeys(task for task, _ in found.first_only):
        text = (
            f"Not compared, as it ran once in each configuration, a first run: {', '.join(once)}."
        )
        blocks.append(Paragraph(text=text))
    if chart := pictures.interval_chart(found):
        blocks.append(chart)
    if table := tables.aa_table(found):
        blocks.append(table)
    return Section(heading=f"Cost against {found.baseline}", blocks=blocks)


def _worth_a_sentence(rows: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons that reports spell out: all of a few, else the largest differences.

    The table has every one.
    """
    measured = [row for row in rows if row.order != "published values"]
    if len(measured) <= SENTENCES:
        return measured
    decided = [row for row in measured if row.verdict in (Verdict.COSTS, Verdict.SAVES)]
    return sorted(decided, key=lambda row: -abs(math.log(row.ratio)))[:SENTENCES]


def _attribution_section(found: Sequence[Attribution]) -> Section:
    blocks: list[Block] = []
    if len(found) > 1:
        blocks.append(Paragraph(text=_explained(found), kind="result"))
    charts = {
        (each.task, each.configuration): chart
        for each in found
        for chart in pictures.waterfalls([each])
    }
    for each in found:
        blocks.append(tables.attribution_table(each))
        if chart := charts.get((each.task, each.configuration)):
            blocks.append(chart)
    return Section(heading="What explains the totals", blocks=blocks)


def _explained(found: Sequence[Attribution]) -> str:
    """Return between what the explained shares lie, and how many totals have remarks."""
    shares = sorted(each.explained for each in found)
    text = f"{counted(len(found), 'total')}: {shares[0]:.1%} to {shares[-1]:.1%} of each explained"
    if doubtful := sum(bool(each.flags) for each in found):
        text += f"; {doubtful} with remarks, which stand under their tables"
    return f"{text}."


def _only_probe(found: Sequence[Attribution]) -> Paragraph:
    """Return how much of totals without any part is the probe's own cost."""
    most = max(each.explained for each in found)
    text = "Nothing inside a run was measured. The probe's own cost is "
    return Paragraph(text=f"{text}{most:.2%} of {counted(len(found), 'total')} at most.")


def _summary_blocks(rows: Sequence[TaskSummary], metric: str | None) -> list[Block]:
    if not rows:
        return [Paragraph(text="There are no runs and no published rows.", kind="warning")]
    measured = [row for row in rows if not row.published]
    published = sorted((row for row in rows if row.published), key=lambda row: row.layer != "task")
    blocks: list[Block] = []
    if measured:
        what = f" of {metric}" if metric else ""
        caption = f"Each task under each configuration{what}; the first run is not among the rest"
        blocks.append(tables.summary_table(measured, caption=caption))
    if published:
        name = "published" if measured else "runs"
        blocks.append(tables.summary_table(published, name=name, caption="As published"))
    return blocks


def _memory(
    reader: SeriesReader, metric: str | None, summarised: Sequence[TaskSummary]
) -> list[Section]:
    if metric is not None or "max_rss_bytes" not in reader.metrics:
        return []
    # In a workload of the probe the child is the probe: its memory says nothing of the task.
    own = {row.task for row in summarised if row.metric in ("op_ns", "op_instructions")}
    rows = [
        summary_of(each) for each in reader.read(metric="max_rss_bytes") if each.task not in own
    ]
    if not rows:
        return []
    caption = "Largest resident set of the child itself"
    return [
        Section(
            heading="Memory",
            blocks=[tables.summary_table(rows, name="memory", caption=caption)],
        )
    ]


def _entries(reader: SeriesReader, metric: str | None) -> list[Section]:
    if metric is not None or "ima_entries" not in reader.metrics:
        return []
    table = tables.entries_table([summary_of(each) for each in reader.read(metric="ima_entries")])
    return [Section(heading="IMA entries per task", blocks=[table])] if table.rows else []


def _held(dataset: Dataset) -> list[Block]:
    """Return how many runs of what a capture holds; nothing where it holds none."""
    if not dataset.runs.height:
        return []
    runs, tasks = counted(dataset.runs.height, "run"), counted(len(dataset.tasks), "task")
    arms = counted(len(dataset.configurations), "configuration")
    return [Paragraph(text=f"{runs} of {tasks} under {arms}.", kind="result")]


def _notes(*datasets: Dataset) -> list[Section]:
    """Return what whoever made the captures wrote about them; it stands after the results."""
    notes = dict.fromkeys(note for dataset in datasets for note in dataset.manifest.notes)
    blocks = [Paragraph(text=note) for note in notes]
    return [Section(heading="Notes", blocks=blocks)] if blocks else []


def _proof(*datasets: Dataset, in_short: bool = False) -> list[Section]:
    """Return how each configuration was seen to be in effect, and what was lost.

    Args:
        datasets: The captures.
        in_short: Whether plain text is to say in one sentence what is all right.
    """
    sections = []
    found = [effect for dataset in datasets for effect in dataset.effects]
    if effects := list(dict.fromkeys(found)):
        table = tables.effects_table(effects)
        short = tables.effects_in_short(effects) if in_short else ""
        sections.append(Section(heading="Configurations in effect", blocks=[table], in_short=short))
    if losses := [loss for dataset in datasets for loss in dataset.losses]:
        sections.append(Section(heading="Lost data", blocks=[tables.losses_table(losses)]))
    return sections


def _beside(other: Dataset) -> Section:
    sources = "; ".join(
        f"{source.title} {source.url}".strip() for source in other.manifest.sources if source.title
    )
    blocks: list[Block] = [Paragraph(text=f"Source: {sources}")] if sources else []
    found = _compared(other, None, None, 0.01)
    if found is not None:
        blocks.append(dataclasses.replace(tables.comparison_table(found), name=_beside_name(other)))
    else:
        blocks.append(tables.summary_table(summaries(other), name=_beside_name(other)))
    return Section(heading=f"Beside it: {other.manifest.title}", blocks=blocks)


def _beside_name(other: Dataset) -> str:
    return file_safe(f"beside-{other.name}")


def _compared(
    dataset: Dataset, baseline: str | None, metric: str | None, margin_ratio: float
) -> Comparisons | None:
    if len(dataset.configurations) < 2 and baseline is None:
        return None
    try:
        return compare_configurations(
            dataset, baseline=baseline, metric=metric, margin_ratio=margin_ratio
        )
    except UsageError:
        if baseline is not None:
            raise
        return None  # one arm only, or nothing that both have: the summaries say all there is


def _steps(dataset: Dataset) -> list[TaskSummary]:
    """Return what the steps inside the runs took; those of a trace have sections of their own."""
    return [] if is_trace(dataset) else step_summaries(dataset)


def _attributed(dataset: Dataset, baseline: str | None) -> list[Attribution]:
    try:
        return attributions(dataset, baseline=baseline)
    except UsageError:
        return []  # nothing has parts


def _warnings(dataset: Dataset) -> list[Block]:
    texts = []
    lost = sum(loss.count for loss in dataset.losses)
    if lost:
        texts.append(f"{lost:,} lines, records or events of {dataset.name} could not be used.")
    failed = dataset.runs.filter(~dataset.runs.get_column("ok").fill_null(True)).height
    if failed:
        texts.append(
            f"{failed:,} of {counted(dataset.runs.height, 'run')} of {dataset.name} failed."
        )
    if dataset.sessions and dataset.sessions[-1].state != "finished":
        texts.append(f"{dataset.name} is not complete: run the same command again to go on.")
    return [Paragraph(text=text, kind="warning") for text in texts]


def _identity(dataset: Dataset) -> dict[str, Any]:
    manifest = dataset.manifest
    return {
        "name": dataset.name,
        "id": manifest.id,
        "title": manifest.title,
        "origin": manifest.origin,
        "created": manifest.created,
        "baseline": manifest.baseline,
        "runs": dataset.runs.height,
        "losses": sum(loss.count for loss in dataset.losses),
    }


def _comparison_data(found: Comparisons) -> dict[str, Any]:
    return {
        "baseline": found.baseline,
        "margin_ratio": found.margin_ratio,
        "comparisons": _plain([dataclasses.replace(row, aa=None) for row in found.rows]),
        "aa": {
            task: {
                "outcome": str(check.outcome),
                "ratio": check.comparison.ratio,
                "low": check.interval.low if check.interval else None,
                "high": check.interval.high if check.interval else None,
            }
            for task, check in found.aa.items()
        },
        "forced": list(found.forced),
    }


def _plain(rows: Sequence[Any]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(row) for row in rows]

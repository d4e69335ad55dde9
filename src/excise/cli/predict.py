"""`excise predict`: what so many measurements would add to a boot, by mode and TPM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from excise.cli.options import (
    FormatOption,
    JsonOption,
    ReportOutputOption,
    checked,
    open_dataset,
    parse_counts,
    parsed,
    print_report,
    refuse_idle,
    split_words,
    write_report,
)
from excise.errors import UsageError
from excise.units import parse_duration, parse_percentage


def _mode_of(word: str) -> tuple[str, str]:
    configuration, separator, value = word.rpartition("=")
    if not separator:
        raise UsageError(f"{word!r} is not CONFIGURATION=MODE", hint="Such as 'boot on=hmac'")
    return configuration, value


def predict(
    context: typer.Context,
    boots: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[BOOTS...]",
            help="Captures of boots, or reference:NAME, to fit base and costs to. Without them the "
            "added time alone is predicted.",
            show_default=False,
        ),
    ] = None,
    entries: Annotated[
        Sequence[int] | None,
        typer.Option(
            "--entries",
            metavar="N,…",
            parser=parsed(parse_counts, "counts"),
            help="Numbers of measurements.",
            show_default=False,
        ),
    ] = None,
    tpm: Annotated[
        list[str] | None,
        typer.Option(
            "--tpm",
            metavar="TPM",
            help="A capture of `excise tpm bench`, a record, or reference:NAME (see `excise tpm "
            "compare --list`). May be given several times; with boots the first is their own.",
            show_default=False,
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode",
            metavar="MODE,…",
            help="none, lazy, saved, hmac. [default: all that are known]",
            show_default=False,
        ),
    ] = None,
    fit: Annotated[
        list[str] | None,
        typer.Option(
            "--fit",
            metavar="CONFIGURATION",
            help="Fit these boots alone and predict the others. May be given several times.",
            show_default=False,
        ),
    ] = None,
    mode_of: Annotated[
        list[str] | None,
        typer.Option(
            "--mode-of",
            metavar="CONFIGURATION=MODE",
            parser=checked(_mode_of, "mode"),
            help="Mode of a configuration whose name does not tell it.",
            show_default=False,
        ),
    ] = None,
    stage: Annotated[
        str, typer.Option("--stage", help="Stage of the boots to predict, such as userspace.")
    ] = "total",
    task: Annotated[
        str | None,
        typer.Option("--task", help="Task of the boots. [default: boot…]", show_default=False),
    ] = None,
    banks: Annotated[
        int | None,
        typer.Option(
            "--banks", min=1, help="PCR banks. [default: those measured]", show_default=False
        ),
    ] = None,
    digest_cache: Annotated[
        float | None,
        typer.Option(
            "--digest-cache",
            parser=parsed(parse_percentage, "percentage"),
            metavar="PERCENT",
            help="Also with the Integrity Digest Cache, which leaves this share of the entries, "
            "such as 49%.",
            show_default=False,
        ),
    ] = None,
    overlap: Annotated[
        float,
        typer.Option(
            "--overlap",
            parser=parsed(parse_percentage, "percentage"),
            help="Share of an extend that lengthens the boot. [default: 100%]",
            show_default=False,
        ),
    ] = 1.0,
    entry_work: Annotated[
        int,
        typer.Option(
            "--entry-work",
            parser=parsed(parse_duration, "duration"),
            help="Time of an entry besides its extend. [default: 0]",
            show_default=False,
        ),
    ] = 0,
    base: Annotated[
        int | None,
        typer.Option(
            "--base",
            parser=parsed(parse_duration, "duration"),
            help="Duration without any entry, to add.",
            show_default=False,
        ),
    ] = None,
    known: Annotated[
        bool, typer.Option("--known/--no-known", help="Show how published cases are predicted.")
    ] = True,
    output: ReportOutputOption = None,
    format_name: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict base + entries × cost of an extend × overlap, with its interval.

    Example: excise predict --entries 12313 --tpm reference:tpm-hmac-2024 --mode hmac,lazy,none
    """
    from excise.cli.tpm import open_tpm
    from excise.cost.predict import fit_boots
    from excise.cost.predict_boots import boots_of
    from excise.cost.predict_known import known_cases
    from excise.cost.what_if import WhatIf, require_configurations, split_boots
    from excise.report.predict import build_prediction

    _refuse_idle(context, with_boots=bool(boots), with_entries=bool(entries))
    units = [open_tpm(name).units for name in tpm or []]
    what_if = WhatIf(
        entries=list(entries or ()),
        modes=split_words(mode),
        digest_cache_ratio=digest_cache,
        overlap=overlap,
        entry_work_ns=float(entry_work),
        banks=banks,
        base_ns=None if base is None else float(base),
    )
    model = None
    if boots:
        modes = dict(map(_mode_of, mode_of or []))
        measured = [
            boot for name in boots for boot in boots_of(open_dataset(name), task=task, modes=modes)
        ]
        require_configurations(measured, modes)
        fitted, others = split_boots(measured, fitted=fit or [])
        model = fit_boots(fitted, units=units[0] if units else None, stage=stage)
        found = [
            *(model.predict_boot(boot) for boot in others),
            *what_if.from_boots(model, others=units[1:]),
        ]
    else:
        _require_enough(units=units, entries=what_if.entries)
        found = what_if.from_units(units)
    report = build_prediction(
        found,
        model=model,
        units=units,
        known=known_cases() if known else None,
        assumptions=what_if.assumptions() if model is None else (),
    )
    write_report(report, output)
    print_report(report, format_name=format_name, as_json=as_json)


def _refuse_idle(context: typer.Context, *, with_boots: bool, with_entries: bool) -> None:
    """Refuse options that the rest of the command line leaves without an effect.

    Raises:
        UsageError: There is one.
    """
    if not with_boots:
        refuse_idle(
            context,
            ("fit", "mode_of", "stage", "task"),
            "of boots, and none was given",
            hint="Name captures of boots, or reference:tpm-hmac-2024",
        )
        return
    refuse_idle(
        context,
        ("overlap", "entry_work", "base"),
        "told by the boots themselves",
        hint="Predict from --tpm without boots",
    )
    if not with_entries:
        refuse_idle(
            context,
            ("mode", "digest_cache", "banks"),
            "for a number of entries, and none was given",
            hint="Give the number of measurements: --entries 444",
        )


def _require_enough(*, units: Sequence[object], entries: Sequence[int]) -> None:
    if not units:
        raise UsageError(
            "neither boots nor a TPM to predict from",
            hint="Name captures of boots, or give --tpm reference:tpm-hmac-2024",
        )
    if not entries:
        raise UsageError("the number of measurements is missing", hint="Give --entries 12313")

"""`excise predict`: what so many measurements would add to a boot, by mode and TPM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from excise.cli.options import FormatOption, JsonOption, open_dataset, print_report
from excise.errors import UsageError

if TYPE_CHECKING:
    from excise.cost.predict import Boot, BootModel, Prediction, UnitCosts


def predict(
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
        str | None,
        typer.Option(
            "--entries", metavar="N,…", help="Numbers of measurements.", show_default=False
        ),
    ] = None,
    tpm: Annotated[
        list[str] | None,
        typer.Option(
            "--tpm",
            metavar="TPM",
            help="A capture of `excise tpm bench`, a record, or reference:NAME (see `excise tpm "
            "compare --list`). May be given several times.",
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
        str | None,
        typer.Option(
            "--digest-cache",
            metavar="PERCENT",
            help="Also with the Integrity Digest Cache, which leaves this share of the entries, "
            "such as 49%.",
            show_default=False,
        ),
    ] = None,
    overlap: Annotated[
        str, typer.Option("--overlap", help="Share of an extend that lengthens the boot.")
    ] = "100%",
    entry_work: Annotated[
        str, typer.Option("--entry-work", help="Time of an entry besides its extend.")
    ] = "0",
    base: Annotated[
        str | None,
        typer.Option("--base", help="Duration without any entry, to add.", show_default=False),
    ] = None,
    known: Annotated[
        bool, typer.Option("--known/--no-known", help="Show how published cases are predicted.")
    ] = True,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Also write a report: .html, .md, .csv, …",
            show_default=False,
        ),
    ] = None,
    format_name: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict base + entries × cost of an extend × overlap, with its interval.

    Example: excise predict --entries 12313 --tpm reference:tpm-hmac-2024 --mode hmac,lazy,none
    """
    from excise.cost.predict_known import known_cases
    from excise.report.predict import build_prediction
    from excise.report.write import format_of, open_output, render

    units = [_units_of(name) for name in tpm or []]
    counts = [_count(word) for word in (entries or "").split(",") if word.strip()]
    modes = [word.strip() for word in (mode or "").split(",") if word.strip()]
    _check_modes(modes)
    model, found, assumptions = None, [], []
    if boots:
        chosen, others = _boots(boots, task=task, fit=fit or [], mode_of=mode_of or [])
        model = _fit(chosen, units, stage)
        found += [model.predict_boot(boot) for boot in others]
    elif not units:
        raise UsageError(
            "neither boots nor a TPM to predict from",
            hint="Name captures of boots, or give --tpm reference:tpm-hmac-2024",
        )
    elif not counts:
        raise UsageError("the number of measurements is missing", hint="Give --entries 12313")
    variants = _variants(counts, digest_cache)
    if model is not None:
        found += _from_model(model, variants, modes)
    else:
        knobs = _knobs(overlap, entry_work, base, banks)
        found += _from_units(units, variants, modes, knobs)
        assumptions = _assumptions(overlap, entry_work)
    report = build_prediction(
        found,
        model=model,
        units=units,
        known=known_cases() if known else None,
        assumptions=assumptions,
    )
    if output is not None:
        with open_output(output) as opened:
            opened.write(render(report, format=format_of(output)))
        typer.echo(f"Wrote {output}", err=True)
    print_report(report, format_name=format_name, as_json=as_json)


def _units_of(name: str) -> UnitCosts:
    from excise.cli.tpm import open_tpm

    return open_tpm(name).units


def _count(word: str) -> int:
    text = word.strip().replace("_", "")
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise UsageError(f"{word.strip()!r} is not a number of entries", hint="Such as 12313")
    return int(text)


def _check_modes(modes: Sequence[str]) -> None:
    from excise.cost.predict import MODES

    for name in modes:
        if name not in MODES:
            raise UsageError(f"the mode {name!r} is not known", hint=f"Modes: {', '.join(MODES)}")


def _boots(
    names: Sequence[str], *, task: str | None, fit: Sequence[str], mode_of: Sequence[str]
) -> tuple[list[Boot], list[Boot]]:
    """Return the boots to fit, and those to predict."""
    from excise.cost.predict_boots import boots_of

    modes: dict[str, str] = {}
    for word in mode_of:
        configuration, separator, value = word.rpartition("=")
        if not separator:
            raise UsageError(f"{word!r} is not CONFIGURATION=MODE", hint="Such as 'boot on=hmac'")
        modes[configuration] = value
    found = [
        boot for name in names for boot in boots_of(open_dataset(name), task=task, modes=modes)
    ]
    if not fit:
        return found, []
    known = {boot.configuration for boot in found}
    for name in fit:
        if name not in known:
            raise UsageError(
                f"no boot has the configuration {name!r}",
                hint=f"There are: {', '.join(sorted(known))}",
            )
    return (
        [boot for boot in found if boot.configuration in fit],
        [boot for boot in found if boot.configuration not in fit],
    )


def _fit(boots: Sequence[Boot], units: Sequence[UnitCosts], stage: str) -> BootModel:
    from excise.cost.predict import fit_boots

    if len(units) > 1:
        raise UsageError("boots ran with one TPM", hint="Give --tpm once")
    return fit_boots(boots, units=units[0] if units else None, stage=stage)


def _variants(counts: Sequence[int], digest_cache: str | None) -> list[tuple[int, str]]:
    """Return numbers of entries with what to call them, those of the digest cache included."""
    from excise.cost.predict import entries_left
    from excise.units import parse_percentage

    found = [(count, f"{count:,} entries") for count in counts]
    if digest_cache is not None:
        ratio = parse_percentage(digest_cache)
        found += [
            (entries_left(count, kept_ratio=ratio), f"{count:,} entries, digest cache")
            for count in counts
        ]
    return found


def _knobs(
    overlap: str, entry_work: str, base: str | None, banks: int | None
) -> Mapping[str, object]:
    from excise.units import parse_duration, parse_percentage

    return {
        "overlap": parse_percentage(overlap),
        "entry_work_ns": float(parse_duration(entry_work)),
        "base_ns": None if base is None else float(parse_duration(base)),
        "banks": banks,
    }


def _from_model(
    model: BootModel, variants: Sequence[tuple[int, str]], modes: Sequence[str]
) -> list[Prediction]:
    return [
        model.predict(entries=count, mode=mode, name=f"{words}, {mode}")
        for count, words in variants
        for mode in (modes or model.unit_ns)
    ]


def _from_units(
    units: Sequence[UnitCosts],
    variants: Sequence[tuple[int, str]],
    modes: Sequence[str],
    knobs: Mapping[str, object],
) -> list[Prediction]:
    from excise.cost.predict import predict_added

    return [
        predict_added(
            each,
            entries=count,
            mode=mode,
            name=f"{words}, {mode}" + (f", {each.name}" if len(units) > 1 else ""),
            **knobs,  # type: ignore[arg-type]
        )
        for each in units
        for count, words in variants
        for mode in (modes or each.costs)
    ]


def _assumptions(overlap: str, entry_work: str) -> list[str]:
    found = []
    if overlap == "100%":
        found.append("Nothing runs beside an extend: an upper bound where boot is parallel.")
    if entry_work == "0":
        found.append("An entry's own work, reading and hashing the file, is not counted.")
    return found

"""`excise fleet`: the evidence of many machines at once."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from excise.cli.fleet_progress import fleet_progress
from excise.cli.options import (
    JsonOption,
    parsed,
    print_json,
    print_report,
    require_one_of,
    split_words,
)
from excise.cli.verify import (
    ExcludeOption,
    FileKeyOption,
    PolicyOption,
    PolicyRootOption,
    ReportOption,
    Sha1Option,
    ViolationsOption,
    read_policy,
)
from excise.errors import UsageError
from excise.units import parse_bytes

if TYPE_CHECKING:
    from excise.evidence.policy import Policy
    from excise.fleet.answers import FleetAnswers
    from excise.fleet.places import Folder
    from excise.fleet.rounds import FleetRound
    from excise.report.model import Report

app = typer.Typer(no_args_is_help=True, help="Check the evidence of many machines at once.")


def _moment(text: str) -> datetime:
    from excise.fleet.moments import parse_moment

    return parse_moment(text)


SinceOption = Annotated[
    Any,  # a datetime, which Typer would read in a way of its own
    typer.Option(
        "--not-verified-since",
        parser=parsed(_moment, "time"),
        metavar="TIME",
        help="List hosts last verified before it: 24h, 7d, or 2026-01-31T12:00Z. "
        "[default: hosts never verified]",
        show_default=False,
    ),
]
PackagesOption = Annotated[
    str | None,
    typer.Option(
        "--packages",
        metavar="FILE",
        help="Packages of unknown files: `dpkg -S` output, a folder of dpkg lists, or the word "
        "dpkg for this machine's.",
        show_default=False,
    ),
]
CandidatesOption = Annotated[
    str | None,
    typer.Option(
        "--candidates",
        metavar="FILE",
        help="Write digests unknown to the policy as a checksum list.",
        show_default=False,
    ),
]
ResultsOption = Annotated[
    str | None,
    typer.Option(
        "--results",
        metavar="FOLDER",
        help="Write hosts, checks, findings and costs as Parquet; a path or URL.",
        show_default=False,
    ),
]
RowsOption = Annotated[int, typer.Option("--rows", min=1, help="Rows of a table in a report.")]


def _kinds(text: str) -> tuple[str, ...]:
    from excise.fleet.layout import KINDS

    kinds = split_words(text)
    for kind in kinds:
        require_one_of(KINDS, kind)
    return kinds


@app.command("verify")
def verify(
    places: Annotated[
        list[str],
        typer.Argument(metavar="URL...", help="Folders with one folder a host; paths or URLs."),
    ],
    policy: PolicyOption = None,
    policy_root: PolicyRootOption = None,
    exclude: ExcludeOption = None,
    file_key: FileKeyOption = None,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            metavar="HOST",
            help="Judge by the files of this host, once its list is verified.",
            show_default=False,
        ),
    ] = None,
    keys: Annotated[
        str | None,
        typer.Option(
            "--keys",
            metavar="FOLDER",
            help="Attestation keys, files named as the hosts; a path or URL.",
            show_default=False,
        ),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="WHERE",
            help="Keep the state of hosts there, and go on from it: a folder, FILE.sqlite or URL.",
            show_default=False,
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            "--scheduler",
            metavar="tcp://HOST:PORT",
            help="Run on this Dask cluster.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            min=0,
            help="Processes of the pool; 0 is this process alone. [default: one a processor]",
            show_default=False,
        ),
    ] = None,
    memory_limit: Annotated[
        int,
        typer.Option(
            "--memory-limit",
            parser=parsed(parse_bytes, "size"),
            help="Memory a process of the pool may have. [default: 2GiB]",
            show_default=False,
        ),
    ] = 2 << 30,
    violations: ViolationsOption = "report",
    require: Annotated[
        Sequence[str] | None,
        typer.Option(
            "--require",
            metavar="KIND,...",
            parser=parsed(_kinds, "kinds"),
            help="Fail hosts without it: ima, quote, eventlog, capture.",
            show_default=False,
        ),
    ] = None,
    allow_sha1: Sha1Option = False,
    max_list_bytes: Annotated[
        int,
        typer.Option(
            "--max-list-bytes",
            parser=parsed(parse_bytes, "size"),
            help="Longest measurement list read. [default: 4GiB]",
            show_default=False,
        ),
    ] = 4 << 30,
    since: SinceOption = None,
    packages: PackagesOption = None,
    candidates: CandidatesOption = None,
    results: ResultsOption = None,
    report: ReportOption = None,
    rows: RowsOption = 20,
    as_json: JsonOption = False,
) -> None:
    """Verify measurement lists, quotes, boot logs and captures of many hosts.

    Exit 0 only when every host passed. With --state the next round costs only what is new, and
    Ctrl-C keeps what is done.

    Example: excise fleet verify /srv/evidence --policy sha256sums --state fleet.sqlite
    """
    from excise.fleet.engines import engine_for
    from excise.fleet.records import Settings
    from excise.fleet.rounds import find_hosts, read_keys, verify_fleet
    from excise.fleet.stores import open_store

    engine = engine_for(
        places,
        scheduler=scheduler,
        workers=workers,
        memory_limit_bytes=memory_limit,
    )
    hosts = find_hosts(places)
    compiled = _policy(policy, exclude, file_key, policy_root, reference, hosts)
    settings = Settings(
        policy_digest=compiled.digest if compiled is not None else None,
        violations=violations,
        allow_sha1=allow_sha1,
        require=tuple(require or ()),
        max_list_bytes=max_list_bytes,
    )
    known = read_keys(keys, hosts) if keys is not None else {}
    store = open_store(state) if state is not None else None
    with ExitStack() as stack:
        outputs = _Outputs(stack, report=report, candidates=candidates, results=results)
        if store is not None:
            stack.callback(store.close)
        progress = stack.enter_context(fleet_progress(len(hosts), shown=sys.stderr.isatty()))
        done = verify_fleet(
            hosts,
            engine=engine,
            settings=settings,
            policy=compiled,
            store=store,
            keys=known,
            progress=progress,
        )
        answers = _answers(done.states(), compiled, packages, since)
        found = outputs.write(answers, done, rows=rows)
    _conclude(answers, done, found, as_json=as_json)


@app.command("show")
def show(
    state: Annotated[
        str, typer.Argument(metavar="WHERE", help="The --state of `excise fleet verify`.")
    ],
    policy: PolicyOption = None,
    policy_root: PolicyRootOption = None,
    exclude: ExcludeOption = None,
    since: SinceOption = None,
    packages: PackagesOption = None,
    candidates: CandidatesOption = None,
    results: ResultsOption = None,
    report: ReportOption = None,
    rows: RowsOption = 20,
    as_json: JsonOption = False,
) -> None:
    """Answer what fleets ask from the kept state, without verifying anything.

    Which files differ on how many hosts, digests that are unknown everywhere, hosts not verified
    since a time, violations by path, and captures by kernel, TPM and LSMs. Exit 0 only when every
    host passed, and none is older than --not-verified-since.

    Example: excise fleet show fleet.sqlite --not-verified-since 24h
    """
    from excise.fleet.stores import read_states

    compiled = read_policy(policy, exclude, None, policy_root)
    with ExitStack() as stack:
        outputs = _Outputs(stack, report=report, candidates=candidates, results=results)
        states = read_states(state)
        if not states:
            raise UsageError(
                "holds no state of any host",
                source=state,
                hint="Name the --state of `excise fleet verify`.",
            )
        answers = _answers(states, compiled, packages, since)
        found = outputs.write(answers, None, rows=rows)
    _conclude(answers, None, found, as_json=as_json)


class _Outputs:
    """What a round is written to, opened before it begins."""

    def __init__(
        self,
        stack: ExitStack,
        *,
        report: str | None,
        candidates: str | None,
        results: str | None,
    ) -> None:
        from excise.report.write import format_of, open_outputs

        self._format = format_of(report) if report is not None else None
        names = [name for name in (report, candidates) if name is not None]
        opened = dict(zip(names, stack.enter_context(open_outputs(names)), strict=True))
        self._report = opened.get(report or "")
        self._candidates = opened.get(candidates or "")
        self._results = _results_folder(results) if results is not None else None

    def write(self, answers: FleetAnswers, done: FleetRound | None, *, rows: int) -> Report:
        """Write everything that was asked for, and return the report."""
        from excise.report.fleet import build_fleet
        from excise.report.write import render

        if self._results is not None:
            from excise.fleet.tables import write_tables

            written = write_tables(answers.tables, self._results)
            typer.echo(f"Wrote {', '.join(written)} in {self._results.url}", err=True)
        if self._candidates is not None:
            from excise.fleet.answers import candidates

            self._candidates.write(candidates(answers))
        found = build_fleet(answers, done=done, rows=rows)
        if self._report is not None and self._format is not None:
            self._report.write(render(found, format=self._format))
            typer.echo(f"Wrote {self._report.path}", err=True)
        return found


def _results_folder(where: str) -> Folder:
    from excise.fleet.places import folder_at, is_local
    from excise.report.write import open_folder

    if is_local(where):
        open_folder(where.removeprefix("file://"))
    return folder_at(where)


def _policy(
    policies: list[str] | None,
    excludes: list[str] | None,
    keys: list[str] | None,
    root: str | None,
    reference: str | None,
    hosts: Mapping[str, str],
) -> Policy | None:
    if reference is not None:
        if policies or excludes or keys or root:
            raise UsageError("--reference takes the place of --policy, --exclude and --file-key")
        from excise.fleet.reference import policy_of_host

        return policy_of_host(reference, hosts)
    return read_policy(policies, excludes, keys, root)


def _answers(
    states: Any, policy: Policy | None, packages: str | None, since: datetime | None
) -> FleetAnswers:
    from excise.fleet.answers import answer
    from excise.fleet.packages import read_packages

    known = read_packages(packages) if packages is not None else None
    return answer(states, policy=policy, packages=known, since=since)


def _conclude(
    answers: FleetAnswers, done: FleetRound | None, found: Report, *, as_json: bool
) -> None:
    """Print the answers; exit 130 if interrupted, 1 unless every host passed."""
    from excise.evidence.checks import Outcome

    if as_json:
        print_json(found.data)
    else:
        print_report(found, format_name=None, as_json=False)
    if done is not None and done.interrupted:
        if done.stopped_by is not None:
            raise done.stopped_by
        raise typer.Exit(130)
    late = answers.since is not None and answers.stale.height
    if late or answers.verdicts.get(Outcome.PASSED, 0) != answers.hosts:
        raise typer.Exit(1)

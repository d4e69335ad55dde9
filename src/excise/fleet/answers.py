"""What fleets ask: which files differ where, what the policy does not know, who was not seen.

Everything is computed from the states of the hosts, so that it can be asked at any time and not
only after a round.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import polars as pl

from excise.evidence.checks import Outcome
from excise.evidence.policy import EntryClass, Policy
from excise.fleet.packages import PackageMap
from excise.fleet.records import HostState
from excise.fleet.tables import tables_of
from excise.units import counted

_DIFFERS: Final = (EntryClass.DIGEST_DIFFERS.value, EntryClass.OTHER_ALGORITHM.value)
_UNKNOWN: Final = (
    EntryClass.UNKNOWN_FILE.value,
    EntryClass.DIGEST_DIFFERS.value,
    EntryClass.PSEUDO_FILE.value,
)
_GROUP: Final = ["kernel", "tpm", "lsm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAnswers:
    """Answers over all hosts, as tables.

    Attributes:
        tables: The rows they were made of: `hosts`, `checks`, `findings`, `costs`.
        verdicts: Number of hosts by verdict.
        checks: Hosts by outcome, for every check that did not PASS somewhere:
            `check, failed, not_covered, passed, host` (one that failed, else one not covered).
        not_passed: Hosts that FAILED, then those without proof:
            `host, verdict, failed_checks, last_verified_at, attempted_at`.
        old_quotes: Hosts that sent the quote of the round before.
        differing: Files that the policy lists with other digests: `name, hosts, digests, host`.
        unknown: Digests that the policy lists under no name, the most widespread first:
            `algorithm, digest, hosts, names, name, package, host`.
        violations: Violations by path: `name, hosts, count, host`.
        stale: Hosts not verified since the time asked for, the longest ago first:
            `host, verdict, last_verified_at, attempted_at, failed_checks`.
        since: The time asked for; None where the stale are those never verified.
        costs: Captures by configuration of the host: `task, configuration, metric, unit, kernel,
            tpm, lsm, hosts, captures, median, low, high, ratio` (to the cheapest group).
        findings_left_out: Findings that were too many to be kept.
        policies: Digests of the policies that hosts were judged by.
    """

    tables: Mapping[str, pl.DataFrame]
    verdicts: Mapping[str, int]
    checks: pl.DataFrame
    not_passed: pl.DataFrame
    old_quotes: int
    differing: pl.DataFrame
    unknown: pl.DataFrame
    violations: pl.DataFrame
    stale: pl.DataFrame
    since: datetime | None
    costs: pl.DataFrame
    findings_left_out: int
    policies: tuple[str, ...]

    @property
    def hosts(self) -> int:
        """Return the number of hosts."""
        return self.tables["hosts"].height

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for `--json`."""
        return {
            "hosts": self.hosts,
            "verdicts": dict(self.verdicts),
            "policies": list(self.policies),
            "since": self.since.isoformat() if self.since else None,
            "findings_left_out": self.findings_left_out,
            "checks": _plain(self.checks),
            "not_passed": _plain(self.not_passed),
            "old_quotes": self.old_quotes,
            "differing_files": _plain(self.differing),
            "unknown_digests": _plain(self.unknown),
            "violations": _plain(self.violations),
            "not_verified": _plain(self.stale),
            "costs": _plain(self.costs),
        }


def _plain(table: pl.DataFrame) -> list[dict[str, Any]]:
    times = [name for name, kind in table.schema.items() if isinstance(kind, pl.Datetime)]
    return table.with_columns(
        pl.col(name).dt.strftime("%Y-%m-%dT%H:%M:%SZ") for name in times
    ).to_dicts()


def answer(
    states: Iterable[HostState],
    *,
    policy: Policy | None = None,
    packages: PackageMap | None = None,
    since: datetime | None = None,
) -> FleetAnswers:
    """Return what a fleet's states say.

    Args:
        states: One of each host.
        policy: The policy in force; tells which digests are listed under another name. Without it
            they count as unknown too.
        packages: Names of packages by path.
        since: Hosts whose last verification is older are stale; those never verified always are.
    """
    tables = tables_of(states)
    hosts, findings = tables["hosts"], tables["findings"]
    counted = dict(hosts["verdict"].value_counts(sort=True).iter_rows())
    return FleetAnswers(
        tables=tables,
        verdicts=counted,
        checks=_checks(tables["checks"]),
        not_passed=_not_passed(hosts),
        old_quotes=tables["checks"].filter(_IS_OLD_QUOTE).height,
        differing=_by_name(findings.filter(pl.col("kind").is_in(_DIFFERS))).rename(
            {"count": "digests"}
        ),
        unknown=_unknown(findings, policy, packages),
        violations=_violations(findings),
        stale=_stale(hosts, since),
        since=since,
        costs=_costs(tables["costs"]),
        findings_left_out=int(hosts["findings_left_out"].sum()),
        policies=_policies(hosts),
    )


def _policies(hosts: pl.DataFrame) -> tuple[str, ...]:
    named = hosts["judged_by"].str.split(" ").list.first()
    return tuple(name for name in named.unique().sort() if name not in ("", "none"))


def _checks(checks: pl.DataFrame) -> pl.DataFrame:
    def hosts(outcome: str) -> pl.Expr:
        return pl.col("host").filter(pl.col("outcome") == outcome)

    return (
        checks.group_by("check")
        .agg(
            failed=hosts("FAILED").n_unique(),
            not_covered=hosts("NOT_COVERED").n_unique(),
            before=pl.col("host")
            .filter((pl.col("outcome") == "NOT_COVERED") & pl.col("last_passed_at").is_not_null())
            .n_unique(),
            passed=hosts("PASSED").n_unique(),
            host=pl.coalesce(hosts("FAILED").min(), hosts("NOT_COVERED").min()),
        )
        .filter((pl.col("failed") > 0) | (pl.col("not_covered") > 0))
        .sort(["failed", "not_covered", "check"], descending=[True, True, False])
    )


def _by_name(findings: pl.DataFrame) -> pl.DataFrame:
    return (
        findings.group_by("name")
        .agg(
            hosts=pl.col("host").n_unique(),
            count=pl.col("digest").n_unique(),
            host=pl.col("host").min(),
        )
        .sort(["hosts", "name"], descending=[True, False])
    )


def _violations(findings: pl.DataFrame) -> pl.DataFrame:
    return (
        findings.filter(pl.col("kind") == EntryClass.VIOLATION.value)
        .group_by("name")
        .agg(
            hosts=pl.col("host").n_unique(), count=pl.col("count").sum(), host=pl.col("host").min()
        )
        .sort(["hosts", "count", "name"], descending=[True, True, False])
    )


def _unknown(
    findings: pl.DataFrame, policy: Policy | None, packages: PackageMap | None
) -> pl.DataFrame:
    found = (
        findings.filter(pl.col("kind").is_in(_UNKNOWN) & (pl.col("digest") != ""))
        .group_by("algorithm", "digest")
        .agg(
            hosts=pl.col("host").n_unique(),
            names=pl.col("name").n_unique(),
            name=pl.col("name").min(),
            host=pl.col("host").min(),
        )
        .sort(["hosts", "name", "digest"], descending=[True, False, False])
    )
    if policy is not None:
        table = policy.table
        known = [
            table.holds_digest(algorithm or "sha1", bytes.fromhex(digest))
            for algorithm, digest in found.select("algorithm", "digest").iter_rows()
        ]
        found = found.filter(~pl.Series(known, dtype=pl.Boolean))
    package: Callable[[str], str | None] = packages.package_of if packages else lambda _: None
    names = found["name"].to_list()
    return found.with_columns(
        pl.Series("package", [package(name) for name in names], dtype=pl.String)
    )


def _not_passed(hosts: pl.DataFrame) -> pl.DataFrame:
    columns = ["host", "verdict", "failed_checks", "last_verified_at", "attempted_at"]
    return (
        hosts.filter(pl.col("verdict") != Outcome.PASSED.value)
        .select(columns)
        .sort([pl.col("verdict") != Outcome.FAILED.value, pl.col("host")])
    )


def _stale(hosts: pl.DataFrame, since: datetime | None) -> pl.DataFrame:
    old = pl.col("last_verified_at").is_null()
    if since is not None:
        old = old | (pl.col("last_verified_at") < pl.lit(since))
    columns = ["host", "verdict", "last_verified_at", "attempted_at", "failed_checks"]
    return hosts.filter(old).select(columns).sort(["last_verified_at", "host"], nulls_last=False)


def _costs(costs: pl.DataFrame) -> pl.DataFrame:
    """Return each task by kernel, TPM and LSMs of the host, the cheapest group first.

    One value a host: the median of its captures; then the median over hosts.
    """
    what = ["task", "configuration", "metric", "unit"]
    by_host = costs.group_by([*what, *_GROUP, "host"]).agg(
        value=pl.col("median").median(), captures=pl.len()
    )
    grouped = by_host.group_by([*what, *_GROUP]).agg(
        hosts=pl.len(),
        captures=pl.col("captures").sum(),
        median=pl.col("value").median(),
        low=pl.col("value").min(),
        high=pl.col("value").max(),
    )
    least = pl.col("median").min().over(what)
    return grouped.with_columns(ratio=pl.when(least > 0).then(pl.col("median") / least)).sort(
        [*what, "median", *_GROUP]
    )


_IS_OLD_QUOTE: Final = (pl.col("check") == "fleet.quote_is_new") & (
    pl.col("outcome") == Outcome.NOT_COVERED.value
)
_NO_LINE: Final = re.compile(r"\\x[0-9a-f]{2}|[^\n\r\x20-\x7e\xa0-\U0010ffff]")


def candidates(answers: FleetAnswers) -> str:
    """Return the unknown digests as a checksum list, to be read before it becomes a policy."""
    joined = (
        answers.tables["findings"]
        .filter(pl.col("kind").is_in(_UNKNOWN))
        .join(
            answers.unknown.select("algorithm", "digest", "hosts", "package"),
            on=["algorithm", "digest"],
        )
        .group_by("algorithm", "digest", "name", "package")
        .agg(hosts=pl.col("hosts").first())
        .sort(["hosts", "name"], descending=[True, False])
    )
    lines = ["# Unknown to the policy. Look at each before you allow it."]
    for algorithm, digest, name, package, hosts in joined.iter_rows():
        lines.append(
            f"# {counted(hosts, 'host')}, {algorithm or 'sha1'}, package {package or 'unknown'}"
        )
        lines.append(_checksum_line(digest, name))
    return "\n".join(lines) + "\n"


def _checksum_line(digest: str, name: str) -> str:
    """Return a line as `sha256sum` writes it: it escapes names with a backslash or a line end.

    A name that holds bytes that are no UTF-8, or looks as if it did, would not be what the line
    says, and one with control characters not what a terminal shows: the line is a comment then.
    """
    if _NO_LINE.search(name):
        shown = name.encode("unicode_escape").decode()
        return f"# Cannot be written as a line: {digest}  {shown}"
    if "\\" in name or "\n" in name:
        escaped = name.replace("\\", "\\\\").replace("\n", "\\n")
        return f"\\{digest}  {escaped}"
    return f"{digest}  {name}"

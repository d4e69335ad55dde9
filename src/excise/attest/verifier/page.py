"""The verifier's web page: sessions, verdicts, and the reason for each claim.

Rendered here and without scripts.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from excise.attest.service import SessionUnknown
from excise.attest.service.page import page_response, text
from excise.attest.verifier.engine import Engine
from excise.attest.verifier.records import DELETED, WAITING, Records, Session
from excise.units import counted

PAGE_ROWS: Final = 50


class Page:
    """Handlers of the page.

    Args:
        records: Where sessions are kept.
        engine: What evidence is appraised against.
    """

    def __init__(self, records: Records, engine: Engine) -> None:
        self._records = records
        self._engine = engine

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route("/", self.overview, methods=["GET"]),
            Route("/sessions/{session}", self.session, methods=["GET"]),
        ]

    async def overview(self, request: Request) -> Response:
        """Show the latest sessions."""
        given = request.query_params.get("from", "0")
        first = int(given) if given.isdecimal() and len(given) < 10 else 0
        count, sessions = await self._records.recent(limit=PAGE_ROWS, offset=first)
        builds = ", ".join(self._engine.store.builds) or "none"
        told = f"{counted(count, 'session')}. Policy: {self._engine.policy.name}. Builds: {builds}."
        body = ["<h1>Verifier</h1>", f"<p class=faint>{text(told)}</p>"]
        body.append(_sessions_table(sessions) if sessions else "<p>No session yet.</p>")
        body.append(_pager(first, count))
        return page_response("Verifier", "".join(body))

    async def session(self, request: Request) -> Response:
        """Show one session: its claims, why they are so, and the checks that failed."""
        name = str(request.path_params["session"])
        try:
            session = await self._records.get(name, deleted=True)
        except SessionUnknown:
            body = "<h1>No such session</h1><p><a href='/'>All sessions</a></p>"
            return page_response("No such session", body, status=404)
        return page_response("Session", _session_body(session))


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "not yet"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _status(session: Session) -> str:
    """Return the verdict in colour, or what became of the session without one."""
    if session.verdict is not None:
        status = text(session.verdict["status"])
        return f"<span class='status {status}'>{status}</span>"
    if session.status == DELETED:
        return "deleted"
    expired = session.status == WAITING and datetime.now(UTC).timestamp() >= session.expiry_s
    return "expired, no evidence came" if expired else text(session.status)


def _why(session: Session) -> str:
    """Return the shortest reason for a verdict."""
    if session.verdict is None:
        return ""
    for one in session.verdict["submodules"]:
        if one["problem"]:
            return str(one["problem"])
    wrong = [
        f"{claim['claim']}: {claim['reason']}"
        for one in session.verdict["submodules"]
        for claim in one["claims"]
        if claim["tier"] in ("warning", "contraindicated")
    ]
    return "; ".join(wrong) or "every claim made is affirming"


def _sessions_table(sessions: list[Session]) -> str:
    rows = []
    for one in sessions:
        why = _why(one)
        shown = why if len(why) < 160 else f"{why[:157]}…"
        cells = (
            ("Opened", f"<a href='/sessions/{text(one.id)}'>{_time(one.created_s)}</a>"),
            ("Verdict", _status(one)),
            ("Build", text(_builds(one))),
            ("Why", text(shown)),
        )
        rows.append("<tr>" + "".join(f"<td data-name='{name}'>{cell}</td>" for name, cell in cells))
    head = "".join(f"<th>{name}</th>" for name in ("Opened", "Verdict", "Build", "Why"))
    return f"<table class=cards><thead><tr>{head}</thead><tbody>{''.join(rows)}</tbody></table>"


def _builds(session: Session) -> str:
    submodules = session.verdict["submodules"] if session.verdict is not None else ()
    return ", ".join(dict.fromkeys(one["build"] for one in submodules if one["build"]))


def _pager(first: int, count: int) -> str:
    links = []
    if first > 0:
        links.append(f"<a href='/?from={max(0, first - PAGE_ROWS)}'>newer</a>")
    if first + PAGE_ROWS < count:
        links.append(f"<a href='/?from={first + PAGE_ROWS}'>older</a>")
    return f"<p>{' · '.join(links)}</p>" if links else ""


def _session_body(session: Session) -> str:
    facts = (
        ("Verdict", _status(session)),
        ("Opened", _time(session.created_s)),
        ("Answered", _time(session.answered_s)),
        ("Evidence until", _time(session.expiry_s)),
        ("Challenge", f"<code>{session.nonce.hex()}</code>"),
        ("Media type", text(session.media_type or "none yet")),
        ("Evidence", f"{len(session.evidence)} bytes"),
    )
    parts = [
        "<p><a href='/'>All sessions</a></p>",
        f"<h1>Session <code>{text(session.id)}</code></h1>",
        "<dl>" + "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts) + "</dl>",
    ]
    if session.verdict is not None:
        parts += [_submodule(one) for one in session.verdict["submodules"]]
        parts.append(_failed(session.verdict))
        parts.append(f"<h2>Result</h2><p><code>{text(session.result)}</code></p>")
    return "".join(parts)


def _submodule(one: dict[str, Any]) -> str:
    status = text(one["status"])
    head = "".join(f"<th>{name}</th>" for name in ("Claim", "Value", "Meaning", "Why"))
    rows = "".join(
        f"<tr><td data-name=Claim>{text(claim['claim'])}"
        f"<td data-name=Value class='status {text(claim['tier'])}'>{text(claim['value'])}"
        f"<td data-name=Meaning>{text(claim['meaning'])}"
        f"<td data-name=Why>{text(claim['reason'])}"
        for claim in one["claims"]
    )
    told = f"Policy {text(one['policy'])}"
    told += f", build {text(one['build'])}" if one["build"] else ""
    return (
        f"<h2>{text(one['name'])}: <span class='status {status}'>{status}</span></h2>"
        f"<p class=faint>{told}</p>"
        f"<table class=cards><thead><tr>{head}</thead><tbody>{rows}</tbody></table>"
    )


def _failed(verdict: Any) -> str:
    failed = verdict["failed"]
    told = f"{counted(verdict['checks'], 'check was', 'checks were')} made, {len(failed)} failed."
    if not failed:
        return f"<h2>Checks</h2><p>{told}</p>"
    rows = "".join(
        f"<tr><td data-name=Check><span class=FAILED>{text(check['id'])}</span>"
        f"<td data-name=Found>{text(check['got'])}"
        f"<td data-name=Expected>{text(check['expected'])}"
        f"<td data-name=Clause>{text(check['clause'])}"
        for check in failed
    )
    head = "".join(f"<th>{name}</th>" for name in ("Check", "Found", "Expected", "Clause"))
    return (
        f"<h2>Checks</h2><p>{told}</p>"
        f"<table class=cards><thead><tr>{head}</thead><tbody>{rows}</tbody></table>"
    )

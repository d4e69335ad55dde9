"""A sensor's transaction as a page: who sent it, what became of it, and every check."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from excise.attest.sensor.records import StoredTransaction
from excise.attest.sensor.result import basename_text
from excise.attest.service.page import page_response, text
from excise.evidence.checks import Outcome

if TYPE_CHECKING:
    from starlette.responses import Response

_STYLES = {
    Outcome.PASSED: "affirming",
    Outcome.NOT_COVERED: "warning",
    Outcome.FAILED: "contraindicated",
}


def transaction_page(found: StoredTransaction) -> Response:
    """Return the page of a transaction."""
    received = datetime.fromtimestamp(found.received_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    facts = (
        ("Outcome", _outcome(found.outcome)),
        ("Received", received),
        ("Pseudonym", _code(found.pseudonym, missing="none: the sensor is anonymous")),
        ("Basename", _code(basename_text(found), missing="none")),
        ("Nonce", _code(found.nonce.hex())),
        ("Message", f"{len(found.message):,} bytes"),
        *((text(name), _code(value)) for name, value in found.result.get("facts", {}).items()),
    )
    body = [
        f"<h1>Transaction <code>{text(found.id)}</code></h1>",
        "<dl>" + "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts) + "</dl>",
        *(f"<p>{text(reason)}</p>" for reason in found.result.get("reasons", ())),
        _checks(found),
    ]
    return page_response("Transaction", "".join(body))


def _outcome(outcome: Outcome) -> str:
    return f"<span class='status {_STYLES.get(outcome, '')}'>{text(outcome.value)}</span>"


def _code(value: object, *, missing: str = "none") -> str:
    return missing if value is None else f"<code>{text(value)}</code>"


def _checks(found: StoredTransaction) -> str:
    names = ("Check", "Outcome", "Expected", "Found", "Detail")
    rows = []
    for check in found.result["checks"]:
        cells = (
            text(check["id"]),
            _outcome(Outcome(check["outcome"])),
            *(text(check.get(key) or "") for key in ("expected", "got", "detail")),
        )
        pairs = zip(names, cells, strict=True)
        rows.append("<tr>" + "".join(f"<td data-name={name}>{cell}" for name, cell in pairs))
    head = "".join(f"<th>{name}</th>" for name in names)
    return (
        "<h2>Checks</h2><table class=cards>"
        f"<thead><tr>{head}</thead><tbody>{''.join(rows)}</tbody></table>"
    )

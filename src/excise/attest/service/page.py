"""Pages of the services, rendered without scripts.

Every text is escaped, and the policy of a page allows nothing but its own style.
"""

from __future__ import annotations

import base64
import hashlib
import html
from typing import Any, Final

from starlette.responses import Response

_STYLE: Final = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b2330; --faint: #5a6472;
  --line: #d5dae2; --good: #17663a; --warn: #8a5300; --bad: #a11d2d; --soft: #f3f5f8; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14181e; --ink: #e6e9ee; --faint: #a3abb8; --line: #343c48;
    --good: #6cd39b; --warn: #f0b45a; --bad: #ff8f9b; --soft: #1c222b; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1rem; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: .5rem 0; } h2 { font-size: 1.1rem; margin: 1.5rem 0 .5rem; }
p { margin: .4rem 0; } a { color: inherit; }
.faint { color: var(--faint); } code { font-size: .9em; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .4rem .6rem;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
th { color: var(--faint); font-weight: 600; }
th, td:first-child, .status { white-space: nowrap; }
.affirming { color: var(--good); } .warning { color: var(--warn); }
.contraindicated, .FAILED { color: var(--bad); } .status { font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: .5rem 0; }
dt { color: var(--faint); } dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 40rem) {
  dl { grid-template-columns: 1fr; } dd { margin-bottom: .4rem; }
  table.cards thead { display: none; } table.cards tr { display: block; padding: .4rem 0;
    border-bottom: 1px solid var(--line); }
  table.cards td { display: block; border: 0; padding: .1rem 0; white-space: normal; }
  table.cards td::before { content: attr(data-name) ": "; color: var(--faint);
    font-weight: 400; } }
"""
_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


def page_response(title: str, body: str, *, status: int = 200) -> Response:
    """Return a page.

    Args:
        title: Its title.
        body: Its HTML; the texts in it are escaped already.
        status: HTTP's status.
    """
    page = (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        f"<title>{title} · excise</title><style>{_STYLE}</style></head>"
        f"<body><main>{body}</main></body></html>"
    )
    headers = {
        "Content-Security-Policy": _POLICY,
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }
    return Response(page, status_code=status, media_type="text/html", headers=headers)


def text(value: Any) -> str:
    """Return a value as escaped text."""
    return html.escape(str(value), quote=True)

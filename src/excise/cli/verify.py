"""`excise verify`: does this evidence prove that state?"""

from __future__ import annotations

import typer

app = typer.Typer(no_args_is_help=True, help="Check evidence: logs, quotes, captures.")

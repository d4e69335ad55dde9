"""`excise verify capture`: in which state were these numbers measured?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from excise.cli.options import JsonOption, read_input
from excise.cli.verify import KeyOption, ReportOption, conclude


def capture(
    path: Annotated[str, typer.Argument(metavar="CAPTURE", help="A capture folder or .tar.zst.")],
    key: KeyOption = None,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a capture's seal, quote and measurement list, and say which claims they prove.

    Example: excise verify capture today.excise --key ak.pub
    """
    from excise.capture.archive import unpacked
    from excise.evidence.capture import verify_capture

    with unpacked(Path(path)) as folder:
        found = verify_capture(folder, public_key=read_input(key) if key else None)
    conclude([found], report=report, as_json=as_json)

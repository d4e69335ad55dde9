"""Every check id, file name and column of fleets and boot logs stands in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from excise.fleet import layout, tables

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("page", "sources", "prefix"),
    [("fleet.md", "fleet/*.py", "fleet"), ("eventlog.md", "evidence/eventlog*.py", "eventlog")],
)
def test_every_check_is_documented_and_every_documented_one_exists(
    page: str, sources: str, prefix: str
) -> None:
    documented = set(re.findall(rf"`({prefix}\.[a-z_]+)`", (ROOT / "docs" / page).read_text()))
    made: set[str] = set()
    for path in (ROOT / "src" / "excise").glob(sources):
        made |= set(re.findall(rf'"({prefix}\.[a-z_]+)"', path.read_text()))
    assert documented == made != set()


def test_every_file_of_the_layout_and_every_column_is_documented() -> None:
    text = (ROOT / "docs" / "fleet.md").read_text()
    names = {*layout.PCRS, *layout.EVENT_LOGS, layout.RTMRS, layout.QUOTE, layout.QUOTED_PCRS}
    for name in names | {layout.PUBLIC, layout.NONCE, layout.SIGNATURE, layout.IMA_LISTS[0]}:
        assert f"`{name}`" in text, name
    for schema in (tables.HOSTS, tables.CHECKS, tables.FINDINGS, tables.COSTS):
        assert ", ".join(schema) in text

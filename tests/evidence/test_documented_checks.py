from __future__ import annotations

import re
from pathlib import Path

import pytest

from excise.evidence.policy.classes import EntryClass
from excise.evidence.signature import SignatureResult

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("page", "sources", "prefix"),
    [
        ("quotes.md", "quote*.py", "quote"),
        ("policy.md", "policy/*.py", "policy"),
        ("daa.md", "daa/*.py", "daa"),
    ],
)
def test_every_check_is_documented_and_every_documented_one_exists(
    page: str, sources: str, prefix: str
) -> None:
    text = (ROOT / "docs" / page).read_text()
    documented = set(re.findall(rf"`({prefix}\.[a-z_]+)`", text))
    made = set()
    for path in (ROOT / "src" / "excise" / "evidence").glob(sources):
        made |= set(re.findall(rf'"({prefix}\.[a-z_]+)"', path.read_text()))
    if prefix == "quote":  # named in a loop, and by counter
        made |= {f"quote.{name}" for name in ("previous_signer", "reset_count", "restart_count")}
    assert documented == made


def test_every_class_and_signature_result_is_documented() -> None:
    text = (ROOT / "docs" / "policy.md").read_text()
    for name in [*EntryClass, *SignatureResult]:
        if name.startswith("buffer"):
            assert "buffer allowed, differs, unknown" in text
        elif name is SignatureResult.MALFORMED:
            assert "malformed" in text
        else:
            assert name.value in text, name

"""Two versions of a program, each found by one configuration: what is known of either."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from campaign_runs import installed, versions
from excise.campaign.run import run_campaign
from excise.capture.store import MANIFEST
from excise.errors import HostError, Refused
from excise.events.load import load_capture

DIGEST = "program.versioned.sha256"


def facts(capture: Path) -> dict[str, object]:
    return {fact.name: fact.value for fact in load_capture(capture).manifest.host_facts}


def test_each_version_of_a_program_has_its_own_digest(tmp_path: Path) -> None:
    old, new = installed(tmp_path / "old", "1"), installed(tmp_path / "new", "2")
    run_campaign(versions(old, new), tmp_path / "c")
    found = facts(tmp_path / "c")
    for name, folder in ((DIGEST, "old"), (f"{DIGEST} under new", "new")):
        data = (tmp_path / folder / "versioned").read_bytes()
        assert found[name] == hashlib.sha256(data).hexdigest()


def test_a_version_that_changes_meanwhile_is_not_measured_on(tmp_path: Path) -> None:
    old, new = installed(tmp_path / "old", "1"), installed(tmp_path / "new", "2")
    run_campaign(versions(old, new), tmp_path / "c")
    installed(tmp_path / "new", "3")
    with pytest.raises(Refused, match="other conditions") as refused:
        run_campaign(versions(old, new, blocks=3), tmp_path / "c")
    assert f"{DIGEST} under new" in str(refused.value.differences)


def test_a_program_that_both_find_in_one_place_is_one_fact(tmp_path: Path) -> None:
    path = installed(tmp_path / "old", "1")
    run_campaign(versions(path, path), tmp_path / "c")
    assert [name for name in facts(tmp_path / "c") if name.startswith("program.")] == [DIGEST]


def test_a_configuration_that_does_not_find_its_program_is_named(tmp_path: Path) -> None:
    old = installed(tmp_path / "old", "1")
    with pytest.raises(HostError, match=r"configuration 'new'.*executable: versioned"):
        run_campaign(versions(old, os.environ["PATH"]), tmp_path / "c")
    assert not (tmp_path / "c" / MANIFEST).exists()

"""The example of a whole campaign runs as it stands, in fewer rounds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from skips import skip

EXAMPLE = Path(__file__).parents[2] / "examples" / "attestation.sh"


@pytest.mark.lab
def test_the_campaign_attests_under_three_keys_and_two_builds(tmp_path: Path) -> None:
    if shutil.which("swtpm") is None:
        skip("swtpm is not installed")
    program = str(Path(sys.executable).with_name("excise"))
    environment = {**os.environ, "EXCISE": program, "ROUNDS": "5"}
    done = subprocess.run(
        ["sh", str(EXAMPLE), str(tmp_path / "made")],
        env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for build in ("small", "large"):
        log = (tmp_path / "made" / f"{build}.log").read_text()
        assert (
            re.findall(r"^(\d+ attestations: .*)$", log, re.MULTILINE)
            == ["5 attestations: 5 affirming"] * 3
        )
        assert set(re.findall(r"^RA_PERF\|host\|total\|\d+\|key=(\w+)$", log, re.MULTILINE)) == {
            "embedded",
            "plain",
            "black",
        }
        assert f"{build}.excise" in done.stdout
    # What lint finds of a loaded machine is no fault of the example.
    assert done.stdout.count("lint.identity.ra-perf.cose_sign1") == 6
    report = (tmp_path / "made" / "report.html").read_text()
    assert "sign_ecdsa" in report
    assert "black" in report
    assert "large.log" in report

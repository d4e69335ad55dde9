"""The sensor's campaigns: files that name every task, and commands that the program takes."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from excise.campaign.spec import Campaign, Task, read_campaign
from excise.campaign.target_spec import LabTarget
from excise.campaign.targets.guests import check_spec
from excise.capture.store import RAW
from excise.cli.main import main
from excise.events.load import load_capture
from excise.report.stacks import stack_charts

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = ("capture", "embed", "collect", "send")
JOINS = ("daa-tpm-keygen", "daa-tpm-join", "daa-tpm-keygen+join", "daa-keygen+join")


def campaign(name: str) -> Campaign:
    return read_campaign(EXAMPLES / name)


def commands() -> list[tuple[str, Task]]:
    return [
        (name, task) for name in ("sensor.toml", "sensor-lab.toml") for task in campaign(name).tasks
    ]


def test_the_campaign_has_every_task_ten_thousand_times() -> None:
    found = campaign("sensor.toml")
    assert [task.name for task in found.tasks] == [*JOINS, *STEPS, "transaction"]
    assert found.blocks == 10_000
    assert [task.name for task in found.tasks if task.events == "ra-perf"] == ["transaction"]


def test_the_labs_campaign_has_the_modes_of_ima_and_both_ways_of_handing_over() -> None:
    found = campaign("sensor-lab.toml")
    assert isinstance(found.target, LabTarget)
    check_spec(found, found.target)
    assert [each.name for each in found.configurations] == ["ima-off", "ima-fix", "ima-enforce"]
    names = {*JOINS, *STEPS, "transaction", "transaction by files"}
    assert {task.name for task in found.tasks} == names
    machine = found.target.machine
    assert (machine.python, machine.ports) == (True, (8086, 8088))


@pytest.mark.parametrize(
    ("name", "task"), commands(), ids=lambda each: each.name if isinstance(each, Task) else each
)
def test_each_command_is_one_that_the_program_takes(
    name: str,
    task: Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert task.command is not None
    assert task.command[0] == "excise"
    # No service and no TPM of this machine: nothing that the words name is there.
    words = [re.sub(r"http://[\d.]+:\d+", "http://127.0.0.1:9", each) for each in task.command]
    words = [each.replace("/dev/tpmrm0", str(tmp_path / "tpm")) for each in words]
    with pytest.raises(SystemExit):
        main(words[1:])
    said = capsys.readouterr().err
    assert "excise: " in said
    assert "option" not in said.lower()
    assert "argument" not in said.lower()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.mark.lab
def test_the_short_form_runs_here_with_a_software_tpm(tmp_path: Path) -> None:
    from skips import skip

    try:
        import skimage
    except ImportError:
        skip("scikit-image, whose package has a photograph of a face, is not installed")
    if shutil.which("swtpm") is None:
        skip("swtpm is not installed")
    issuer, verifier = _free_ports(2)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SENSOR_SOURCE": str(Path(skimage.__file__).parent / "data" / "astronaut.png"),
        "SENSOR_ISSUER": f"127.0.0.1:{issuer}",
        "SENSOR_VERIFIER": f"127.0.0.1:{verifier}",
    }
    done = subprocess.run(
        [EXAMPLES / "sensor.sh", "c.excise", "--blocks", "2"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = load_capture(tmp_path / "c.excise")
    assert found.runs.height == 3 * 2 * 9
    assert found.runs.get_column("ok").all()
    assert len(list((tmp_path / "c.excise" / RAW).glob("*.stdout"))) == 6
    steps = found.events.get_column("event").cast(str).unique().to_list()
    assert sorted(map(str, steps)) == sorted([*STEPS, "total", "perf_flush"])
    assert not list(stack_charts(found))  # two runs show no course

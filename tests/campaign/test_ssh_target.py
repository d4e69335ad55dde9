"""Campaigns on a machine reached by ssh: a real sshd, connections cut as they stand."""

from __future__ import annotations

import hashlib
import os
import random
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from campaign_runs import (
    RunningCampaign,
    heads,
    installed,
    losses,
    records,
    runs,
    session_states,
    small_campaign,
    versions,
)
from ended import wait_until
from excise.campaign.run import Finished, Progress, run_campaign
from excise.campaign.schedule import schedule
from excise.campaign.spec import Campaign, Configuration, Task, TookEffect
from excise.campaign.target_spec import SshTarget
from excise.capture.journal import Effect, Event, Run
from excise.capture.store import RAW, read_manifest
from excise.collect.remote import RemoteMachine, SshAddress
from excise.collect.remote_probe import probe_for
from excise.errors import EffectError, HostError, UsageError
from ssh_servers import SshServer, ssh_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    with ssh_server(tmp_path_factory.mktemp("sshd")) as running:
        yield running


def planned(campaign: Campaign) -> list[tuple[int, int, str, str, int, str]]:
    return heads([Run(**msgspec.structs.asdict(head)) for head in schedule(campaign)])


def campaign_on(server: SshServer, marks: Path, *, blocks: int, **options: object) -> Campaign:
    """Return a campaign there, below a work directory of its own."""
    there = marks.parent / "there"
    there.mkdir(exist_ok=True)
    return msgspec.structs.replace(
        small_campaign(marks, blocks=blocks),
        target=server.target(**options),
        work_directory=str(there),
    )


def assert_nothing_is_left(marks: Path) -> None:
    """Fail unless the probe, its folder and its launcher are gone from the target."""
    there = marks.parent / "there"

    def left() -> list[str]:
        words = ["pgrep", "-f", f"^{there}"]
        found = subprocess.run(words, capture_output=True, text=True, check=False)
        return [*map(str, there.iterdir()), *found.stdout.split()]

    wait_until(lambda: not left(), what="the end of all that was there")


def executed_runs(marks: Path) -> int:
    return marks.read_bytes().count(b"\n") if marks.exists() else 0


@contextmanager
def cutting(
    server: SshServer, marks: Path, *, cuts: int, runs_in_all: int, seed: int
) -> Iterator[tuple[list[int], Callable[[Progress], None]]]:
    """Cut connections at random moments, spread over a campaign's runs.

    Gives the cuts made, and a listener of the campaign's progress that waits for those due.

    A moment is a number of runs and a bit of time after it, so that a fast machine is cut as often
    as a slow one.
    """
    draw = random.Random(seed)
    made: list[int] = []
    end = threading.Event()
    spacing = runs_in_all // (cuts + 1)

    def cut() -> None:
        for number in range(cuts):
            moment = number * spacing + draw.randint(1, spacing)
            while executed_runs(marks) < moment and not end.wait(0.002):
                pass
            end.wait(draw.uniform(0.0, 0.01))
            # Every fifth time the cable, where there is one: then nothing says that it is over.
            if server.link and number % 5 == 4:
                with server.unplugged():
                    end.wait(draw.uniform(0.2, 2.5))
                made.append(1)
                continue
            while not end.is_set():
                if found := server.cut():
                    made.append(found)
                    break
                end.wait(0.002)  # it is between two connections

    def keep_step(_: Progress) -> None:
        """Let no campaign get ahead of its cuts on a machine that is busy."""
        due = max(0, executed_runs(marks) - 3) // spacing
        wait_until(lambda: len(made) >= min(due, cuts), what="a cut")

    thread = threading.Thread(target=cut)
    thread.start()
    try:
        yield made, keep_step
    finally:
        end.set()
        thread.join()


def run_with_cuts(
    server: SshServer, folder: Path, *, cuts: int, blocks: int, seed: int
) -> tuple[int, Finished]:
    """Run a campaign whose connection is cut so often; return the cuts made and how it ended."""
    marks = folder / "marks"
    campaign = campaign_on(server, marks, blocks=blocks)
    cutter = cutting(server, marks, cuts=cuts, runs_in_all=campaign.runs, seed=seed)
    with cutter as (made, keep_step):
        finished = run_campaign(campaign, folder / "c.excise", on_progress=keep_step)
        cut = len(made)
    done = runs(folder / "c.excise")
    assert heads(done) == planned(campaign)
    assert all(run.ok for run in done)
    # What was executed but not recorded was in progress at a cut, and was measured anew.
    executed = len(marks.read_bytes().splitlines())
    assert len(done) <= executed <= len(done) + cut
    assert losses(folder / "c.excise") == []
    assert session_states(folder / "c.excise") == ["started", "finished"]
    assert_nothing_is_left(marks)
    return cut, finished


def test_a_campaign_cut_off_five_times_equals_an_uninterrupted_one(
    server: SshServer, tmp_path: Path
) -> None:
    cut, finished = run_with_cuts(server, tmp_path, cuts=5, blocks=15, seed=1)
    assert cut == 5
    assert (finished.done, finished.failed) == (17 * 6, 0)


@pytest.mark.lab
@pytest.mark.long
def test_a_campaign_cut_off_at_fifty_moments_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    (tmp_path / "sshd").mkdir()
    with ssh_server(tmp_path / "sshd", in_namespace=True) as server:
        cut, _ = run_with_cuts(server, tmp_path, cuts=50, blocks=60, seed=2)
    assert cut == 50


@pytest.mark.lab
def test_a_client_that_was_killed_goes_on_and_takes_in_what_was_finished(
    server: SshServer, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    campaign = campaign_on(server, marks, blocks=2)
    slow = [
        msgspec.structs.replace(task, command=["sh", "-c", f"{task.command[2]}; sleep 0.1"])
        for task in campaign.tasks
        if task.command
    ]
    campaign = msgspec.structs.replace(campaign, tasks=slow)
    draw, kills = random.Random(4), 0
    while True:
        with RunningCampaign(campaign, tmp_path / "c") as session:
            if kills < 2:
                wait_until(
                    lambda: executed_runs(marks) >= 10 * (kills + 1),  # noqa: B023  called at once
                    beside=session.process,
                )
                time.sleep(draw.uniform(0.0, 0.3))
                session.kill()
            _, error = session.finish()
            assert error == ""
        if session.process.returncode == 0:
            break
        kills += 1
        assert (
            heads(runs(tmp_path / "c", killed=True))
            == planned(campaign)[: len(runs(tmp_path / "c", killed=True))]
        )
    assert heads(runs(tmp_path / "c")) == planned(campaign)
    executed = len(marks.read_bytes().splitlines())
    assert executed == campaign.runs, "a run whose launcher lived on was measured twice"
    assert_nothing_is_left(marks)


def everything(server: SshServer, folder: Path) -> Campaign:
    """Return a campaign with effects, set-up, a workload, the probe's mechanisms, and events."""
    marks = folder / "marks"
    standing = folder / "standing"
    perf = "RA_PERF|host|total|120|key=-\\nRA_PERF|ta|sign|70|key=plain\\n"
    plain = Configuration(
        name="plain",
        setup=[["sh", "-c", f"echo up >> {standing}"]],
        teardown=[["sh", "-c", f"echo down >> {standing}"]],
    )
    confined = Configuration(
        name="confined",
        probe=["--landlock"],
        environment={"MODE": "on"},
        took_effect=[
            TookEffect(environment="MODE", equals="on"),
            TookEffect(file="/proc/sys/kernel/ostype", equals="Linux"),
            TookEffect(command=["uname"], contains="Linux"),
        ],
    )
    return msgspec.structs.replace(
        campaign_on(server, marks, blocks=1),
        configurations=[plain, confined],
        tasks=[
            Task(name="open", workload="open_close", batches=2),
            Task(name="events", command=["printf", perf], events="ra-perf"),
        ],
        warmup=0,
    )


def test_effects_facts_outputs_and_events_come_back(server: SshServer, tmp_path: Path) -> None:
    campaign = everything(server, tmp_path)
    finished = run_campaign(campaign, tmp_path / "c")
    assert (finished.done, finished.failed) == (12, 0)
    found = records(tmp_path / "c")
    effects = [each for each in found if isinstance(each, Effect)]
    assert [each.outcome for each in effects] == ["PASSED"] * 4
    assert "landlock_denies_outside=True" in effects[0].got
    opened = [run for run in runs(tmp_path / "c") if run.task == "open"]
    assert all(run.probe and len(run.probe.op_ns) == 2 for run in opened)
    events = [each for each in found if isinstance(each, Event)]
    assert {(e.layer, e.event, e.value) for e in events} >= {("ta", "sign", 70_000.0)}
    assert len(list((tmp_path / "c" / RAW).iterdir())) == 6
    manifest = read_manifest(tmp_path / "c")
    facts = {fact.name: fact for fact in manifest.host_facts}
    assert facts["kernel.release"].value == os.uname().release
    assert facts["program.printf.sha256"].must_agree
    assert facts["cpu.count"].value == os.cpu_count()
    assert {clock.name for clock in manifest.clocks} > {"CLOCK_MONOTONIC_RAW"}
    ups = (tmp_path / "standing").read_text().split()
    assert ups == ["up", "down"] * (len(ups) // 2), "a set-up was not taken down"
    assert_nothing_is_left(tmp_path / "marks")


def test_a_configuration_without_effect_there_stops_the_campaign(
    server: SshServer, tmp_path: Path
) -> None:
    campaign = campaign_on(server, tmp_path / "marks", blocks=1)
    wrong = [TookEffect(file="/proc/sys/kernel/ostype", equals="Hurd")]
    first, *others = campaign.configurations
    campaign = msgspec.structs.replace(
        campaign, configurations=[msgspec.structs.replace(first, took_effect=wrong), *others]
    )
    with pytest.raises(EffectError, match="expected equals 'Hurd', got Linux"):
        run_campaign(campaign, tmp_path / "c")
    assert_nothing_is_left(tmp_path / "marks")


def test_a_connection_that_breaks_while_effects_are_asked_is_made_again(
    server: SshServer, tmp_path: Path
) -> None:
    campaign = campaign_on(server, tmp_path / "marks", blocks=1)
    asked, cut, standing = (tmp_path / name for name in ("asked", "cut", "standing"))
    waits = f"mkdir {asked} 2>/dev/null && until [ -e {cut} ]; do sleep 0.05; done; echo on"
    first, *others = campaign.configurations
    first = msgspec.structs.replace(
        first,
        setup=[["mkdir", str(standing)]],
        teardown=[["rmdir", str(standing)]],
        took_effect=[TookEffect(command=["sh", "-c", waits], equals="on")],
    )

    def break_it() -> None:
        wait_until(asked.is_dir, what="the question")
        server.cut()
        cut.touch()

    breaking = threading.Thread(target=break_it)
    breaking.start()
    try:
        run_campaign(
            msgspec.structs.replace(campaign, configurations=[first, *others]), tmp_path / "c"
        )
    finally:
        breaking.join()
    effects = [each for each in records(tmp_path / "c") if isinstance(each, Effect)]
    assert [each.got for each in effects if each.check.startswith("command")] == ["on"]
    assert not standing.exists()
    assert_nothing_is_left(tmp_path / "marks")


@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupt_finishes_the_run_there_or_ends_it(
    server: SshServer, tmp_path: Path, times: int
) -> None:
    marks = tmp_path / "marks"
    script = f"echo up >> {marks}; until [ -e {tmp_path}/let ]; do sleep 0.05; done"
    campaign = msgspec.structs.replace(
        campaign_on(server, marks, blocks=30),
        tasks=[Task(name="t", command=["sh", "-c", script])],
    )
    with RunningCampaign(campaign, tmp_path / "c") as session:
        wait_until(marks.exists, beside=session.process, what="the first run")
        session.interrupt(times=times)
        if times == 1:
            (tmp_path / "let").touch()
        _, error = session.finish()
        assert error == ""
    done = runs(tmp_path / "c")
    assert heads(done) == planned(campaign)[: len(done)]
    assert len(done) == (1 if times == 1 else 0)
    assert session_states(tmp_path / "c") == ["started", "interrupted"]
    assert_nothing_is_left(marks)


def test_a_host_key_that_is_not_the_known_one_is_refused(server: SshServer, tmp_path: Path) -> None:
    (tmp_path / "known_hosts").write_text("")
    campaign = campaign_on(
        server, tmp_path / "m", blocks=1, known_hosts=str(tmp_path / "known_hosts")
    )
    with pytest.raises(HostError, match=r"host key is not known.*fingerprint"):
        run_campaign(campaign, tmp_path / "c")
    assert not (tmp_path / "c").exists()
    trusting = campaign_on(
        server,
        tmp_path / "m",
        blocks=1,
        known_hosts=str(tmp_path / "known_hosts"),
        check_host_key=False,
    )
    assert run_campaign(trusting, tmp_path / "c").failed == 0


def test_a_key_that_is_not_accepted_is_said(server: SshServer, tmp_path: Path) -> None:
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    campaign = campaign_on(server, tmp_path / "m", blocks=1, identities=[str(other)])
    with pytest.raises(HostError, match=r"refused to log us in.*identities"):
        run_campaign(campaign, tmp_path / "c")


def test_a_machine_that_is_not_there_is_said_at_once(server: SshServer, tmp_path: Path) -> None:
    target = SshTarget(host="127.0.0.1", port=1, config="/dev/null")
    campaign = msgspec.structs.replace(small_campaign(tmp_path / "m"), target=target)
    with pytest.raises(HostError, match=r"127\.0\.0\.1: Connection refused. Does `ssh -p 1 127"):
        run_campaign(campaign, tmp_path / "c")


def test_a_machine_that_takes_a_connection_and_says_nothing_is_said_in_words(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        target = SshTarget(host="127.0.0.1", port=port, config="/dev/null", connect_timeout="1s")
        campaign = msgspec.structs.replace(small_campaign(tmp_path / "m"), target=target)
        with pytest.raises(HostError, match=r"^127.0.0.1: no answer in time. Does `ssh -p "):
            run_campaign(campaign, tmp_path / "c")


def test_a_file_that_the_target_names_and_is_not_here_is_named(
    server: SshServer, tmp_path: Path
) -> None:
    nothing = str(tmp_path / "nothing")
    for options in ({"identities": [nothing]}, {"known_hosts": nothing}, {"config": nothing}):
        campaign = campaign_on(server, tmp_path / "m", blocks=1, **options)
        with pytest.raises(HostError, match=f"^{nothing}: cannot be read .No such file"):
            run_campaign(campaign, tmp_path / "c")


def test_a_program_that_is_missing_there_is_named(server: SshServer, tmp_path: Path) -> None:
    campaign = msgspec.structs.replace(
        campaign_on(server, tmp_path / "m", blocks=1),
        tasks=[Task(name="t", command=["no-such-program"])],
    )
    with pytest.raises(HostError, match="not found or not executable there: no-such-program"):
        run_campaign(campaign, tmp_path / "c")


def versions_on(server: SshServer, old: str, new: str, folder: Path) -> Campaign:
    (folder / "there").mkdir(exist_ok=True)
    return msgspec.structs.replace(
        versions(old, new), target=server.target(), work_directory=str(folder / "there")
    )


def test_each_configuration_finds_its_program_there_on_its_own_path(
    server: SshServer, tmp_path: Path
) -> None:
    old, new = installed(tmp_path / "old", "1"), installed(tmp_path / "new", "2")
    finished = run_campaign(versions_on(server, old, new, tmp_path), tmp_path / "c")
    assert finished.failed == 0
    found = {fact.name: fact.value for fact in read_manifest(tmp_path / "c").host_facts}
    digest = "program.versioned.sha256"
    for name, folder in ((digest, "old"), (f"{digest} under new", "new")):
        data = (tmp_path / folder / "versioned").read_bytes()
        assert found[name] == hashlib.sha256(data).hexdigest()


def test_a_path_without_the_commands_of_a_system_hides_only_programs_under_test(
    server: SshServer, tmp_path: Path
) -> None:
    installed(tmp_path / "old", "1")
    bare = str(tmp_path / "old")
    campaign = msgspec.structs.replace(
        versions_on(server, bare, bare, tmp_path),
        configurations=[Configuration(name="bare", environment={"PATH": bare})],
        tasks=[Task(name="start", command=["versioned"]), Task(name="ls", command=["ls"])],
    )
    with pytest.raises(HostError, match=r"configuration 'bare': not .* executable there: ls\."):
        run_campaign(campaign, tmp_path / "c")


def test_a_configuration_that_does_not_find_its_program_there_is_named(
    server: SshServer, tmp_path: Path
) -> None:
    old = installed(tmp_path / "old", "1")
    campaign = versions_on(server, old, os.environ["PATH"], tmp_path)
    with pytest.raises(HostError, match=r"configuration 'new'.*executable there: versioned"):
        run_campaign(campaign, tmp_path / "c")
    assert not (tmp_path / "c").exists()
    first, second = campaign.configurations
    second = msgspec.structs.replace(second, environment={}, unset=["PATH"])
    campaign = msgspec.structs.replace(campaign, configurations=[first, second])
    with pytest.raises(HostError, match=r"configuration 'new'.*executable there: versioned"):
        run_campaign(campaign, tmp_path / "c")


def test_the_probe_fits_the_machine_or_what_to_build_is_named(tmp_path: Path) -> None:
    assert probe_for("x86_64").data.startswith(b"\x7fELF")
    with pytest.raises(HostError, match=r"riscv64 was not built.*--target riscv64gc-unknown-linux"):
        probe_for("riscv64")
    with pytest.raises(HostError, match=r"no probe for m68k.*probe = \.\.\."):
        probe_for("m68k")
    with pytest.raises(UsageError, match="is no program for aarch64"):
        probe_for("aarch64", given=str(probe_for("x86_64").path))
    foreign = bytearray(probe_for("x86_64").data[:64])
    foreign[18:20] = (183).to_bytes(2, "little")
    (tmp_path / "p").write_bytes(bytes(foreign))
    assert probe_for("aarch64", given=str(tmp_path / "p")).path == tmp_path / "p"


def test_a_file_is_written_in_one_step_and_read_back(server: SshServer, tmp_path: Path) -> None:
    spec = server.target()
    address = SshAddress(
        host=spec.host,
        port=spec.port,
        identities=tuple(spec.identities),
        known_hosts=spec.known_hosts,
        config="/dev/null",
    )
    data = bytes(range(256)) * 5000
    with RemoteMachine(address) as machine:
        machine.connect()
        machine.write_file(f"{tmp_path}/a file", data, mode=0o640)
        assert machine.read_file(f"{tmp_path}/a file") == data
        assert machine.read_file(f"{tmp_path}/none") is None
    assert (tmp_path / "a file").stat().st_mode & 0o777 == 0o640

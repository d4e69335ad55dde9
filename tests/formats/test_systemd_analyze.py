"""systemd-analyze: one boot with its stages, target, chain and units."""

from __future__ import annotations

from pathlib import Path

import pytest

from excise.capture.journal import Event
from excise.errors import FormatError
from excise.formats.model import Options, Reading
from excise.formats.registry import read
from foreign_inputs import SYSTEMD_BLAME, SYSTEMD_CHAIN, SYSTEMD_TIME


def _read(text: str | bytes, **options: str) -> Reading:
    data = text.encode() if isinstance(text, str) else text
    return read(
        data,
        options=Options(source="boot", **options),  # type: ignore[arg-type]
        format_name="systemd-analyze",
    )


def _events(reading: Reading, layer: str) -> dict[str, Event]:
    return {event.event: event for event in reading.events if event.layer == layer}


def test_the_captured_boot_gives_its_printed_times(shared_vectors: Path) -> None:
    reading = _read((shared_vectors / "formats/systemd_252/systemd-analyze_time.txt").read_bytes())
    (run,) = reading.runs
    assert (run.task, run.wall_ns, run.phase) == ("boot", 23_156_000_000, "measured")
    stages = {name: event.value for name, event in _events(reading, "stage").items()}
    assert stages == {"kernel": 7_395e6, "userspace": 15_760e6}
    target = _events(reading, "target")["graphical.target"]
    assert (target.value, target.parent) == (15_476e6, "stage|userspace")
    assert reading.losses == []


def test_the_captured_blame_is_a_run_without_a_total(shared_vectors: Path) -> None:
    reading = _read((shared_vectors / "formats/systemd_252/systemd-analyze_blame.txt").read_bytes())
    (run,) = reading.runs
    assert (run.task, run.wall_ns) == ("boot-units", None)
    units = _events(reading, "unit")
    assert len(units) == 28
    assert units["apparmor.service"].value == 6_852e6  # it stands after the login prompt
    assert units["modprobe@loop.service"].value == 999e6
    assert units["systemd-update-utmp-runlevel.service"].value == 173e6
    assert all(event.parent is None for event in units.values())
    assert any("do not add up" in note for note in reading.notes)


@pytest.mark.parametrize("suffix", ["", "_C"])
def test_the_captured_chain_hangs_below_its_target(shared_vectors: Path, suffix: str) -> None:
    name = f"formats/systemd_252/systemd-analyze_critical-chain{suffix}.txt"
    reading = _read((shared_vectors / name).read_bytes())
    assert _events(reading, "target")["graphical.target"].value == 15_476e6
    chain = _events(reading, "critical-chain")
    assert len(chain) == 16
    apparmor = chain["apparmor.service"]
    assert (apparmor.value, apparmor.start_ns) == (6_852e6, 6_897_000_000)
    assert {event.parent for event in chain.values()} == {"target|graphical.target"}
    assert r"run-credentials-systemd\x2dtmpfiles\x2dsetup.service.mount" in chain
    assert chain["-.slice"].start_ns == 2_290_000_000
    inside = sum(event.value for event in chain.values())
    assert inside <= 15_476e6


def test_all_stages_and_long_spans_are_read() -> None:
    reading = _read(SYSTEMD_TIME)
    stages = {name: event.value for name, event in _events(reading, "stage").items()}
    assert stages == {
        "firmware": 3_210e6,
        "loader": 1_404e6,
        "kernel": 7_395e6,
        "initrd": 2_500e6,
        "userspace": 65_754e6,
    }
    assert reading.runs[0].wall_ns == 80_264_000_000


@pytest.mark.parametrize(
    ("text", "total_ns", "stages"),
    [
        # A container has no kernel of its own, and no total.
        ("Startup finished in 1.234s (userspace) ", 1_234_000_000, {"userspace": 1_234e6}),
        (
            "Startup finished in 812ms (soft reboot) + 2.500s (userspace) = 3.312s.",
            3_312_000_000,
            {"soft_reboot": 812e6, "userspace": 2_500e6},
        ),
        (
            "Startup finished in 999us (kernel) + 1h 2min 3.004s (userspace) = 1h 2min 3.005s",
            3_723_005_000_000,
            {"kernel": 999e3, "userspace": 3_723_004e6},
        ),
        (
            "[  OK  ] systemd[1]: Startup finished in 1s (kernel) + 2s (userspace) = 3s.",
            3_000_000_000,
            {"kernel": 1e9, "userspace": 2e9},
        ),
    ],
)
def test_every_spelling_of_a_start_is_read(
    text: str, total_ns: int, stages: dict[str, float]
) -> None:
    reading = _read(text + "\n")
    assert reading.runs[0].wall_ns == total_ns
    assert {n: e.value for n, e in _events(reading, "stage").items()} == stages


def test_blame_of_one_release_prints_months() -> None:
    units = _events(_read(SYSTEMD_BLAME), "unit")
    months = 2 * 2_629_800 + 7 * 86_400 + 3 * 86_400 + 5 * 3_600 + 160
    assert units["fwupd-refresh.service"].value == (months + 0.101) * 1e9
    assert units["dev-hugepages.mount"].value == 41e3


def test_old_releases_name_the_target_without_a_stage() -> None:
    reading = _read(
        "Startup finished in 1s (kernel) + 2s (userspace) = 3s\n"
        "multi-user.target reached after 1.5s\n"
    )
    assert _events(reading, "target")["multi-user.target"].value == 1.5e9


def test_the_three_outputs_of_one_boot_are_joined() -> None:
    reading = _read(SYSTEMD_TIME + SYSTEMD_CHAIN + SYSTEMD_BLAME)
    assert [run.task for run in reading.runs] == ["boot", "boot-units"]
    chain = _events(reading, "critical-chain")["apparmor.service"]
    assert chain.parent == "target|graphical.target"
    assert _events(reading, "target")["graphical.target"].value == 65_476e6


def test_an_ascii_tree_is_read_like_the_other() -> None:
    plain = SYSTEMD_CHAIN.replace("└─", "`-")
    assert plain != SYSTEMD_CHAIN
    assert _read(plain).events == _read(SYSTEMD_CHAIN).events


def test_several_boots_are_several_runs() -> None:
    reading = _read(SYSTEMD_TIME * 4, configuration="ima_policy=tcb")
    assert [run.phase for run in reading.runs] == ["first", "measured", "measured", "measured"]
    assert {run.configuration for run in reading.runs} == {"ima_policy=tcb"}
    assert {event.sequence for event in reading.events} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("graphical.target was never reached", "systemd gives no time"),
        ("Could not get time to reach graphical.target", "systemd gives no time"),
        ("Startup finished in garbage", "the stages of the boot are damaged"),
        ("Startup finished in 1s (kernel) + 2s (userspace)", "the total is missing"),
        ("Startup finished in 1s (kernel) + x", "the stages of the boot are damaged"),
        ("Startup finished in 999999y (kernel) = 1s", "the time of kernel is no duration"),
    ],
)
def test_what_gives_no_time_is_a_loss(line: str, reason: str) -> None:
    reading = _read(SYSTEMD_TIME + line + "\n")
    (lost,) = reading.losses
    assert (lost.line, lost.reason) == (3, reason)


def test_a_loop_and_a_unit_without_time_in_the_chain_are_losses() -> None:
    text = SYSTEMD_CHAIN + "      └─basic.target ...\n        └─-.mount\n"
    reasons = [item.reason for item in _read(text).losses]
    assert reasons == ["a loop in the chain", "a unit of the chain without a time"]


def test_a_boot_that_is_not_finished_is_refused() -> None:
    text = "Bootup is not yet finished (org.freedesktop.systemd1.Manager.FinishTimestamp=0).\n"
    with pytest.raises(FormatError, match="boot: line 1: systemd gives no time"):
        _read(text)

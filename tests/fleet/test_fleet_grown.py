"""A list that merely grew is judged as the long way judges it, and all else by the long way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from excise.evidence.policy import Policy
from excise.fleet import grown, lists
from excise.fleet.host import appraise_host
from excise.fleet.records import HostJob, HostState, Settings, decode_state
from fleet_builder import (
    LIST,
    Attested,
    entries_of,
    fleet_policy,
    pcr_text,
    write_host,
)
from ima_builder import Entry, binary_list, ng, pcrs_after, violation

NEW = (ng("/usr/bin/new", b"new"), ng("/usr/bin/newer", b"newer"))


def _append(folder: Path, *more: Entry, covered: Sequence[Entry] | None = None) -> None:
    listed = [*entries_of(folder.name), *more]
    (folder / LIST).write_bytes(binary_list(listed))
    reached = listed if covered is None else [*entries_of(folder.name), *covered]
    (folder / "pcrs.txt").write_text(pcr_text(pcrs_after(reached, "sha1", "sha256")))


def _spoil(folder: Path) -> None:
    _append(folder, *NEW)
    data = bytearray((folder / LIST).read_bytes())
    data[-3] ^= 1
    (folder / LIST).write_bytes(data)


def _spoil_old(folder: Path) -> None:
    _append(folder, *NEW)
    data = bytearray((folder / LIST).read_bytes())
    data[len(binary_list(entries_of(folder.name))) - 2] ^= 1
    (folder / LIST).write_bytes(data)


def _cut(folder: Path) -> None:
    _append(folder, *NEW)
    (folder / LIST).write_bytes((folder / LIST).read_bytes()[:-5])


def _other_values(folder: Path) -> None:
    _append(folder, *NEW)
    text = (folder / "pcrs.txt").read_text()
    (folder / "pcrs.txt").write_text(text[:-3] + ("A" if text[-3] != "A" else "B") + text[-2:])


def _one_bank(folder: Path) -> None:
    _append(folder, *NEW)
    listed = [*entries_of(folder.name), *NEW]
    (folder / "pcrs.txt").write_text(pcr_text(pcrs_after(listed, "sha256")))


def _no_values(folder: Path) -> None:
    _append(folder, *NEW)
    (folder / "pcrs.txt").unlink()


def _boot_values(folder: Path) -> None:
    _append(folder, *NEW)
    listed = [*entries_of(folder.name), *NEW]
    values = {
        b: {0: bytes(len(v[10])), **v} for b, v in pcrs_after(listed, "sha1", "sha256").items()
    }
    (folder / "pcrs.txt").write_text(pcr_text(values))


def _new_boot(folder: Path) -> None:
    _append(folder)
    listed = [*reversed(entries_of(folder.name)), *NEW, *NEW]
    (folder / LIST).write_bytes(binary_list(listed))
    (folder / "pcrs.txt").write_text(pcr_text(pcrs_after(listed, "sha1", "sha256")))


CASES: dict[str, tuple[Callable[[Path], None], bool]] = {
    "nothing new": (lambda _: None, True),
    "new files": (lambda at: _append(at, *NEW), True),
    "one new file": (lambda at: _append(at, NEW[0]), True),
    "values of the boot too": (_boot_values, True),
    "an unknown file": (lambda at: _append(at, *NEW, ng("/tmp/x", b"x")), False),
    "another file by a known name": (lambda at: _append(at, ng("/usr/bin/new", b"x")), False),
    "a violation": (lambda at: _append(at, NEW[0], violation("/var/log/x")), False),
    "the name of a boot aggregate": (lambda at: _append(at, ng("boot_aggregate", b"x")), False),
    "more than is covered": (lambda at: _append(at, *NEW, covered=NEW[:1]), False),
    "new files and old values": (lambda at: _append(at, *NEW, covered=()), False),
    "values of more than the list": (lambda at: _append(at, NEW[0], covered=NEW), False),
    "a changed new entry": (_spoil, False),
    "a changed old entry": (_spoil_old, False),
    "half an entry": (_cut, False),
    "another value": (_other_values, False),
    "one bank less": (_one_bank, False),
    "no values": (_no_values, False),
    "a new boot": (_new_boot, False),
}


class _Asked:
    """Notes what `follow` answers, or answers nothing itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, answers: bool) -> None:
        self.found = False
        self._answers = answers
        monkeypatch.setattr(lists, "follow", self._follow)

    def _follow(self, *given: Any, **named: Any) -> grown.Grown | None:
        if not self._answers:
            return None
        found = grown.follow(*given, **named)
        self.found = found is not None
        return found


def _round(folder: Path, state: HostState | None, policy: Policy | None) -> HostState:
    job = HostJob(host=folder.name, url=str(folder), state=state.encode() if state else None)
    settings = Settings(policy_digest=policy.digest if policy else None)
    found = appraise_host(job, policy=policy, settings=settings)
    return decode_state(found.encode(), source="test")


def _timeless(state: HostState) -> Any:
    """Return a state without its times; that of a check only says whether it is this round's."""
    rows = tuple(
        msgspec.structs.replace(
            row, passed_ns=None if row.passed_ns is None else row.passed_ns == state.attempted_ns
        )
        for row in state.checks
    )
    renewed = state.verified_ns == state.attempted_ns
    return msgspec.structs.replace(state, attempted_ns=0, verified_ns=renewed, checks=rows)


@pytest.mark.parametrize("judged", [True, False], ids=["policy", "no policy"])
@pytest.mark.parametrize("case", CASES)
def test_a_list_that_grew_is_judged_word_for_word_as_the_long_way_judges_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, judged: bool
) -> None:
    change, merely_grew = CASES[case]
    folder = write_host(tmp_path, "a")
    policy = fleet_policy(["a"], more=NEW) if judged else None
    before = _round(folder, None, policy)
    change(folder)
    with monkeypatch.context() as patch:
        _Asked(patch, answers=False)
        expected = _round(folder, before, policy)
    asked = _Asked(monkeypatch, answers=True)
    found = _round(folder, before, policy)
    assert _timeless(found) == _timeless(expected)
    # Without a policy, names and digests are nobody's business.
    free = not judged and case in ("an unknown file", "another file by a known name")
    assert asked.found is (merely_grew or free)
    after = _round(folder, found, policy)
    with monkeypatch.context() as patch:
        _Asked(patch, answers=False)
        assert _timeless(after) == _timeless(_round(folder, expected, policy))


def test_a_state_of_other_settings_is_not_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_host(tmp_path, "a")
    before = _round(folder, None, fleet_policy(["a"], more=NEW))
    _append(folder, *NEW)
    asked = _Asked(monkeypatch, answers=True)
    assert _round(folder, before, fleet_policy(["a"])).new_entries == 43
    assert not asked.found


def test_hosts_of_one_policy_do_not_count_for_each_other(tmp_path: Path) -> None:
    policy = fleet_policy(["a", "b"], more=NEW)
    states = {}
    for name in "ab":
        folder = write_host(tmp_path, name)
        states[name] = _round(folder, None, policy)
    _append(tmp_path / "a", *NEW)
    for name, allowed in (("a", 43), ("b", 41), ("a", 43)):
        found = _round(tmp_path / name, states[name], policy)
        assert found.policy is not None
        assert found.policy.counts == {"allowed": allowed}


def test_what_a_quote_proves_is_followed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Attested("a").write(tmp_path)
    before = _round(folder, None, None)
    Attested("a", nonce=b"another nonce", clock_ms=9_000).write(tmp_path, [*entries_of("a"), *NEW])
    asked = _Asked(monkeypatch, answers=True)
    found = _round(folder, before, None)
    assert asked.found
    assert (found.entries, found.new_entries) == (44, 2)

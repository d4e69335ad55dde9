"""A host whose list merely grew is judged as the long way judges it, and all others by that way."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from excise.evidence.policy import (
    AppraisalOptions,
    EntryClass,
    Policy,
    PolicyAppraiser,
    PolicyBuilder,
    PolicyState,
    Treatment,
)
from excise.evidence.signature import SignatureResult
from excise.fleet import grown, lists
from excise.fleet.grown import follow, follow_hosts
from excise.fleet.host import appraise_host
from excise.fleet.judged import as_judged
from excise.fleet.records import Finding, HostJob, HostState, Settings, decode_state
from fleet_builder import (
    LIST,
    Attested,
    entries_of,
    fleet_policy,
    pcr_text,
    write_host,
)
from ima_builder import Entry, binary_list, ng, pcrs_after, violation
from quote_builders import pem, rsa_key

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


def _beside(folder: Path, name: str, data: bytes = b"x") -> None:
    """Append, and put a file beside the list."""
    _append(folder, *NEW)
    (folder / name).write_bytes(data)


def _link(folder: Path) -> None:
    _append(folder, *NEW)
    (folder / LIST).rename(folder.parent / "list")
    (folder / LIST).symlink_to(folder.parent / "list")


def _broken_link(folder: Path) -> None:
    _append(folder, *NEW)
    (folder / "quote.nonce").symlink_to(folder / "nowhere")


def _pipe(folder: Path) -> None:
    _append(folder, *NEW)
    os.mkfifo(folder / "pcrs.yaml")


def _folder_of_a_known_name(folder: Path) -> None:
    _append(folder, *NEW)
    (folder / "pcrs").mkdir()
    (folder / "more").mkdir()


def _other_form(folder: Path) -> None:
    _append(folder, *NEW)
    values = pcrs_after([*entries_of(folder.name), *NEW], "sha1", "sha256")
    rows = [f"{bank}:10 {held[10].hex()}\n" for bank, held in values.items()]
    (folder / "pcrs.txt").write_text("".join(rows))


def _twice(folder: Path) -> None:
    _append(folder, *NEW)
    text = (folder / "pcrs.txt").read_text()
    (folder / "pcrs.txt").write_text(text + text)


def _yaml(folder: Path) -> None:
    _append(folder, *NEW)
    (folder / "pcrs.txt").rename(folder / "pcrs.yaml")


def _many_strange_names(folder: Path) -> None:
    _append(folder, *NEW)
    for number in range(30):
        (folder / f"{chr(0x1F600 + number)} {number}\n").write_text("")


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
    "files that are no evidence": (lambda at: _beside(at, "README"), True),
    "a second form of the list": (lambda at: _beside(at, "ascii_runtime_measurements"), True),
    "a second file of values": (lambda at: _beside(at, "pcrs.bin"), True),
    "values of another name": (_yaml, True),
    "more names than are told": (_many_strange_names, True),
    "a folder where a file should be": (_folder_of_a_known_name, True),
    "a pipe where a file should be": (_pipe, True),
    "a link to the list": (_link, True),
    "values in another form": (_other_form, False),
    "every value twice": (_twice, False),
    "a nonce": (lambda at: _beside(at, "quote.nonce"), False),
    "a link to nowhere": (_broken_link, False),
    "a boot log": (lambda at: _beside(at, "binary_bios_measurements"), False),
    "a capture": (lambda at: _beside(at, "today.excise"), False),
}


def _long_way(*_: Any, **__: Any) -> None:
    """Answer as where the long way has to tell."""


def _job(folder: Path, state: HostState | None) -> HostJob:
    return HostJob(host=folder.name, url=str(folder), state=state.encode() if state else None)


def _round(folder: Path, state: HostState | None, policy: Policy | None, **named: Any) -> HostState:
    judged_by = Settings(policy_digest=policy.digest if policy else None, **named)
    found = appraise_host(_job(folder, state), policy=policy, settings=judged_by)
    return decode_state(found.encode(), source="test")


def _short(folder: Path, state: HostState, policy: Policy | None, **named: Any) -> HostState | None:
    judged_by = Settings(policy_digest=policy.digest if policy else None, **named)
    (found,) = follow_hosts([_job(folder, state)], policy=policy, settings=judged_by)
    return decode_state(found, source="test") if found is not None else None


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
        patch.setattr(lists, "follow", _long_way)
        expected = _round(folder, before, policy)
    assert _timeless(_round(folder, before, policy)) == _timeless(expected)
    found = _short(folder, before, policy)
    # Without a policy, names and digests are nobody's business.
    free = not judged and case in ("an unknown file", "another file by a known name")
    assert (found is not None) is (merely_grew or free)
    if found is None:
        return
    assert _timeless(found) == _timeless(expected)
    after = _short(folder, found, policy)
    assert after is not None
    with monkeypatch.context() as patch:
        patch.setattr(lists, "follow", _long_way)
        assert _timeless(after) == _timeless(_round(folder, expected, policy))


def test_a_host_with_a_quote_takes_the_short_way_for_its_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Attested("a").write(tmp_path)
    before = _round(folder, None, None)
    Attested("a", nonce=b"another nonce", clock_ms=9_000).write(tmp_path, [*entries_of("a"), *NEW])
    answers = []

    def asked(*given: Any, **named: Any) -> grown.Grown | None:
        answers.append(follow(*given, **named))
        return answers[-1]

    assert _short(folder, before, None) is None
    monkeypatch.setattr(lists, "follow", asked)
    found = _round(folder, before, None)
    assert (found.verdict, found.entries, found.new_entries) == ("NOT_COVERED", 44, 2)
    assert [answer is not None for answer in answers] == [True]
    monkeypatch.setattr(lists, "follow", _long_way)
    assert _timeless(_round(folder, before, None)) == _timeless(found)


def test_a_state_of_other_settings_is_not_gone_on_from(tmp_path: Path) -> None:
    folder = write_host(tmp_path, "a")
    policy = fleet_policy(["a"], more=NEW)
    before = _round(folder, None, policy)
    _append(folder, *NEW)
    assert _short(folder, before, fleet_policy(["a"])) is None
    assert _short(folder, before, policy, violations="fail") is None
    assert _short(folder, before, None) is None
    assert _short(folder, before, policy) is not None


def test_what_a_host_must_have_is_asked_for(tmp_path: Path) -> None:
    folder = write_host(tmp_path, "a")
    before = _round(folder, None, None)
    assert _short(folder, before, None, require=("ima", "quote")) is None
    found = _short(folder, before, None, require=("ima",))
    assert found is not None
    assert _timeless(found) == _timeless(_round(folder, before, None, require=("ima",)))


def test_a_list_longer_than_the_limit_is_left_to_the_long_way(tmp_path: Path) -> None:
    folder = write_host(tmp_path, "a")
    before = _round(folder, None, None)
    size = (folder / LIST).stat().st_size
    assert _short(folder, before, None, max_list_bytes=size - 1) is None
    assert _short(folder, before, None, max_list_bytes=size) is not None


def test_hosts_of_one_policy_do_not_count_for_each_other(tmp_path: Path) -> None:
    policy = fleet_policy(["a", "b"], more=NEW)
    states = {}
    for name in "ab":
        folder = write_host(tmp_path, name)
        states[name] = _round(folder, None, policy)
    _append(tmp_path / "a", *NEW)
    jobs = [_job(tmp_path / name, states[name]) for name in "aba"]
    found = follow_hosts(
        jobs, policy=policy, settings=Settings(policy_digest=policy.digest), threads=3
    )
    counts = []
    for data in found:
        state = decode_state(data or b"", source="test")
        assert state.policy is not None
        counts.append(state.policy.counts)
    assert counts == [{"allowed": 43}, {"allowed": 41}, {"allowed": 43}]


def test_every_host_gets_its_own_answer_however_many_threads_there_are(tmp_path: Path) -> None:
    names = [f"h{number}" for number in range(60)]
    jobs = []
    for name in names:
        folder = write_host(tmp_path, name)
        state = _round(folder, None, None)
        if name.endswith("7"):
            _spoil(folder)
        jobs.append(_job(folder, None if name.endswith("5") else state))
    found = follow_hosts(jobs, policy=None, settings=Settings(), threads=8)
    none = [name for name, data in zip(names, found, strict=True) if data is None]
    assert none == [name for name in names if name[-1] in "57"]
    for name, data in zip(names, found, strict=True):
        assert data is None or decode_state(data, source="test").host == name


def _changed(data: bytes, chance: random.Random, *, start: int = 0) -> bytes:
    """Return bytes with a bit turned, or some lost, put in, or repeated."""
    at = chance.randrange(start, len(data))
    upto = at + chance.randrange(1, 9)
    return chance.choice(
        (
            data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :],
            data[:at] + data[upto:],
            data[:at] + chance.randbytes(4) + data[at:],
            data[:at] + data[at:upto] + data[at:],
        )
    )


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_changed_the_short_way_says_nothing_else_than_the_long_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    folder = write_host(tmp_path, "a")
    policy = fleet_policy(["a"], more=NEW)
    judged_by = Settings(policy_digest=policy.digest)
    state = _round(folder, None, policy).encode()
    covered = (folder / LIST).stat().st_size
    _append(folder, *NEW)
    listed, values = (folder / LIST).read_bytes(), (folder / "pcrs.txt").read_bytes()
    monkeypatch.setattr(lists, "follow", _long_way)
    answers = 0
    for number in range(120):
        start = chance.choice((0, covered - 90, covered))
        changed = _changed(listed, chance, start=start) if number % 3 == 0 else listed
        (folder / LIST).write_bytes(changed)
        changed = _changed(values, chance) if number % 3 == 1 else values
        (folder / "pcrs.txt").write_bytes(changed)
        known = _changed(state, chance) if number % 3 == 2 else state
        job = HostJob(host="a", url=str(folder), state=known)
        (found,) = follow_hosts([job], policy=policy, settings=judged_by)
        if found is not None:
            answers += 1
            expected = appraise_host(job, policy=policy, settings=judged_by)
            assert _timeless(decode_state(found, source="test")) == _timeless(expected)
    assert 0 < answers < 80


SPOILT: dict[str, Any] = {
    "host": "b",
    "schema": 2,
    "settings": 7,
    "verdict": None,
    "attempted_ns": "now",
    "checks": [["ima", "ima.format", "PASSED"]],
    "findings": [["violation"]],
    "quote": "AAAA",
    "key_sha256": "cd" * 32,
    "captures": {"c.excise": {"fingerprint": "", "checks": [], "costs": []}},
    "policy": {"counts": {"unheard of": 1}},
    "checkpoint": None,
    "checkpoint.kind": "another",
    "checkpoint.version": 2,
    "checkpoint.list_format": "yaml",
    "checkpoint.byte_order": "middle",
    "checkpoint.header_bank": "sm3",
    "checkpoint.base_offset": 1,
    "checkpoint.offset": 3,
    "checkpoint.count": 0,
    "checkpoint.line": 0,
    "checkpoint.registers": [],
    "checkpoint.policy_digest": None,
    "checkpoint.first_record": {"size_bytes": 0, "sha256": "00", "head": "00"},
    "checkpoint.last_record": {"size_bytes": 1, "sha256": "0g", "head": "00"},
}


@pytest.mark.parametrize("field", SPOILT)
def test_a_state_that_is_not_sound_is_left_to_the_long_way(tmp_path: Path, field: str) -> None:
    folder = write_host(tmp_path, "a")
    sound = _round(folder, None, None).encode()
    document = json.loads(sound)
    *path, last = field.split(".")
    place = document
    for name in path:
        place = place[name]
    place[last] = SPOILT[field]
    for state, answers in ((sound, True), (json.dumps(document).encode(), False)):
        job = HostJob(host="a", url=str(folder), state=state)
        (found,) = follow_hosts([job], policy=None, settings=Settings())
        assert (found is not None) is answers
    for cut in (sound[:-1], sound[1:], b"", b"{}", sound + b"}"):
        job = HostJob(host="a", url=str(folder), state=cut)
        assert follow_hosts([job], policy=None, settings=Settings()) == [None]


def test_what_a_state_holds_beside_stays_as_it_was(tmp_path: Path) -> None:
    folder = write_host(tmp_path, 'ä\n"')
    found = (Finding("unknown file", "/tmp/\u00e9\\xff\n", "sha256", "ab", 3),)
    before = msgspec.structs.replace(_round(folder, None, None), findings=found, verified_ns=7)
    after = _short(folder, before, None)
    assert after is not None
    assert (after.host, after.findings) == (before.host, found)
    assert after.verified_ns == after.attempted_ns


def test_when_a_check_last_passed_is_remembered(tmp_path: Path) -> None:
    folder = write_host(tmp_path, "a")
    before = _round(folder, None, None)
    after = _short(folder, before, None)
    assert after is not None
    row = next(row for row in after.checks if row.check == "ima.fields")
    assert (row.outcome, row.passed_ns) == ("NOT_COVERED", before.attempted_ns)


def _policies() -> dict[str, Policy]:
    """Return policies whose checks differ: with digests alone, with buffers too, and with a key."""
    entries = [*entries_of("a"), *NEW]
    digests = {}
    for entry in entries:
        name, digest = entry.values["n-ng"], entry.values["d-ng"]
        assert isinstance(name, bytes)
        assert isinstance(digest, bytes)
        digests[name[:-1].decode()] = [digest[-32:].hex()]
    found = {}
    for name, more in (("digests", {}), ("buffers", {"ima-buf": {"dm_table_load": ["ab" * 32]}})):
        builder = PolicyBuilder()
        builder.add_keylime(json.dumps({"digests": digests, **more}).encode())
        found[name] = builder.compile()
    builder = PolicyBuilder()
    builder.add_keylime(json.dumps({"digests": digests}).encode())
    builder.add_key(pem(rsa_key()))
    found["key"] = builder.compile()
    return found


POLICIES = _policies()
counts = st.integers(0, 30) | st.just(0)
states = st.builds(
    PolicyState,
    counts=st.dictionaries(st.sampled_from([each.value for each in EntryClass]), counts),
    signature_counts=st.dictionaries(
        st.sampled_from([each.value for each in SignatureResult]), counts
    ),
    files=counts,
    unsigned_faults=counts,
    boot_aggregate=st.none() | st.just(("sha256", "ab" * 32)),
)


@cache
def _first(folder: Path, kind: str, judged_by: Settings) -> HostState:
    job = _job(folder, None)
    return appraise_host(job, policy=POLICIES[kind], settings=judged_by)


@pytest.mark.parametrize("violations", [each.value for each in Treatment])
@pytest.mark.parametrize("kind", ["digests", "buffers", "key"])
@settings(
    max_examples=120,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(known=states)
def test_the_policy_is_asked_the_same_whatever_was_counted(
    tmp_path_factory: pytest.TempPathFactory, kind: str, violations: str, known: PolicyState
) -> None:
    folder = tmp_path_factory.getbasetemp() / "asked" / "a"
    if not folder.exists():
        write_host(folder.parent, "a")
    policy = POLICIES[kind]
    judged_by = Settings(policy_digest=policy.digest, violations=violations)
    state = _first(folder, kind, judged_by)
    asked = msgspec.structs.replace(state, policy=known).encode()
    assert state.checkpoint is not None
    size = state.checkpoint.last_record.size_bytes
    tail = (folder / LIST).read_bytes()[state.checkpoint.offset - size :]
    values = pcrs_after(entries_of("a"), "sha1", "sha256")
    found = follow(tail, asked, pcrs=values, policy=policy, settings=judged_by)
    options = AppraisalOptions(violations=Treatment(violations))
    appraiser = PolicyAppraiser(policy, options=options, before=known)
    assert found is not None
    assert found.policy == as_judged(appraiser.finish())
    assert found.policy_state == appraiser.state()

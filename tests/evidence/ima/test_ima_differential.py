"""The native replay equals a slow plain-Python one on generated lists."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

import ima_reference
from excise.evidence.ima.replay import ChainSpec, Layout, replay, zero
from excise.evidence.ima.source import Source
from ima_builder import FORMATS, SIZES, Entry, ascii_list, binary_list, d_ng, pcr_after

BANKS = ("sha1", "sha256", "sha384", "sha512", "sm3_256")
ORDERS = ("little", "big")
ALGORITHMS = {"sha1": 20, "sha256": 32, "sha512": 64, "md5": 16}
CUSTOM = ("d-ng|sig", "n-ng|d-ng", "n-ng|sig|d-ng", "n", "sig", "d-ng|n-ng|iuid", "d|n-ng|imode")

names = st.binary(min_size=1, max_size=60).map(
    lambda raw: bytes(byte if byte not in b"\0\n " else 95 for byte in raw)
)
hexable = st.binary(max_size=40)


@st.composite
def entries(draw: st.DrawFn, unknown: bool = True) -> Entry:
    template = draw(st.sampled_from([*FORMATS, *CUSTOM, *(["ima-cgpath"] if unknown else [])]))
    pcr = draw(st.sampled_from([10, 10, 10, 10, 11]))
    violated = draw(st.sampled_from([False] * 6 + [True]))
    if template == "ima-cgpath":
        raw = draw(st.binary(max_size=80))
        return Entry(template=template, raw=raw, pcr=pcr, violation=violated)
    algorithm = draw(st.sampled_from(sorted(ALGORITHMS)))
    size = ALGORITHMS[algorithm]
    file_digest = draw(st.binary(min_size=size, max_size=size))
    name = draw(names)
    values: dict[str, bytes | int] = {
        "d": file_digest[:16].ljust(20, b"\1"),
        "n": name if template == "ima" else name + b"\0",
        "d-ng": d_ng(algorithm, file_digest),
        "d-ngv2": b"ima:" + d_ng(algorithm, file_digest),
        "n-ng": name + b"\0",
        "sig": draw(hexable),
        "buf": draw(hexable),
        "d-modsig": draw(st.sampled_from([b"", d_ng("sha256", bytes(31) + b"\7")])),
        "modsig": draw(hexable),
        "evmsig": draw(hexable),
        "xattrnames": draw(st.sampled_from([b"", b"security.ima|security.selinux\0"])),
        "xattrlengths": draw(hexable),
        "xattrvalues": draw(hexable),
        "iuid": draw(st.integers(0, 2**32 - 1)),
        "igid": draw(st.integers(0, 2**32 - 1)),
        "imode": draw(st.integers(0, 2**16 - 1)),
    }
    return Entry(template=template, values=values, pcr=pcr, violation=violated)


def source_of(data: bytes) -> Source:
    return Source(native=data, name="", size_bytes=len(data))


def chains(banks: tuple[str, ...]) -> list[ChainSpec]:
    return [
        ChainSpec(pcr=pcr, bank=bank, rule=rule, start=zero(bank), target=None)
        for pcr in (10, 11)
        for bank in banks
        for rule in ima_reference.RULES
    ]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(entries(), max_size=8),
    st.sampled_from(BANKS),
    st.sampled_from(ORDERS),
    st.data(),
)
def test_binary_lists_replay_as_the_reference_does(
    listed: list[Entry], bank: str, order: str, data: st.DataObject
):
    whole = bytearray(binary_list(listed, bank, order))
    if whole and data.draw(st.booleans(), label="damage"):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(whole)), label="cut")
    raw = bytes(whole[: max(cut, len(whole) - 40)])
    expected = ima_reference.read(raw, bank, order, BANKS)
    layout = Layout(format="binary", byte_order=order, header_bank=bank)
    got = replay(source_of(raw), chains=chains(BANKS), layout=layout)
    assert got.entries == expected.entries
    assert got.end.offset == expected.consumed
    assert got.trailing_bytes == len(raw) - expected.consumed
    assert (got.fault is not None) == (expected.consumed < len(raw))
    assert [place.offset for place in got.violations.items] == expected.violations
    assert [
        (bad.place.index, bad.place.offset, bad.expected, bad.got) for bad in got.bad_hashes.items
    ] == expected.bad
    for pcr, register in expected.registers.items():
        for (b, rule), value in register.items():
            chain = got.chain(pcr, b, rule)
            if chain is not None:
                assert chain.value == value, (pcr, b, rule)


@settings(max_examples=100, deadline=None)
@given(st.lists(entries(), min_size=1, max_size=8), st.sampled_from(BANKS), st.sampled_from(ORDERS))
def test_the_layout_is_found_from_one_entry_with_a_right_hash(
    listed: list[Entry], bank: str, order: str
):
    raw = binary_list(listed, bank, order)
    got = replay(source_of(raw), chains=chains((bank,)))
    if not all(entry.violation for entry in listed):
        assert got.layout == Layout(format="binary", byte_order=order, header_bank=bank)
        assert got.bad_hashes.count == 0
    assert got.entries + (got.trailing_bytes > 0) >= 1


@settings(max_examples=150, deadline=None)
@given(
    st.lists(entries(unknown=False), max_size=6), st.sampled_from(BANKS), st.sampled_from(ORDERS)
)
def test_ascii_lists_give_back_the_bytes_that_were_hashed(
    listed: list[Entry], bank: str, order: str
):
    raw = ascii_list(listed, bank, order)
    layout = Layout(format="ascii", byte_order=order, header_bank=bank)
    got = replay(source_of(raw), chains=chains(("sha1", bank)), layout=layout)
    assert got.entries == len(listed)
    assert got.fault is None
    assert got.bad_hashes.count == got.opaque.count == 0
    for b in ("sha1", bank):
        for rule in ("own", "padded-sha1", "padded-sha1-wide-violations"):
            chain = got.chain(10, b, rule)
            assert chain is not None
            assert chain.value == pcr_after(listed, b, rule=rule, order=order)


@settings(max_examples=60, deadline=None)
@given(st.lists(entries(), min_size=1, max_size=10), st.data())
def test_the_value_looked_for_is_found_where_the_reference_has_it(
    listed: list[Entry], data: st.DataObject
):
    raw = binary_list(listed)
    expected = ima_reference.read(raw, "sha1", "little", ("sha256",))
    at = data.draw(st.integers(0, len(listed) - 1))
    pcr, values = expected.values_after[at]
    target = values["sha256", "own"]
    chain = ChainSpec(pcr=pcr, bank="sha256", rule="own", start=bytes(32), target=target)
    layout = Layout(format="binary", byte_order="little", header_bank="sha1")
    got = replay(source_of(raw), chains=[chain], layout=layout).chain(pcr, "sha256")
    assert got is not None
    assert got.hit is not None
    assert got.hit.place.index == at
    assert got.hit.states[pcr, "sha256", "own"] == target
    assert SIZES["sha256"] == len(target)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(entries(), min_size=1, max_size=10),
    st.sampled_from(BANKS),
    st.booleans(),
    st.integers(0, 9),
)
def test_two_banks_extended_side_by_side_equal_each_bank_alone(
    listed: list[Entry], bank: str, ascii_form: bool, at: int
):
    raw = ascii_list(listed, bank) if ascii_form else binary_list(listed, bank)
    layout = Layout(
        format="ascii" if ascii_form else "binary", byte_order="little", header_bank=bank
    )
    pcr = listed[0].pcr
    target = {b: pcr_after(listed[: at + 1], b, pcr=pcr) for b in ("sha1", "sha256")}
    specs = {
        b: ChainSpec(pcr=pcr, bank=b, rule="own", start=zero(b), target=target[b])
        for b in ("sha1", "sha256")
    }
    others = [("sha256", "own")]
    both = replay(source_of(raw), chains=specs.values(), others=others, layout=layout)
    for b, spec in specs.items():
        alone = replay(source_of(raw), chains=[spec], others=others, layout=layout)
        left, right = both.chain(pcr, b), alone.chain(pcr, b)
        assert left is not None
        assert right is not None
        assert left.broken_at == right.broken_at
        assert left.value == right.value
        assert (left.hit and (left.hit.place, left.hit.end, left.hit.register_entries)) == (
            right.hit and (right.hit.place, right.hit.end, right.hit.register_entries)
        )
        if left.hit:
            assert left.hit.states[pcr, b, "own"] == target[b]
    for register in both.registers:
        assert register.entries == sum(entry.pcr == register.pcr for entry in listed)

"""What `excise tpm bench` measures: one entry of a table for each command or sequence of commands.

Only what belongs to a task is timed: loading its key before and flushing it afterwards is not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from excise.collect.tpm import capability
from excise.collect.tpm.codes import (
    BN_P256,
    COMMANDS,
    DIGEST_BYTES,
    ECDAA,
    HASH_CHECK_TICKET,
    NULL,
    RH_NULL,
    RH_OWNER,
    SHA256,
)
from excise.collect.tpm.keys import KeyRing, policy_pcr, rsa_primary_template, start_policy
from excise.collect.tpm.sessions import (
    HmacSession,
    NullPrimary,
    Work,
    make_null_primary,
    null_primary_template,
    start_session,
)
from excise.collect.tpm.wire import PASSWORD, Link, Reader, Reply, TpmError, sized, u16, u32

EXTEND: Final = "PCR_Extend"
NONE: Final = "none"
LAZY: Final = "lazy"
SAVED: Final = "saved"
EACH: Final = "hmac"
MODES: Final = (NONE, LAZY, SAVED, EACH)
RESETTABLE_PCRS: Final = (16, 23)
DIGEST: Final = bytes(range(32))
EK_CERTIFICATES: Final = (0x01C00002, 0x01C0000A)
_NV_BYTES: Final = 64
_NV_FIRST: Final = 0x01800000
# ownerWrite, authWrite, ownerRead, authRead, noDA.
_NV_ATTRIBUTES: Final = 0x02060006

Done = tuple[list[Reply], list[Work]]


@dataclass(slots=True, kw_only=True)
class Bench:
    """What the tasks share while a TPM is measured.

    Attributes:
        pcr: PCR that is extended.
        banks: Banks that an extend writes, by the number of their hash.
        nv_index: NV index that is read, or None.
    """

    link: Link
    primary: NullPrimary
    keys: KeyRing
    pcr: int
    banks: tuple[int, ...]
    nv_index: int | None = None
    verified: int = 0
    _lazy: HmacSession | None = None
    _saved: tuple[HmacSession, bytes] | None = None

    def extend_parameters(self, banks: Sequence[int] | None = None) -> bytes:
        """Return TPML_DIGEST_VALUES with one digest a bank, as the kernel sends it."""
        chosen = self.banks if banks is None else banks
        digests = ((u16(bank) + (DIGEST * 2)[: DIGEST_BYTES[bank]]) for bank in chosen)
        return u32(len(chosen)) + b"".join(digests)

    def lazy_session(self) -> HmacSession:
        """Return the session that is kept, started when it is first asked for."""
        if self._lazy is None:
            self._lazy = start_session(self.link, self.primary, keep=True)[0]
        return self._lazy

    def saved_session(self) -> tuple[HmacSession, bytes]:
        """Return the session that is out of the TPM between extends, and its context."""
        if self._saved is None:
            session = start_session(self.link, self.primary, keep=True)[0]
            try:
                reply = self.link.send("ContextSave", handles=u32(session.handle))
            except BaseException:
                self.link.flush(session.handle)
                raise
            self._saved = session, reply.parameters
        return self._saved

    def keep_saved(self, session: HmacSession, context: bytes) -> None:
        """Take the context that the session was saved to last."""
        self._saved = session, context

    def close(self) -> None:
        """Flush the sessions that are kept; a saved one is dropped by its handle too."""
        for session in (self._lazy, self._saved[0] if self._saved else None):
            if session is not None:
                self.link.flush(session.handle)
        self._lazy = self._saved = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One thing to measure.

    Attributes:
        name: Its name, as the command or what it does is called.
        modes: Configurations it is measured under.
        commands: Commands the TPM must have.
        curve: Curve the TPM must have, or 0.
        run: Does it once, in a mode; gives the answers that belong to it, and the client's work.
    """

    name: str
    run: Callable[[Bench, str], Done]
    modes: tuple[str, ...] = (NONE,)
    commands: tuple[str, ...] = ()
    curve: int = 0

    def missing(self, commands: frozenset[int], curves: Sequence[int]) -> str | None:
        """Return what the TPM lacks for this task, or None."""
        for name in self.commands:
            if COMMANDS[name] not in commands:
                return f"the TPM has no command {name}"
        if self.curve and self.curve not in curves:
            return "the TPM has no curve BN_P256"
        return None


def extend(bench: Bench, mode: str) -> Done:
    """Extend the PCR once, in one of the modes."""
    if mode == NONE:
        return [_extend(bench, PASSWORD)], []
    if mode == LAZY:
        lazy = bench.lazy_session()
        lazy.take_work()
        reply = _extend(bench, lazy)
        bench.verified += 1
        return [reply], lazy.take_work()
    if mode == SAVED:
        return _extend_saved(bench)
    session, replies, work = start_session(bench.link, bench.primary, keep=False)
    try:
        replies.append(_extend(bench, session))
    except BaseException:
        _drop(bench.link, session.handle)
        raise
    bench.verified += 1
    return replies, [*work, *session.take_work()]


def _extend_saved(bench: Bench) -> Done:
    session, context = bench.saved_session()
    session.take_work()
    loaded = bench.link.send("ContextLoad", parameters=context, makes_handle=True)
    extended = _extend(bench, session)
    bench.verified += 1
    saved = bench.link.send("ContextSave", handles=u32(loaded.handle))
    bench.keep_saved(session, saved.parameters)
    return [loaded, extended, saved], session.take_work()


def _drop(link: Link, handle: int) -> None:
    """Flush a session that its extend may have ended already."""
    try:
        link.flush(handle)
    except TpmError:
        return


def _extend(
    bench: Bench, authority: HmacSession | bytes, banks: Sequence[int] | None = None
) -> Reply:
    return bench.link.send(
        "PCR_Extend",
        handles=u32(bench.pcr),
        parameters=bench.extend_parameters(banks),
        authority=authority,
    )


def bank_tasks(banks: Sequence[int]) -> list[Task]:
    """Return a plain extend of each number of banks, where there are several."""
    if len(banks) < 2:
        return []

    def of(count: int) -> Callable[[Bench, str], Done]:
        return lambda bench, _mode: ([_extend(bench, PASSWORD, banks[:count])], [])

    return [
        Task(name=f"{EXTEND}, {count} of {len(banks)} banks", run=of(count))
        for count in range(1, len(banks) + 1)
    ]


def _plain(name: str, parameters: bytes = b"") -> Callable[[Bench, str], Done]:
    def run(bench: Bench, _mode: str) -> Done:
        return [bench.link.send(name, parameters=parameters)], []

    return run


def _pcr_read(bench: Bench, _mode: str) -> Done:
    chosen = capability.selection({bench.banks[-1]: (bench.pcr,)})
    return [bench.link.send("PCR_Read", parameters=chosen)], []


def _keyed(key: str, name: str, parameters: bytes) -> Callable[[Bench, str], Done]:
    def run(bench: Bench, _mode: str) -> Done:
        with bench.keys.loaded(key) as handle:
            reply = bench.link.send(
                name, handles=u32(handle), parameters=parameters, authority=PASSWORD
            )
        return [reply], []

    return run


def _quote(key: str) -> Callable[[Bench, str], Done]:
    def run(bench: Bench, mode: str) -> Done:
        chosen = capability.selection({bench.banks[-1]: tuple(range(8))})
        return _keyed(key, "Quote", sized(os.urandom(16)) + u16(NULL) + chosen)(bench, mode)

    return run


def _unseal(bench: Bench, _mode: str) -> Done:
    with bench.keys.loaded("sealed") as handle:
        session, started = start_policy(bench.link)
        try:
            bound = policy_pcr(bench.link, session)
            opened = bench.link.send(
                "Unseal",
                handles=u32(handle),
                authority=u32(session) + sized(b"") + b"\0" + sized(b""),
            )
        except BaseException:
            _drop(bench.link, session)
            raise
    return [started, bound, opened], []


def _hash_sequence(bench: Bench, _mode: str) -> Done:
    link = bench.link
    started = link.send("HashSequenceStart", parameters=sized(b"") + u16(SHA256), makes_handle=True)
    try:
        updated = link.send(
            "SequenceUpdate",
            handles=u32(started.handle),
            parameters=sized(bytes(1024)),
            authority=PASSWORD,
        )
        ended = link.send(
            "SequenceComplete",
            handles=u32(started.handle),
            parameters=sized(b"") + u32(RH_NULL),
            authority=PASSWORD,
        )
    except BaseException:
        _drop(link, started.handle)
        raise
    return [started, updated, ended], []


def _null_primary(bench: Bench, _mode: str) -> Done:
    return make_null_primary(bench.link)[1], []


def _primary(template: bytes) -> Callable[[Bench, str], Done]:
    def run(bench: Bench, _mode: str) -> Done:
        reply = bench.link.send(
            "CreatePrimary",
            handles=u32(RH_NULL),
            parameters=sized(sized(b"") + sized(b"")) + sized(template) + sized(b"") + u32(0),
            authority=PASSWORD,
            makes_handle=True,
        )
        bench.link.flush(reply.handle)
        return [reply], []

    return run


def _create(key: str) -> Callable[[Bench, str], Done]:
    def run(bench: Bench, _mode: str) -> Done:
        with bench.keys.parent() as parent:
            return [bench.keys.create(parent, key)], []

    return run


def _load(key: str) -> Callable[[Bench, str], Done]:
    def run(bench: Bench, _mode: str) -> Done:
        child = bench.keys.child(key)
        with bench.keys.parent() as parent:
            reply = bench.keys.load(parent, child)
            bench.link.flush(reply.handle)
        return [reply], []

    return run


def _zgen(bench: Bench, _mode: str) -> Done:
    # The key's own public point is a point of its curve.
    public = bench.keys.child("ecdh").public
    reader = Reader(public[2 + 18 :], command="Create")
    point = sized(reader.sized()) + sized(reader.sized())
    return _keyed("ecdh", "ECDH_ZGen", sized(point))(bench, NONE)


def _ecdaa(bench: Bench, _mode: str) -> Done:
    generator = sized((1).to_bytes(32, "big")) + sized((2).to_bytes(32, "big"))
    with bench.keys.loaded("ecdaa") as handle:
        committed = bench.link.send(
            "Commit",
            handles=u32(handle),
            parameters=sized(generator) + sized(b"") + sized(b""),
            authority=PASSWORD,
        )
        counter = committed.parameters[-2:]
        signed = bench.link.send(
            "Sign",
            handles=u32(handle),
            parameters=sized(DIGEST) + u16(ECDAA) + u16(SHA256) + counter + _ticket(),
            authority=PASSWORD,
        )
    return [committed, signed], []


def _ticket() -> bytes:
    return u16(HASH_CHECK_TICKET) + u32(RH_NULL) + sized(b"")


def _nv_read(bench: Bench, _mode: str) -> Done:
    index = u32(bench.nv_index or 0)
    reply = bench.link.send(
        "NV_Read",
        handles=index + index,
        parameters=u16(_NV_BYTES) + u16(0),
        authority=PASSWORD,
    )
    return [reply], []


def find_nv_index(link: Link) -> int | None:
    """Return an NV index with an EK certificate, which anybody may read, or None."""
    held = capability.read_handles(link, capability.NV_INDEX)
    return next((index for index in EK_CERTIFICATES if index in held), None)


def define_nv_index(link: Link) -> int:
    """Define and fill an NV index of the owner's that is free; return it.

    Raises:
        TpmError: The owner has a password, or there is no room.
    """
    held = capability.read_handles(link, capability.NV_INDEX)
    index = next(i for i in range(_NV_FIRST, _NV_FIRST + 0x1000) if i not in held)
    public = u32(index) + u16(SHA256) + u32(_NV_ATTRIBUTES) + sized(b"") + u16(_NV_BYTES)
    link.send(
        "NV_DefineSpace",
        handles=u32(RH_OWNER),
        parameters=sized(b"") + sized(public),
        authority=PASSWORD,
    )
    try:
        link.send(
            "NV_Write",
            handles=u32(index) + u32(index),
            parameters=sized(bytes(_NV_BYTES)) + u16(0),
            authority=PASSWORD,
        )
    except BaseException:
        undefine_nv_index(link, index)
        raise
    return index


def undefine_nv_index(link: Link, index: int) -> None:
    """Remove an NV index of the owner's."""
    link.send("NV_UndefineSpace", handles=u32(RH_OWNER) + u32(index), authority=PASSWORD)


NV_READ: Final = Task(name="NV_Read (64 B)", run=_nv_read, commands=("NV_Read",))
_NULL_SCHEME: Final = u16(NULL)

TASKS: Final = (
    Task(name="GetTestResult", run=_plain("GetTestResult")),
    Task(
        name="GetCapability",
        run=_plain("GetCapability", u32(6) + u32(0x105) + u32(1)),
    ),
    Task(name="ReadClock", run=_plain("ReadClock"), commands=("ReadClock",)),
    Task(name="GetRandom (32 B)", run=_plain("GetRandom", u16(32))),
    Task(name="PCR_Read", run=_pcr_read),
    Task(name=EXTEND, run=extend, modes=MODES),
    Task(name="null primary, once a boot", run=_null_primary),
    Task(
        name="Hash (256 B)",
        run=_plain("Hash", sized(bytes(256)) + u16(SHA256) + u32(RH_NULL)),
        commands=("Hash",),
    ),
    Task(name="Hash sequence (1024 B)", run=_hash_sequence),
    Task(
        name="HMAC (256 B)",
        run=_keyed("hmac", "HMAC", sized(bytes(256)) + u16(NULL)),
        commands=("HMAC",),
    ),
    Task(name="Quote ECDSA P256", run=_quote("ecdsa")),
    Task(name="Quote RSASSA 2048", run=_quote("rsassa")),
    Task(
        name="Sign ECDSA P256",
        run=_keyed("ecdsa", "Sign", sized(DIGEST) + _NULL_SCHEME + _ticket()),
    ),
    Task(
        name="Sign RSASSA 2048",
        run=_keyed("rsassa", "Sign", sized(DIGEST) + _NULL_SCHEME + _ticket()),
    ),
    Task(name="Unseal, policy session", run=_unseal),
    Task(name="ECDH_ZGen P256", run=_zgen, commands=("ECDH_ZGen",)),
    Task(name="ECDAA Commit and Sign", run=_ecdaa, commands=("Commit",), curve=BN_P256),
    Task(name="Create P256", run=_create("ecdsa")),
    Task(name="Load P256", run=_load("ecdsa")),
    Task(name="CreatePrimary P256", run=_primary(null_primary_template())),
    Task(name="Create RSA2048", run=_create("rsassa")),
    Task(name="CreatePrimary RSA2048", run=_primary(rsa_primary_template())),
)

"""Large bodies and the event loop of the sensor verifier: long steps leave it to others."""

from __future__ import annotations

import asyncio
import base64
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from daa_group import Group, new_group
from ended import PATIENCE_S
from excise.attest.daa.keys import sign
from excise.attest.sensor import verifier as module
from excise.attest.sensor.protocol import (
    PART_BYTES,
    SESSIONS,
    Opened,
    SensorEvidence,
    decode_evidence,
)
from excise.attest.sensor.records import SensorRecords
from excise.attest.sensor.verifier import SensorVerifier, sensor_app
from excise.attest.service import SessionStore
from excise.attest.service.app import SMALL_BYTES
from excise.attest.service.database import Database
from excise.evidence.daa import DaaVerifier, framed_message
from excise.evidence.sensor import SensorPolicy
from excise.evidence.sensor_message import PURPOSE
from sensor_service import FACE, Machine


@dataclass
class Gate:
    """A step of the real work that begins, and goes on when it is let; it tells in which thread."""

    work: Callable[..., Any]
    began: threading.Event = field(default_factory=threading.Event)
    may_go_on: threading.Event = field(default_factory=threading.Event)
    was_let: bool = False
    thread: int = 0

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.thread = threading.get_ident()
        self.began.set()
        self.was_let = self.may_go_on.wait(PATIENCE_S)
        return self.work(*args, **options)


@pytest.mark.parametrize("step", ["decode_evidence", "_begins", "appraise_transaction"])
def test_a_session_opens_in_the_midst_of_each_long_step_of_a_large_body(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: str
) -> None:
    group, machine = new_group(), Machine(tmp_path)
    machine.grow(1000)
    gate = Gate(getattr(module, step))
    monkeypatch.setattr(module, step, gate)
    database = Database(str(tmp_path / "db"))
    app = sensor_app(
        SensorVerifier(
            policy=SensorPolicy(daa=DaaVerifier(group.public), trust_stated_pcrs=True),
            records=SensorRecords(database),
            sessions=SessionStore(lifetime_s=600),
        )
    )

    async def ask() -> tuple[int, httpx.Response, int]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://sensor") as client:
            opened = (await client.post(SESSIONS, json={})).content
            body = _evidence(msgspec.json.decode(opened, type=Opened), group, machine)
            assert len(body) > SMALL_BYTES
            path = f"{SESSIONS}/{msgspec.json.decode(opened, type=Opened).session}/evidence"
            json = {"Content-Type": "application/json"}
            large = asyncio.create_task(client.post(path, content=body, headers=json))
            assert await asyncio.to_thread(gate.began.wait, PATIENCE_S)
            small = await client.post(SESSIONS, json={})
            gate.may_go_on.set()
            return small.status_code, await large, threading.get_ident()

    try:
        opened, answer, loop_thread = asyncio.run(ask())
    finally:
        database.close()
    assert (opened, answer.status_code) == (201, 200)
    assert answer.json()["outcome"] == "PASSED", answer.json()
    assert gate.was_let
    assert gate.thread != loop_thread


def _evidence(opened: Opened, group: Group, machine: Machine) -> bytes:
    with machine.collector(whole_log=True) as collector:
        data = collector.collect(FACE).to_bytes()
    framed = framed_message(purpose=PURPOSE, nonce=opened.nonce, payload=data)
    signature = sign(group.key, group.credential, message=framed).to_bytes()
    return msgspec.json.encode(SensorEvidence(message=data, signature=signature))


def test_another_thread_runs_between_the_parts_of_a_message_that_is_decoded() -> None:
    """What holds the interpreter for a whole message stops the event loop from any thread."""
    parts = 48
    # A busy machine may keep the other one waiting now and then; the interpreter would always.
    assert any(_turns_beside(parts) > parts // 4 for _ in range(5))


def _turns_beside(parts: int) -> int:
    """Return the turns that another thread takes while a message is decoded."""
    text = base64.b64encode(bytes(parts * PART_BYTES // 4 * 3))
    body = b'{"signature": "", "message": "' + text + b'"}'
    turns, ended = 0, threading.Event()
    running = threading.Event()

    def take_turns() -> None:
        nonlocal turns
        while not ended.is_set():
            time.sleep(0.0002)
            turns += 1
            running.set()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    other = threading.Thread(target=take_turns)
    other.start()
    try:
        assert running.wait(PATIENCE_S)
        taken = turns
        found = decode_evidence(body)
        taken = turns - taken
    finally:
        ended.set()
        other.join()
        sys.setswitchinterval(before)
    assert len(found.message) == parts * PART_BYTES // 4 * 3
    return taken

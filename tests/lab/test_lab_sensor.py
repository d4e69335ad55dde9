"""The sensor in a guest that measures, against issuer and verifier on this host."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from excise.lab import GuestResult, Machine, Plan, preset, run_guest
from excise.lab.disk import WorkFile
from excise.lab.host_share import HOST_ADDRESS
from excise.lab.plan import Step
from excise.lab.workloads import proof_files
from ports import free_ports
from sensor_service import FACE, excise, running, running_verifier
from skips import skip

pytestmark = pytest.mark.lab

BASENAME = "door-7"
WORK = "/excise/ext4"


def small_face() -> bytes:
    """Return a photograph of a face, in the public domain, cut to what the embedder needs."""
    from io import BytesIO

    try:
        import skimage
    except ImportError:
        skip("scikit-image, whose package has a photograph of a face, is not installed")
    from PIL import Image

    with Image.open(Path(skimage.__file__).parent / "data" / "astronaut.png") as image:
        part = image.crop((150, 20, 310, 210)).resize((112, 133))
        into = BytesIO()
        part.save(into, "PNG")
    return into.getvalue()


@dataclass
class Host:
    """Issuer and verifiers of a guest, outside of it."""

    folder: Path
    stack: ExitStack
    ports: list[int] = field(default_factory=lambda: free_ports(3))

    def serve(self) -> None:
        issuer = self.folder / "issuer"
        made = excise("daa", "issuer", "init", issuer, "--admit", "tpm", "--quoting")
        assert made.returncode == 0, made.stderr
        words = ("daa", "issuer", "serve", issuer, "--listen", f"127.0.0.1:{self.ports[0]}")
        self.stack.enter_context(running(*words))
        self.verify(self.ports[1], self.folder / "db")

    def verify(self, port: int, database: Path, *more: str | Path) -> None:
        issuer = self.folder / "issuer"
        options = ["--group", issuer / "ipk.bin", "--group-rule", issuer / "group.json"]
        options += ["--basename", BASENAME, "--database", database, "--session-s", "600"]
        listen = f"127.0.0.1:{port}"
        self.stack.enter_context(running_verifier(*options, "--listen", listen, *more))

    def on_stage(self, stage: str) -> None:
        """Revoke the guest's key when it says so, and start a verifier that knows it."""
        if stage != "revoke":
            return
        with sqlite3.connect(self.folder / "db") as database:
            row = database.execute("SELECT signature FROM sensor_transactions LIMIT 1").fetchone()
        signature, revoked = self.folder / "signature", self.folder / "revoked.json"
        signature.write_bytes(row[0])
        words = ("--signature", signature, "--basename", BASENAME)
        done = excise("daa", "revoke", revoked, *words)
        assert done.returncode == 0, done.stderr
        self.verify(self.ports[2], self.folder / "db2", "--revoked-pseudonyms", revoked)


def step(task: str, *command: str, must_work: bool = True) -> Step:
    return Step(task=task, command=command, must_work=must_work)


def plan(ports: list[int]) -> Plan:
    issuer, verifier, stricter = (f"http://{HOST_ADDRESS}:{port}" for port in ports)
    tpm, member = ("--tpm", "device:/dev/tpmrm0"), f"{WORK}/member"
    send = ("--verifier", verifier, "--member", member, *tpm, "--json")
    script = Path(__file__).with_name("sensor_in_guest.py").read_bytes()
    loop = ("--source", f"{WORK}/face.png", *send, "--loop", "2")
    return Plan(
        steps=(
            step("join", "excise", "daa", "member", "join", member, "--issuer", issuer, *tpm,
                 "--quoting"),
            step("transaction", "excise", "sensor", "transaction", *loop),
            step("revoke", "sh", "-c", "echo EXCISE stage revoke >/dev/console"),
            step("hostile", "python", f"{WORK}/hostile.py", f"{WORK}/face", member, verifier,
                 stricter, must_work=False),
        ),
        files={
            **proof_files(),
            "face.png": WorkFile(data=small_face()),
            "face": WorkFile(data=FACE.to_bytes()),
            "hostile.py": WorkFile(data=script),
        },
    )  # fmt: skip


@pytest.fixture(scope="module")
def guest(lab_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuestResult]:
    """Return a guest that joined, transacted and was hostile."""
    for module in ("tpm2_pytss", "dlib", "PIL"):
        pytest.importorskip(module, reason=f"{module} is not installed")
    with ExitStack() as stack:
        host = Host(tmp_path_factory.mktemp("host"), stack)
        host.serve()
        machine = Machine(
            mode="tpm",
            python=True,
            ports=tuple(host.ports),
            memory_mib=1024,
            work_disk_mib=96,
            timeout_s=900,
        )
        yield run_guest(
            machine, preset=preset("ima-measure"), plan=plan(host.ports), on_stage=host.on_stage
        )


def _step(guest: GuestResult, task: str) -> Any:
    return next(each for each in guest.steps if each.step.task == task)


def _told(guest: GuestResult) -> dict[str, Any]:
    done = _step(guest, "hostile")
    assert done.exit_code == 0, done.stderr.decode()
    return {row["changed"]: row for row in map(json.loads, done.stdout.splitlines())}


def test_a_transaction_in_a_guest_is_accepted_by_a_verifier_outside(guest: GuestResult) -> None:
    answers = json.loads(_step(guest, "transaction").stdout)
    assert [answer["outcome"] for answer in answers] == ["PASSED", "PASSED"]
    assert answers[1]["list_end"] >= answers[0]["list_end"] > 30_000


def test_a_transaction_adds_the_entries_of_its_programs_to_the_list(guest: GuestResult) -> None:
    assert _step(guest, "transaction").ima_entries > 20
    assert _step(guest, "join").ima_entries > 100


@pytest.mark.parametrize(
    ("changed", "outcome", "reason"),
    [
        ("a PCR in the message", "FAILED", "ima.pcr.sha256"),
        ("an entry, removed", "FAILED", "ima.pcr.sha256"),
        ("nothing", "PASSED", None),
        ("the session, used again", "REFUSED", "the session was used already"),
        ("the evidence, sent again", "FAILED", "daa."),
        ("the key, revoked", "FAILED", "daa.revoked_pseudonyms"),
        ("PCR 10, extended", "FAILED", "ima.pcr.sha256"),
    ],
)
def test_each_change_is_refused_with_its_reason(
    guest: GuestResult, changed: str, outcome: str, reason: str | None
) -> None:
    told = _told(guest)
    assert told[changed]["outcome"] == outcome
    if reason is None:
        assert told[changed]["reasons"] == []
    else:
        assert any(reason in each for each in told[changed]["reasons"]), told[changed]


def test_a_guest_reaches_the_ports_it_was_given_and_nothing_else(guest: GuestResult) -> None:
    told = _told(guest)
    for place in ("10.0.2.2 80", "10.0.2.100 22", "192.0.2.1 80"):
        assert told[f"connect to {place}"]["outcome"] == "REFUSED"


def test_new_entries_are_read_at_once_and_none_are_not_read(guest: GuestResult) -> None:
    told = _told(guest)
    assert told["3 entries, added"]["outcome"] == "1 reads"
    assert told["3 entries, added"]["reasons"] == ["3 entries"]
    assert told["no entry, added"]["outcome"] == "0 reads"

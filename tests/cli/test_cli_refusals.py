"""Files that are too large, missing or something else than what an option names are refused."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from captures import run, write
from every_command import COMMANDS
from in_process import Program
from token_builders import FIRMWARE, NONCE, private_key

LARGE = {
    "corim show": ("corim", "show", "large"),
    "corim check": ("corim", "check", "large"),
    "corim build": ("corim", "build", "large", "-o", "out.cbor"),
    "verify token --corim": ("verify", "token", "small", "--corim", "large", "--nonce", "00"),
    "verifier serve --corim": ("verifier", "serve", "--corim", "large", "--listen", ":0"),
    "fleet --exclude": ("fleet", "show", "s.sqlite", "--exclude", "large"),
    "fleet --packages": ("fleet", "show", "s.sqlite", "--packages", "large"),
    "lint": ("lint", "large"),
    "verify token --key": ("verify", "token", "small", "--key", "large", "--nonce", "00"),
}


@pytest.mark.parametrize("words", LARGE.values(), ids=LARGE)
def test_a_file_without_end_is_not_read_to_its_end(
    tmp_path: Path, excise: Program, words: tuple[str, ...]
) -> None:
    (tmp_path / "small").write_bytes(b"\xd2")
    if "fleet" in words:
        _state(tmp_path / "s.sqlite")
    os.mkfifo(tmp_path / "large")
    endless = threading.Event()

    def write() -> None:
        piece = b"#" * 65535 + b"\n"
        try:
            with (tmp_path / "large").open("wb", buffering=0) as pipe:
                while not endless.is_set():
                    pipe.write(piece)
        except BrokenPipeError:
            endless.set()

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    said = excise(*words)
    assert said.returncode == 3, said
    assert "large: has more than" in said.stderr
    writer.join(timeout=120)
    assert endless.is_set()


def _state(path: Path) -> None:
    import msgspec

    from excise.fleet.records import HostState
    from excise.fleet.stores import SqliteStore

    state = HostState(host="host", verdict="PASSED", attempted_ns=1)
    store = SqliteStore(path)
    store.put({"host": msgspec.json.encode(state)})
    store.close()


@pytest.mark.parametrize("name", ["empty", "empty.sqlite"])
def test_a_fleet_of_no_host_is_not_shown(tmp_path: Path, excise: Program, name: str) -> None:
    from excise.fleet.stores import open_store

    (tmp_path / "empty").mkdir()
    open_store("empty.sqlite").close()
    said = excise("fleet", "show", name)
    assert (said.returncode, said.stdout) == (2, "")
    assert f"{name}: holds no state of any host" in said.stderr


def test_what_an_attester_is_to_measure_must_be_files(tmp_path: Path, excise: Program) -> None:
    for option in ("--ta", "--tee"):
        for name, reason in (("missing", "No such file"), ("/dev/zero", "it is no file")):
            said = excise("attester", "--no-server", option, name)
            assert said.returncode == 3, said
            assert f"{name}: cannot be measured" in said.stderr
            assert reason in said.stderr


@pytest.mark.parametrize("command", ["lint", "show", "predict"])
def test_a_missing_capture_is_told_to_be_missing(excise: Program, command: str) -> None:
    said = excise(command, "missing")
    assert said.returncode == 3
    assert "missing: there is no such file" in said.stderr
    assert "manifest" not in said.stderr


TABLE = "| step | time |\n|---|---|\n| a | 2 |\n| b | 3 |\n| total | 60 |\n"


@pytest.mark.parametrize("name", ["table", "table.txt", "pipe"])
def test_a_table_is_linted_whatever_its_name(tmp_path: Path, excise: Program, name: str) -> None:
    rules = '[[parts]]\ntotal = "total"\naxis = "rows"\n'
    (tmp_path / "rules.toml").write_text(rules)
    words = ("--rules", "rules.toml", "--own-only")
    (tmp_path / "known.md").write_text(TABLE)
    known = excise("lint", "known.md", *words)
    assert known.returncode == 1
    path = tmp_path / name
    if name == "pipe":
        os.mkfifo(path)
        writer = threading.Thread(target=path.write_text, args=(TABLE,), daemon=True)
        writer.start()
    else:
        path.write_text(TABLE)
    said = excise("lint", name, *words)
    assert (said.returncode, said.stdout) == (1, known.stdout.replace("known.md", name))


def test_what_is_neither_capture_nor_table_is_told_so(tmp_path: Path, excise: Program) -> None:
    (tmp_path / "image").write_bytes(b"\x89PNG\r\n\x1a\n")
    said = excise("lint", "image")
    assert said.returncode == 3
    assert "is neither a capture nor a table in UTF-8 text" in said.stderr


@pytest.mark.parametrize(
    ("rule", "key"),
    [
        ('id = "x"\ntotal = "a"\nparts = []', "identity[0].parts"),
        ('id = "x"\ntotal = "a"\nparts = ["b"]\ntolerance = "-1%"', "identity[0].tolerance"),
        ('id = "x"\ntotal = "a"\nparts = ["b"]\nfloor_us = -1.0', "identity[0].floor_us"),
        ('id = "x"\ntotal = "a"\nparts = ["b"]\nfloor_us = nan', "identity[0].floor_us"),
    ],
)
def test_rules_that_say_nothing_are_refused(
    tmp_path: Path, excise: Program, rule: str, key: str
) -> None:
    (tmp_path / "rules.toml").write_text(f"[[identity]]\n{rule}\n")
    (tmp_path / "t.md").write_text(TABLE)
    said = excise("lint", "t.md", "--rules", "rules.toml")
    assert said.returncode == 2
    assert key in said.stderr


def test_a_capture_that_no_rule_is_about_is_named_and_breaks_none(
    tmp_path: Path, excise: Program
) -> None:
    write(tmp_path / "c.excise", [run(0)])
    said = excise("lint", "c.excise")
    assert (said.returncode, said.stdout) == (0, "")
    assert "c.excise: nothing in it that a rule is about" in said.stderr
    as_json = excise("lint", "c.excise", "--json")
    assert json.loads(as_json.stdout) == {"verdict": "NOT_COVERED", "results": []}
    (tmp_path / "t.md").write_text(TABLE)
    both = excise("lint", "c.excise", "t.md")
    assert both.returncode == 1
    assert "c.excise: nothing" in both.stderr


def test_own_rules_that_are_about_nothing_in_a_capture_are_refused(
    tmp_path: Path, excise: Program
) -> None:
    write(tmp_path / "c.excise", [run(0)])
    (tmp_path / "rules.toml").write_text('[[identity]]\nid = "x"\ntotal = "a"\nparts = ["b"]\n')
    said = excise("lint", "c.excise", "--rules", "rules.toml")
    assert (said.returncode, said.stdout) == (2, "")
    assert "c.excise: nothing in it that a rule is about" in said.stderr


def test_an_import_on_a_full_disk_names_the_capture(tmp_path: Path, excise: Program) -> None:
    import resource

    times = [0.001] * 3000
    (tmp_path / "h.json").write_text(
        json.dumps({"results": [{"command": "true", "times": times, "exit_codes": [0] * 3000}]})
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, hard))
    try:
        said = excise("import", "h.json", "-o", "h.excise")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (said.returncode, said.stdout) == (4, "")
    assert said.stderr == "excise: h.excise: cannot be written (File too large)\n"
    assert not (tmp_path / "h.excise").exists()


def test_a_negative_tolerance_of_a_table_is_refused(tmp_path: Path, excise: Program) -> None:
    (tmp_path / "rules.toml").write_text('[[parts]]\ntotal = "total"\ntolerance = "-5%"\n')
    (tmp_path / "t.md").write_text(TABLE)
    said = excise("lint", "t.md", "--rules", "rules.toml")
    assert (said.returncode, "parts[0].tolerance" in said.stderr) == (2, True)


@pytest.mark.parametrize("data", [b"", b"text", b"\xd2", b"\xd2\x84\x40"])
def test_no_check_passes_on_what_could_not_be_decoded(
    tmp_path: Path, excise: Program, data: bytes
) -> None:
    (tmp_path / "token").write_bytes(data)
    public = private_key("device").public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "key.pem").write_bytes(pem)
    said = excise("verify", "token", "token", "--key", "key.pem", "--nonce", NONCE.hex())
    assert said.returncode == 1
    shown = [line for line in said.stdout.splitlines() if "cose.encoding" in line]
    assert len(shown) == 1
    assert "PASSED" not in shown[0]


def test_sessions_last_a_time() -> None:
    from excise.attest.service import SessionStore
    from excise.errors import UsageError

    for lifetime_s in (float("nan"), float("inf"), 0.0, -1.0):
        with pytest.raises(UsageError, match="a session of"):
            SessionStore[str](lifetime_s=lifetime_s)


def test_an_unknown_image_is_told_without_names_of_python(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    from excise.attest.sensor.images import read_image
    from excise.errors import FormatError

    with pytest.raises(FormatError, match="of no format that Pillow knows") as info:
        read_image(FIRMWARE, source="x.png")
    assert "BytesIO" not in str(info.value)


def test_a_software_tpm_without_its_control_channel_is_explained(tmp_path: Path) -> None:
    pytest.importorskip("tpm2_pytss")
    from excise.collect.tpm.wire import open_link
    from excise.errors import HostError

    with (
        pytest.raises(HostError, match=r"control channel must listen too, at .*/s\.ctrl"),
        open_link(f"swtpm:path={tmp_path}/s"),
    ):
        pass


@pytest.mark.parametrize(
    ("words", "other"),
    [
        (("verify", "token", "t", "--key", "k"), "--any-nonce"),
        (("verify", "ear", "t", "--key", "k"), "--any-nonce"),
        (("verify", "quote", "t", "--key", "k", "--signature", "s"), "--allow-empty-nonce"),
    ],
)
def test_a_nonce_beside_none_being_wanted_is_refused(
    excise: Program, words: tuple[str, ...], other: str
) -> None:
    said = excise(*words, "--nonce", "00" * 32, other)
    assert (said.returncode, said.stdout) == (2, "")
    assert f"--nonce and {other} are both given" in said.stderr


def test_certificates_to_trust_have_one_name_in_every_command() -> None:
    names = {
        name
        for command in COMMANDS.values()
        for option in command.params
        for name in option.opts
        if name.startswith("--ca") and "ertificates to trust" in (option.help or "")
    }
    assert names == {"--ca"}

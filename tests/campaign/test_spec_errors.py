"""Every error about a value in a campaign file names the file and the key."""

from __future__ import annotations

from pathlib import Path
from typing import Final, get_args

import msgspec
import pytest

from excise.campaign.spec import Campaign, Configuration, Task, TookEffect, parse_campaign
from excise.campaign.target_spec import TargetSpec
from excise.cli.program import app
from excise.errors import SpecError
from excise.lab.machine import Machine

Tables = dict[str, dict[str, str]]

NEEDED: Final = {"ssh": {"host": '"h"'}, "serial": {"port": '"/dev/null"'}}
TARGETS: Final = {target.__struct_config__.tag: target for target in get_args(TargetSpec)}
TABLES: Final = ("configurations", "tasks", "target")
WRONG_TYPE: Final = "[[[[]]]]"  # of no key, as deep as any is looked into


def _refusal(folder: Path, **tables: dict[str, str]) -> SpecError:
    """Return what `excise run` says of a campaign whose tables are changed so."""
    whole: Tables = {
        "campaign": {},
        "configurations": {"name": '"none"'},
        "tasks": {"name": '"t"', "command": '["true"]'},
        "target": {"kind": '"local"'},
    }
    for name, keys in tables.items():
        whole[name] = {**whole[name], **keys}
    if "workload" in tables.get("tasks", {}):
        del whole["tasks"]["command"]
    text = "".join(
        {"campaign": "", "target": "[target]\n"}.get(name, f"[[{name}]]\n")
        + "".join(f"{key} = {value}\n" for key, value in keys.items())
        for name, keys in whole.items()
    )
    file = folder / "wrong.toml"
    file.write_text(text)
    with pytest.raises(SpecError, match=r"wrong\.toml: ") as caught:
        app(args=["run", str(file), "-o", str(folder / "c")], standalone_mode=False)
    assert caught.value.source == str(file)
    assert not (folder / "c").exists()
    return caught.value


def _target(kind: str, **keys: str) -> dict[str, str]:
    return {"kind": f'"{kind}"', **NEEDED.get(kind, {}), **keys}


@pytest.mark.parametrize(
    ("table", "path", "key"),
    [
        *(("campaign", "", each) for each in Campaign.__struct_fields__ if each not in TABLES),
        *(("configurations", "configurations[0].", e) for e in Configuration.__struct_fields__),
        *(("tasks", "tasks[0].", each) for each in Task.__struct_fields__),
    ],
)
def test_a_key_of_the_wrong_type_is_named(tmp_path: Path, table: str, path: str, key: str) -> None:
    error = _refusal(tmp_path, **{table: {key: WRONG_TYPE}})
    assert error.key is not None
    assert error.key.startswith(path + key)


@pytest.mark.parametrize("key", TABLES)
def test_a_table_that_is_none_is_named(key: str) -> None:
    with pytest.raises(SpecError, match=rf"^wrong\.toml: {key}: ") as caught:
        parse_campaign(f"{key} = 1".encode(), source="wrong.toml")
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("kind", "key"),
    [(kind, key) for kind, target in TARGETS.items() for key in target.__struct_fields__],
)
def test_a_key_of_a_target_of_the_wrong_type_is_named(tmp_path: Path, kind: str, key: str) -> None:
    error = _refusal(tmp_path, target=_target(kind, **{key: WRONG_TYPE}))
    assert error.key is not None
    assert error.key.startswith(f"target.{key}")


@pytest.mark.parametrize("key", Machine.__struct_fields__)
def test_a_key_of_a_machine_of_the_wrong_type_is_named(tmp_path: Path, key: str) -> None:
    machine = f"{{ {key} = {WRONG_TYPE} }}"
    error = _refusal(tmp_path, target=_target("lab", machine=machine))
    assert error.key is not None
    assert error.key.startswith(f"target.machine.{key}")


@pytest.mark.parametrize("key", TookEffect.__struct_fields__)
def test_a_key_of_a_proof_of_the_wrong_type_is_named(tmp_path: Path, key: str) -> None:
    proof = f"[{{ {key} = {WRONG_TYPE} }}]"
    error = _refusal(tmp_path, configurations={"took_effect": proof})
    assert error.key is not None
    assert error.key.startswith(f"configurations[0].took_effect[0].{key}")


@pytest.mark.parametrize("text", ["soon", "0s"])
@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (kind, field.name)
        for kind, target in TARGETS.items()
        for field in msgspec.structs.fields(target)
        if field.name.endswith("_timeout") or field.name in ("keepalive", "give_up")
    ],
)
def test_a_duration_of_a_target_that_is_none_is_named(
    tmp_path: Path, kind: str, key: str, text: str
) -> None:
    error = _refusal(tmp_path, target=_target(kind, **{key: f'"{text}"'}))
    assert error.key == f"target.{key}"


@pytest.mark.parametrize(
    ("tables", "key"),
    [
        ({"target": {"kind": '"lob"'}}, "target.kind"),
        ({"target": {"kind": '"ssh"'}}, "target.host"),
        ({"target": {"hots": '"h"'}}, "target.hots"),
        ({"target": _target("local", reboot="true")}, "target.machine"),
        ({"target": _target("ssh", reboot="true")}, "target.machine"),
        ({"target": _target("lab", machine="{ memory_mib = 3 }")}, "target.machine"),
        ({"target": _target("lab", quote="true")}, "target.quote"),
        ({"target": _target("lab", aa_guests="4")}, "target.aa_guests"),
        ({"target": _target("lab", aa_guests="2", machine='{ mode = "tpm" }')}, "target.aa_guests"),
        ({"target": _target("lab")}, "tasks[0].timeout"),
        ({"target": _target("lab")}, "tasks[0].workload"),
        ({"target": _target("lab")}, "configurations[0].preset"),
        ({"target": _target("lab")}, "configurations[0].teardown"),
        ({"target": _target("lab")}, "configurations[0].modules"),
        ({"target": _target("serial", ready='"("')}, "target.ready"),
        ({"target": _target("serial", prompt='"("')}, "target.prompt"),
        ({"target": _target("serial", start='["root"]')}, "target.start"),
        ({"target": _target("command", start='["root"]')}, "target"),
        ({"target": _target("command")}, "configurations[0].probe"),
        ({"target": _target("command")}, "tasks[0].directory"),
        ({}, "tasks[0].events"),
        ({}, "tasks[0].until"),
        ({}, "configurations[0].cmdline"),
    ],
)
def test_what_a_target_refuses_is_named(tmp_path: Path, tables: Tables, key: str) -> None:
    wrong = {
        "timeout": '"1s"',
        "workload": '"open_clothes"',
        "preset": '"nome"',
        "teardown": '[["true"]]',
        "modules": '"m"',
        "probe": '["--landlock"]',
        "directory": '"/"',
        "events": '"nonsense"',
        "until": '"x"',
        "cmdline": '"quiet"',
    }
    table, _, name = key.partition("[0].")
    changed = {**tables, table: {name: wrong[name]}} if name else tables
    assert _refusal(tmp_path, **changed).key == key

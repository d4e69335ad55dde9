"""Keys of a configuration that take a boot: their words, the checks they imply, what is refused."""

from __future__ import annotations

import re

import pytest

from excise.campaign.effect import check_effects
from excise.campaign.spec import Configuration, parse_campaign
from excise.capture.journal import Effect
from excise.collect.launcher import Exec, ExecResult
from excise.errors import HostError, SpecError

FILE = """\
[target]
kind = "ssh"
host = "bench"
reboot = true
machine = "bench-7"
[[configurations]]
name = "c"
{keys}
[[tasks]]
name = "t"
command = ["true"]
"""
IMA_COUNT = "/sys/kernel/security/ima/runtime_measurements_count"
LSM = "/sys/kernel/security/lsm"
FIPS = "/proc/sys/crypto/fips_enabled"


def configuration(keys: str) -> Configuration:
    return parse_campaign(FILE.format(keys=keys).encode(), source="c.toml").configurations[0]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("", ()),
        (
            'lsm = "apparmor,landlock"\ncmdline = "audit=1"',
            ("lsm=integrity,apparmor,landlock", "audit=1"),
        ),
        ('lsm = "none"', ("lsm=integrity",)),
        ("fips = true", ("fips=1",)),
        ("fips = false", ("fips=0",)),
        ('ima_policy = "off"\nima_appraise = "off"', ("ima_appraise=off",)),
        (
            'ima_policy = "tcb|appraise_tcb"\nima_appraise = "enforce"\nrelabel = true',
            ("ima_policy=tcb|appraise_tcb", "ima_appraise=enforce"),
        ),
    ],
)
def test_keys_become_words_of_the_command_line(keys: str, words: tuple[str, ...]) -> None:
    assert configuration(keys).boot_words == words


@pytest.mark.parametrize(
    ("keys", "key", "reason"),
    [
        ('lsm = "selinux,apparmor"', "lsm", "one of apparmor and selinux, not both"),
        ('lsm = "yama,yama"', "lsm", "'yama' is not the name of one"),
        ('lsm = "yama, bpf"', "lsm", "' bpf' is not the name"),
        ('lsm = ""', "lsm", "'' is not the name"),
        ('lsm = "yama"\ncmdline = "security=selinux"', "cmdline", "`security=` contradicts lsm"),
        ('lsm = "apparmor"\ncmdline = "apparmor=0"', "cmdline", "`apparmor=0` contradicts lsm"),
        ('lsm = "none"\ncmdline = "selinux=1"', "cmdline", "`selinux=1` contradicts lsm"),
        ('lsm = "yama"\ncmdline = "lsm=bpf"', "cmdline", "`lsm` is given here and as a key"),
        ('fips = true\ncmdline = "fips=0"', "cmdline", "`fips` is given here and as a key"),
        ('ima_policy = "tbc"', "ima_policy", "'tbc' is not a policy that kernels have"),
        ('ima_policy = "off"\ncmdline = "ima_policy=tcb"', "cmdline", "`ima_policy` is off"),
        ('ima_policy = "tcb"\nima_appraise = "enforce"', "ima_appraise", "nothing would be"),
        (
            'ima_appraise = "strict"',
            "ima_appraise",
            "'strict' is not one of enforce, fix, log, off",
        ),
        ("relabel = true", "relabel", "belongs to ima_appraise"),
        ('cmdline = "excise.configuration=1"', "cmdline", "the word by which a boot"),
    ],
)
def test_contradictory_keys_are_refused(keys: str, key: str, reason: str) -> None:
    with pytest.raises(SpecError, match=re.escape(reason)) as caught:
        configuration(keys)
    assert str(caught.value).startswith(f"c.toml: configurations[0].{key}: ")


@pytest.mark.parametrize(
    ("target", "keys", "hint"),
    [
        ('kind = "ssh"\nhost = "bench"', 'cmdline = "audit=1"', "reboot = true"),
        ('kind = "ssh"\nhost = "bench"', "fips = true", "reboot = true"),
        ('kind = "local"', 'lsm = "yama"', "reboot = true"),
        ('kind = "lab"', 'preset = "none"\nlsm = "yama"', "In the lab a preset says so"),
    ],
)
def test_keys_that_take_a_boot_are_refused_without_one(target: str, keys: str, hint: str) -> None:
    _, _, rest = FILE.format(keys=keys).partition("[[configurations]]")
    text = f"[target]\n{target}\n[[configurations]]{rest}"
    with pytest.raises(SpecError, match=r"configurations\[0\]\.(cmdline|fips|lsm)") as caught:
        parse_campaign(text.encode(), source="c.toml")
    assert hint in str(caught.value.hint)


def effects_of(
    keys: str, files: dict[str, str], *, appraise: dict[str, object] | None = None
) -> list[Effect]:
    def read_file(path: str) -> str:
        if path not in files:
            raise OSError(2, "No such file or directory")
        return files[path]

    def ask(*words: str) -> object:
        assert words == ("appraise", "--directory", "/w")
        if appraise is None:
            raise HostError("security.ima cannot be removed")
        return appraise

    def execute(step: Exec) -> ExecResult:
        raise AssertionError(step)

    return check_effects(
        configuration(keys),
        execute=execute,
        prefix=[],
        work_directory="/w",
        read_file=read_file,
        ask=ask,
    )


ALWAYS = "capability,lockdown,integrity"


@pytest.mark.parametrize(
    ("keys", "path", "good", "bad"),
    [
        (
            'lsm = "apparmor"',
            LSM,
            ["lockdown,capability,apparmor,ima,evm"],
            ["capability", f"{ALWAYS},apparmor,tomoyo", f"{ALWAYS},apparmor2"],
        ),
        ('lsm = "none"', LSM, [ALWAYS, "capability"], [f"{ALWAYS},yama", ""]),
        ("fips = true", FIPS, ["1\n"], ["0\n", ""]),
        ("fips = false", FIPS, ["0\n"], ["1\n"]),
        ('ima_policy = "off"', IMA_COUNT, ["0\n", "1\n"], ["2\n", "10\n", ""]),
        ('ima_policy = "tcb"', IMA_COUNT, ["2\n", "10\n", "341\n"], ["0\n", "1\n", ""]),
    ],
)
def test_each_key_implies_the_check_that_proves_it(
    keys: str, path: str, good: list[str], bad: list[str]
) -> None:
    for outcome, texts in (("PASSED", good), ("FAILED", bad)):
        for text in texts:
            (effect,) = effects_of(keys, {path: text})
            assert (effect.check, effect.outcome, text) == (f"file {path}", outcome, text)
    (effect,) = effects_of(keys, {})
    assert effect.outcome == "FAILED"
    assert "cannot be read" in effect.got


def test_enforcement_is_proved_by_a_refused_file_and_by_nothing_else() -> None:
    keys = 'ima_policy = "appraise_tcb"\nima_appraise = "enforce"'
    (effect,) = effects_of(
        keys, {}, appraise={"ima_appraise": "enforce", "opened_without_label": False}
    )
    assert (effect.outcome, effect.expected) == ("PASSED", "enforce")
    assert effect.got == "enforce (a file without a label was refused)"
    for other in ("log", "fix", "off"):
        answer = {"ima_appraise": other, "opened_without_label": True}
        (effect,) = effects_of(keys, {}, appraise=answer)
        assert effect.outcome == "FAILED"
        assert effect.got == f"{other} (a file without a label was opened)"
    (effect,) = effects_of(keys, {})
    assert (effect.outcome, effect.got) == ("FAILED", "security.ima cannot be removed")

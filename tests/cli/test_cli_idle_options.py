"""An option that would have no effect beside the rest of the command line is refused."""

from __future__ import annotations

import json

import pytest

from in_process import Program

REFERENCE = "reference:tpm-hmac-2024"
IDLE = {
    "predict --stage": (
        ("predict", "--entries", "9", "--tpm", REFERENCE, "--stage", "userspace"),
        "--stage is of boots, and none was given. Name captures of boots",
    ),
    "predict --mode-of --fit --task": (
        ("predict", "--fit", "a", "--mode-of", "a=hmac", "--task", "boot", "--stage", "total"),
        "--fit, --mode-of, --stage and --task are of boots, and none was given",
    ),
    "predict --overlap": (
        ("predict", REFERENCE, "--overlap", "100%", "--entry-work", "0"),
        "--overlap and --entry-work are told by the boots themselves",
    ),
    "predict --mode": (
        ("predict", REFERENCE, "--tpm", REFERENCE, "--mode", "hmac", "--digest-cache", "9%"),
        "--mode and --digest-cache are for a number of entries, and none was given. Give the",
    ),
    "predict --mode-of": (
        ("predict", REFERENCE, "--mode-of", "no such=hmac"),
        "no boot has the configuration 'no such'. There are: HMAC, HMAC + IDC, no HMAC",
    ),
    "tpm compare --list": (
        ("tpm", "compare", "x", "--list", "--with", "y"),
        "TPM and --with are not for --list",
    ),
    "show --list": (
        ("show", "--list", "--metric", "wall_ns", "--private"),
        "--metric and --private are not for --list, which shows no capture. Leave them out",
    ),
    "import --list": (
        ("import", "--list", "some.log"),
        "FILE is not for --list, which reads no file. Leave it out",
    ),
    "report --chart-format": (
        ("report", "reference:lsmpmon-2008", "--chart-format", "png"),
        "--chart-format is of charts in a folder, and none was given. Give --charts",
    ),
    "compare --force": (
        ("compare", "reference:lsmpmon-2008", "--force"),
        "--force is for two captures, and one was given",
    ),
    "gate --force": (
        ("gate", "reference:lsmpmon-2008", "--baseline", "None", "--force"),
        "--force is for two captures, and the baseline is in the same one",
    ),
    "attester --no-server": (
        ("attester", "--no-server", "--url", "http://h"),
        "--url is of a verifier, and --no-server asks none",
    ),
    "attester --generate-key": (
        ("attester", "--generate-key", "--loop", "2", "-o", "token"),
        "--loop and --output are not for --generate-key, which makes a key and stops",
    ),
    "attester --write-references": (
        ("attester", "--write-references", "refs", "--result", "r"),
        "--result is not for --write-references, which attests nothing",
    ),
    "attester --build": (
        ("attester", "--no-server", "--build", "b"),
        "--build is of templates, and none are written. Give --write-references",
    ),
    "attester --ta-version": (
        ("attester", "--no-server", "--ta-version", "1.2"),
        "--ta-version is of files, and none were given. Give --ta FILE",
    ),
    "attester --tcti": (
        ("attester", "--no-server", "--tcti", "device:/dev/none"),
        "--tcti is of a key in a TPM. Give --key tpm",
    ),
    "corim build --signer": (
        ("corim", "build", "t", "-o", "o.cbor", "--signer", "me", "--days", "3"),
        "--signer and --days are of a signature, and there is none. Give --sign KEY",
    ),
    "daa member join --credential": (
        ("daa", "member", "join", "m", "--credential", "c", "--quoting", "--replace"),
        "--quoting and --replace are for a new key, and --credential is for the one there is",
    ),
    "daa member join --nonce": (
        ("daa", "member", "join", "m", "--nonce", "1", "--ca", "ca.pem"),
        "--ca is for joining over HTTP. Give --issuer",
    ),
    "daa member join --credential-signature": (
        ("daa", "member", "join", "m", "--nonce", "1", "--credential-signature", "s"),
        "--credential-signature is of a credential. Give --credential",
    ),
    "daa revoke --basename": (
        ("daa", "revoke", "l.json", "--secret-key", "sk.bin", "--basename", "b"),
        "--basename is of pseudonyms, and this is a list of keys",
    ),
    "sensor transaction --whole-log": (
        (
            *("sensor", "transaction", "--verifier", "http://h", "--member", "m"),
            *("--hand-over", "files", "--whole-log"),
        ),
        "--whole-log is how --hand-over files always does it",
    ),
    "verify token --policy": (
        ("verify", "token", "t", "--key", "k", "--any-nonce", "--policy", "strict"),
        "--policy is of reference values, and none were given. Give --corim",
    ),
    "verify ima --selection": (
        ("verify", "ima", "l", "--pcr", f"sha1:10={'00' * 20}", "--selection", "sha1:10"),
        "--selection is of a file of PCR values, and none was given. Give --pcrs",
    ),
}


@pytest.mark.parametrize(("words", "reason"), IDLE.values(), ids=IDLE)
def test_an_option_without_an_effect_is_refused_and_told_what_would_give_it_one(
    excise: Program, words: tuple[str, ...], reason: str
) -> None:
    said = excise(*words)
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr.startswith("excise: ")
    assert reason in said.stderr
    as_json = excise(*words, "--json")
    assert json.loads(as_json.stderr)["exit_code"] == as_json.returncode == 2


def test_the_formats_are_listed_in_json_too(excise: Program) -> None:
    plain = excise("import", "--list").stdout.splitlines()
    listed = json.loads(excise("import", "--list", "--json").stdout)
    assert [f"{each['name']:<18} {each['title']}" for each in listed] == plain

"""What a TPM may do wrong while it signs as a member, done between it and the program."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from daa_group import MESSAGE, NONCE, failed, group
from excise.attest.daa.keys import prove_member_key, sign
from excise.attest.daa.tpm import TpmKey, open_key
from excise.attest.daa.tpm_setup import TpmKeyPlace, create_key, probe
from excise.errors import HostError
from excise.evidence.daa import Credential, check_member_key
from excise.evidence.daa.curve import GENERATOR_1
from excise.evidence.daa.field import N
from software_tpm import SoftwareTpm, new_tpm, require
from tpm_proxy import Proxy, code_of, error, tpm_proxy

require("tpm2_pytss")

COMMIT, SIGN, GET_CAPABILITY = 0x18B, 0x15D, 0x17A
STARTUP = bytes.fromhex("80010000000c000001440000")


@pytest.fixture
def proxy(swtpm: SoftwareTpm) -> Iterator[Proxy]:
    with tpm_proxy(swtpm) as running:
        yield running


def altered(proxy: Proxy, change: Callable[[bytes, bytes], bytes | None]) -> list[int]:
    """Have answers changed, where there is a change; return the codes of commands that had one."""
    codes: list[int] = []

    def after(command: bytes, answer: bytes) -> bytes:
        changed = change(command, answer)
        if changed is None:
            return answer
        codes.append(code_of(command))
        return changed

    proxy.after = after
    return codes


def with_capability(answer: bytes, body: str) -> bytes:
    """Return an answer to TPM2_GetCapability that says something else."""
    data = bytes.fromhex(body)
    return answer[:2] + (10 + len(data)).to_bytes(4, "big") + answer[6:10] + data


def test_a_tpm_that_asks_to_try_again_is_asked_again(
    place: TpmKeyPlace, credential: Credential, proxy: Proxy
) -> None:
    left = dict.fromkeys((COMMIT, SIGN), 7)  # the TSS itself tries five times

    def busy(command: bytes) -> bytes | None:
        if not left.get(code_of(command)):
            return None
        left[code_of(command)] -= 1
        return error(0x922)

    proxy.before = busy
    with open_key(replace(place, tcti=proxy.tcti)) as key:
        signature = sign(key, credential, message=MESSAGE)
    assert left == {COMMIT: 0, SIGN: 0}
    assert failed(group().verifier.verify(signature, message=MESSAGE)) == []


def nonce_of(answer: bytes) -> bytes:
    """Return signatureR of an answer to TPM2_Sign."""
    return answer[20 : 20 + int.from_bytes(answer[18:20], "big")]


def is_whole(nonce: bytes) -> bool:
    """Return whether a nonce is usable; one in 256 of a TPM's is not."""
    return len(nonce) == 32 and nonce[0] != 0


def with_one_nonce_changed(proxy: Proxy, change: Callable[[bytes], bytes]) -> list[bytes]:
    """Have an answer with a whole nonce changed; return the nonces as they are handed on."""
    nonces: list[bytes] = []
    left = [change]

    def after(command: bytes, answer: bytes) -> bytes:
        if code_of(command) != SIGN:
            return answer
        if left and is_whole(nonce_of(answer)):
            answer = left.pop()(answer)
        nonces.append(nonce_of(answer))
        return answer

    proxy.after = after
    return nonces


def shortened(answer: bytes) -> bytes:
    # tag, size, code; parameter size; sigAlg, hash; signatureR: its first byte goes.
    size = int.from_bytes(answer[2:6], "big") - 1
    parameters = int.from_bytes(answer[10:14], "big") - 1
    return (
        answer[:2]
        + size.to_bytes(4, "big")
        + answer[6:10]
        + parameters.to_bytes(4, "big")
        + answer[14:18]
        + (31).to_bytes(2, "big")
        + answer[21:]
    )


def with_zero(answer: bytes) -> bytes:
    # As of a TPM that keeps it: with or without it in the hash, xaptum's format is ambiguous.
    return answer[:20] + b"\0" + answer[21:]


@pytest.mark.parametrize("change", [shortened, with_zero])
def test_a_nonce_that_begins_with_zero_begins_the_proof_anew(
    place: TpmKeyPlace, proxy: Proxy, change: Callable[[bytes], bytes]
) -> None:
    nonces = with_one_nonce_changed(proxy, change)
    with open_key(replace(place, tcti=proxy.tcti)) as key:
        proof = key.prove(base=GENERATOR_1, public=key.public, message=MESSAGE)
    assert proof.attempts == len(nonces) > 1
    assert [is_whole(nonce) for nonce in nonces] == [False] * (len(nonces) - 1) + [True]


def test_a_digest_that_is_not_below_the_order_begins_the_proof_anew(key: TpmKey) -> None:
    # Once in 2⁴⁸ proofs of a key whose TPM hashes the challenge itself.
    answers = []

    def finish(preimage: bytes, counter: int):
        answer = key._sign(preimage, counter)
        answers.append(answer)
        return answer if len(answers) > 1 else replace(answer, digest=int(N))

    proof, _ = key._prove(GENERATOR_1, key.public, MESSAGE, None, finish)
    assert proof.attempts == len(answers) > 1
    assert not any(is_whole(answer.nonce) for answer in answers[1:-1])


def test_a_tpm_without_the_curve_says_so() -> None:
    def without_bn(command: bytes, answer: bytes) -> bytes | None:
        if code_of(command) != GET_CAPABILITY or command[10:14] != bytes.fromhex("00000008"):
            return None
        return with_capability(answer, "00 00000008 00000001 0003")  # no more; one: P-256

    with new_tpm() as tpm, tpm_proxy(tpm) as proxy:
        assert probe(tpm.tcti).missing() == ()
        faults = altered(proxy, without_bn)
        with pytest.raises(
            HostError, match=r"lacks the curve BN_P256 \(it has: secp256r1\).*software, may do"
        ):
            create_key(proxy.tcti)
        assert faults == [GET_CAPABILITY]


@pytest.mark.parametrize(
    ("capability", "lacks"),
    [("00000000", "the scheme ECDAA"), ("00000002", "the command TPM2_Commit")],
)
def test_a_tpm_without_the_scheme_or_the_command_says_so(
    proxy: Proxy, capability: str, lacks: str
) -> None:
    def without(command: bytes, answer: bytes) -> bytes | None:
        if code_of(command) != GET_CAPABILITY or command[10:14] != bytes.fromhex(capability):
            return None
        return with_capability(answer, f"00 {capability} 00000000")  # no more, and none

    faults = altered(proxy, without)
    assert probe(proxy.tcti).missing() == (lacks,)
    assert faults == [GET_CAPABILITY]


def test_a_tpm_that_signs_by_an_unknown_rule_is_refused(
    place: TpmKeyPlace, credential: Credential, proxy: Proxy
) -> None:
    def flip(command: bytes, answer: bytes) -> bytes | None:
        if code_of(command) != SIGN:
            return None
        return answer[:-6] + bytes([answer[-6] ^ 1]) + answer[-5:]

    altered(proxy, flip)
    with (
        open_key(replace(place, tcti=proxy.tcti)) as key,
        pytest.raises(HostError, match="signs by an unknown rule: no verifier can check that"),
    ):
        sign(key, credential, message=MESSAGE)


def test_a_tpm_reset_between_commit_and_sign_begins_the_proof_anew() -> None:
    resets: list[str] = []

    def reset(command: bytes, answer: bytes) -> bytes:
        if code_of(command) == COMMIT and answer[6:10] == bytes(4) and not resets:
            subprocess.run(["swtpm_ioctl", "--unix", f"{tpm.folder}/s.ctrl", "-i"], check=True)
            resets.append("done")
            assert proxy.exchange(STARTUP)[6:10] == bytes(4)
        return answer

    with new_tpm() as tpm, tpm_proxy(tpm) as proxy:
        place = create_key(tpm.tcti)
        proxy.after = reset
        with open_key(replace(place, tcti=proxy.tcti)) as key:
            proof = key.prove(base=GENERATOR_1, public=key.public, message=NONCE)
            member = prove_member_key(key, nonce=NONCE)
        assert resets == ["done"]
        assert proof.attempts > 1
        assert check_member_key(member, nonce=NONCE).holds

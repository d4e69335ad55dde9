"""Time ECDAA signatures against xaptum's C library, side by side in one run.

usage: ecdaa.py [--rounds N] [--peer LIBECDAA.SO] [--tcti TCTI] [--json FILE]

Arms are processes of their own, interleaved: excise with gmpy2, excise with Python's integers, and,
with --peer, libecdaa 1.x through ctypes, on the same keys and messages. The figure is the CPU time
(user and system) of one operation, the median over rounds of a round's median. Every verdict is
checked, and what one arm signed the others verify. With --tcti a key is made in that TPM (at the
default handle, replaced) and signing is timed by the wall as well.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

MESSAGE, BASENAME, NONCE = b"message", b"basename", b"nonce"
BATCH, REVOKED = 100, 1000


def spent(operation: Callable[[], object], count: int) -> float:
    """Return the median CPU time of an operation, in milliseconds."""
    times = []
    for _ in range(count):
        began = time.process_time()
        operation()
        times.append(time.process_time() - began)
    return statistics.median(times) * 1000


def worker_excise(given: dict[str, str]) -> dict[str, object]:
    from excise.attest.daa.issuer import IssuerSecretKey
    from excise.attest.daa.keys import SoftwareKey, prove_member_key, sign
    from excise.evidence.checks import Outcome
    from excise.evidence.daa import (
        Credential,
        DaaVerifier,
        RevokedKeys,
        Signature,
        SignedMessage,
        read_group_key,
    )
    from excise.evidence.daa.field import ARITHMETIC

    key = SoftwareKey.from_bytes(bytes.fromhex(given["sk"]))
    credential = Credential.from_bytes(bytes.fromhex(given["cred"]))
    ipk, isk = bytes.fromhex(given["ipk"]), bytes.fromhex(given["isk"])
    verifier = DaaVerifier(read_group_key(ipk))
    revoked = RevokedKeys.from_bytes(bytes.fromhex(given["revoked"]))
    with_list = DaaVerifier(read_group_key(ipk), revoked_keys=revoked)
    plain = sign(key, credential, message=MESSAGE)
    named = sign(key, credential, message=MESSAGE, basename=BASENAME)
    for data, basename in ((given["peer"], None), (given["peer_named"], BASENAME)):
        theirs = Signature.from_bytes(bytes.fromhex(data))
        assert verifier.verify(theirs, message=MESSAGE, basename=basename).verdict == "PASSED"
    batch = [
        SignedMessage(signature=sign(key, credential, message=b"%d" % n), message=b"%d" % n)
        for n in range(BATCH)
    ]

    def passed(outcome: Outcome) -> None:
        assert outcome is Outcome.PASSED

    def together() -> None:
        for result in verifier.verify_batch(batch):
            passed(result.verdict)

    def one_by_one() -> None:
        for item in batch:
            passed(verifier.verify(item.signature, message=item.message).verdict)

    secret = IssuerSecretKey.from_bytes(isk)
    member = prove_member_key(key, nonce=NONCE)
    times = {
        "verify": lambda: passed(verifier.verify(plain, message=MESSAGE).verdict),
        "verify, basename": lambda: passed(
            verifier.verify(named, message=MESSAGE, basename=BASENAME).verdict
        ),
        "sign": lambda: sign(key, credential, message=MESSAGE),
        "sign, basename": lambda: sign(key, credential, message=MESSAGE, basename=BASENAME),
        "member key and proof": lambda: prove_member_key(SoftwareKey.generate(), nonce=NONCE),
        "admit a member": lambda: secret.admit(member, nonce=NONCE),
        "read and check a group key": lambda: DaaVerifier(read_group_key(ipk)),
    }
    found: dict[str, float] = {name: spent(operation, 25) for name, operation in times.items()}
    found[f"verify {BATCH}, one by one"] = spent(one_by_one, 3)
    found[f"verify {BATCH}, one batch"] = spent(together, 5)
    listed = spent(lambda: passed(with_list.verify(plain, message=MESSAGE).verdict), 7)
    found[f"{REVOKED} revoked keys, more"] = listed - found["verify"]
    return {
        "arm": f"excise, {ARITHMETIC}",
        "times": found,
        "signed": [plain.to_bytes().hex(), named.to_bytes().hex()],
    }


class Peer:
    """libecdaa 1.x, as much of it as is timed."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        random_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)
        self._random = random_type(
            lambda buffer, size: ctypes.memmove(buffer, os.urandom(size), size) and None
        )

    def parse(self, kind: str, data: bytes, *more: int) -> ctypes.Array[ctypes.c_char]:
        """Return a structure, in more room than it takes."""
        room = ctypes.create_string_buffer(8192)
        function = getattr(self._library, f"ecdaa_{kind}_FP256BN_deserialize")
        assert function(room, data, *more) == 0, kind
        return room

    def sign(self, key, credential, basename: bytes | None):
        signature = ctypes.create_string_buffer(8192)
        answer = self._library.ecdaa_signature_FP256BN_sign(
            signature, MESSAGE, len(MESSAGE), basename, len(basename or b""), key, credential,
            self._random,
        )  # fmt: skip
        assert answer == 0
        return signature

    def verify(self, signature, group, revoked, basename: bytes | None) -> None:
        answer = self._library.ecdaa_signature_FP256BN_verify(
            signature, group, ctypes.byref(revoked), MESSAGE, len(MESSAGE), basename,
            len(basename or b""),
        )  # fmt: skip
        assert answer == 0

    def bytes_of(self, signature, *, named: bool) -> bytes:
        room = ctypes.create_string_buffer(421)
        self._library.ecdaa_signature_FP256BN_serialize(room, signature, int(named))
        return room.raw[: 421 if named else 356]


class Revocations(ctypes.Structure):
    _fields_ = (
        ("sk_length", ctypes.c_size_t),
        ("sk_list", ctypes.c_void_p),
        ("bsn_length", ctypes.c_size_t),
        ("bsn_list", ctypes.c_void_p),
    )


BIG_BYTES = 40
"""A BIG_256_56 of AMCL on 64 bits: five limbs."""


def worker_peer(given: dict[str, str]) -> dict[str, object]:
    peer = Peer(given["library"])
    group = peer.parse("group_public_key", bytes.fromhex(given["ipk"])[:258])
    key = peer.parse("member_secret_key", bytes.fromhex(given["sk"]))
    credential = peer.parse("credential", bytes.fromhex(given["cred"]))
    none = Revocations()
    data = bytes.fromhex(given["revoked"])
    keys = [
        peer.parse("member_secret_key", data[at : at + 32]).raw[:BIG_BYTES]
        for at in range(0, len(data), 32)
    ]
    packed = ctypes.create_string_buffer(b"".join(keys))
    listed = Revocations(sk_length=len(keys), sk_list=ctypes.addressof(packed))
    plain, named = peer.sign(key, credential, None), peer.sign(key, credential, BASENAME)
    for data_hex, basename in ((given.get("ours"), None), (given.get("ours_named"), BASENAME)):
        if data_hex is not None:
            ours = peer.parse("signature", bytes.fromhex(data_hex), int(basename is not None))
            peer.verify(ours, group, none, basename)
    times = {
        "verify": lambda: peer.verify(plain, group, none, None),
        "verify, basename": lambda: peer.verify(named, group, none, BASENAME),
        "sign": lambda: peer.sign(key, credential, None),
        "sign, basename": lambda: peer.sign(key, credential, BASENAME),
    }
    found = {name: spent(operation, 25) for name, operation in times.items()}
    found[f"verify {BATCH}, one by one"] = found["verify"] * BATCH
    with_list = spent(lambda: peer.verify(plain, group, listed, None), 3)
    found[f"{REVOKED} revoked keys, more"] = with_list - found["verify"]
    return {
        "arm": "libecdaa (C)",
        "times": found,
        "signed": [
            peer.bytes_of(plain, named=False).hex(),
            peer.bytes_of(named, named=True).hex(),
        ],
    }


def make_group() -> dict[str, str]:
    """Return keys, a credential and two signatures, all new."""
    from excise.attest.daa.issuer import IssuerSecretKey
    from excise.attest.daa.keys import SoftwareKey, prove_member_key, sign

    secret, key = IssuerSecretKey.generate(), SoftwareKey.generate()
    credential, _ = secret.admit(prove_member_key(key, nonce=NONCE), nonce=NONCE)
    plain = sign(key, credential, message=MESSAGE)
    named = sign(key, credential, message=MESSAGE, basename=BASENAME)
    return {
        "isk": secret.to_bytes().hex(),
        "ipk": secret.public_key().to_bytes().hex(),
        "sk": key.to_bytes().hex(),
        "cred": credential.to_bytes().hex(),
        "revoked": b"".join(SoftwareKey.generate().to_bytes() for _ in range(REVOKED)).hex(),
        "peer": plain.to_bytes().hex(),
        "peer_named": named.to_bytes().hex(),
    }


def run_arm(worker: str, given: dict[str, str], **environment: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, __file__, "--worker", worker],
        input=json.dumps(given),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def time_tpm(tcti: str) -> dict[str, float]:
    """Return wall and own CPU time of signing with a key in a TPM, in milliseconds."""
    from excise.attest.daa.issuer import IssuerSecretKey
    from excise.attest.daa.keys import prove_member_key, sign
    from excise.attest.daa.tpm import open_key
    from excise.attest.daa.tpm_setup import create_key
    from excise.evidence.daa import DaaVerifier

    secret = IssuerSecretKey.generate()
    verifier = DaaVerifier(secret.public_key())
    began = time.perf_counter()
    place = create_key(tcti, replace=True)
    found = {"make and keep a key, wall": (time.perf_counter() - began) * 1000}
    with open_key(place) as key:
        credential, _ = secret.admit(prove_member_key(key, nonce=NONCE), nonce=NONCE)
        for name, basename in (("sign", None), ("sign, basename", BASENAME)):
            walls, cpu = [], time.process_time()
            for _ in range(50):
                began = time.perf_counter()
                signature = sign(key, credential, message=MESSAGE, basename=basename)
                walls.append(time.perf_counter() - began)
            found[f"{name}, own CPU"] = (time.process_time() - cpu) / 50 * 1000
            found[f"{name}, wall"] = statistics.median(walls) * 1000
            result = verifier.verify(signature, message=MESSAGE, basename=basename)
            assert result.verdict == "PASSED"
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", help="libecdaa.so of xaptum/ecdaa 1.x")
    parser.add_argument("--tcti", help="also sign with a key in this TPM")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", choices=("excise", "peer"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        work = {"excise": worker_excise, "peer": worker_peer}[options.worker]
        print(json.dumps(work(json.load(sys.stdin))))
        return 0
    given = make_group()
    rounds: dict[str, list[dict[str, float]]] = {}
    for _ in range(options.rounds):
        answers = [
            run_arm("excise", given),
            run_arm("excise", given, EXCISE_DAA_ARITHMETIC="int"),
        ]
        given["ours"], given["ours_named"] = answers[0]["signed"]
        if options.peer is not None:
            answers.append(run_arm("peer", {**given, "library": options.peer}))
            given["peer"], given["peer_named"] = answers[-1]["signed"]
        for answer in answers:
            rounds.setdefault(answer["arm"], []).append(answer["times"])
    if options.peer is None:
        print("left out: libecdaa (C), since --peer was not given", file=sys.stderr)
    medians = {
        arm: {name: statistics.median(one[name] for one in found) for name in found[0]}
        for arm, found in rounds.items()
    }
    names = next(iter(medians.values()))
    print("CPU ms".ljust(30), *(arm.rjust(16) for arm in medians))
    for name in names:
        cells = [f"{times[name]:.2f}" if name in times else "" for times in medians.values()]
        print(name.ljust(30), *(cell.rjust(16) for cell in cells))
    for arm, times in medians.items():
        alone, batch = times[f"verify {BATCH}, one by one"], times.get(f"verify {BATCH}, one batch")
        if batch is not None:
            print(f"{arm}: a batch of {BATCH} is {alone / batch:.2f} times as fast")
    tpm = time_tpm(options.tcti) if options.tcti is not None else {}
    for name, value in tpm.items():
        print(f"TPM: {name}: {value:.2f} ms")
    if options.json is not None:
        document = {"cpu_ms": medians, "rounds": rounds, "tpm_ms": tpm}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

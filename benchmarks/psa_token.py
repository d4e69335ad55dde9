"""Tokens a second on one core: verified strictly, appraised, answered with a signed result.

The floor is what no verifier can do without: cbor2 on message and payload, and OpenSSL's check of
the signature, through the same libraries, with no check listed. Processor time is what counts.

    python -m benchmarks psa_token --tokens 4000 --rounds 7
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "evidence")]

import cbor2  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature  # noqa: E402
from cryptography.hazmat.primitives.hashes import SHA256  # noqa: E402

from excise.evidence.appraisal import appraise_psa  # noqa: E402
from excise.evidence.cca import verify_cca_token  # noqa: E402
from excise.evidence.ear import make_ear, sign_ear, verify_ear  # noqa: E402
from excise.evidence.psa import verify_token  # noqa: E402
from token_builders import (  # noqa: E402
    NONCE,
    cca_token,
    claims_1,
    claims_2,
    claims_tfm,
    private_key,
    public_key,
    store,
    token,
)


def arms() -> dict[str, Callable[[], Any]]:
    """Return what is measured, by name."""
    known, key = store(), public_key()
    tokens = {"1": token(claims_1()), "2": token(claims_2()), "tfm": token(claims_tfm())}
    ecdsa = ec.ECDSA(SHA256())
    public: Any = key.key

    def floor() -> None:
        protected, _, payload, value = cbor2.loads(tokens["2"]).value
        cbor2.loads(payload)
        tbs = cbor2.dumps(["Signature1", protected, b"", payload])
        r, s = int.from_bytes(value[:32], "big"), int.from_bytes(value[32:], "big")
        public.verify(encode_dss_signature(r, s), tbs, ecdsa)

    def answer() -> str:
        one = appraise_psa(verify_token(tokens["2"], known, nonce=NONCE), known)
        claims = make_ear([one], nonce=NONCE, developer="excise", build="1")
        return sign_ear(claims, private_key())

    result, cca = answer(), cca_token()
    platform_key = public_key("platform", ec.SECP384R1)
    found: dict[str, Callable[[], Any]] = {"floor: cbor2 and OpenSSL alone": floor}
    for name, data in tokens.items():
        found[f"verify, profile {name}"] = lambda data=data: verify_token(data, known, nonce=NONCE)
    found["verify, appraise, sign result"] = answer
    found["verify result (EAR)"] = lambda: verify_ear(result, key, nonce=NONCE)
    found["verify CCA token, P-384 twice"] = lambda: verify_cca_token(
        cca, platform_key, nonce=NONCE
    )
    for call in found.values():
        call()
    assert verify_token(tokens["2"], known, nonce=NONCE).verdict == "PASSED"
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=4000, help="tokens a round")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    spent: dict[str, list[float]] = {}
    measured = arms()
    for _ in range(options.rounds):
        for name, call in measured.items():
            began = time.process_time()
            for _ in range(options.tokens // options.rounds):
                call()
            took = (time.process_time() - began) / (options.tokens // options.rounds)
            spent.setdefault(name, []).append(took)
    floor = statistics.median(spent["floor: cbor2 and OpenSSL alone"])
    rows = {
        name: {
            "median_us": round(1e6 * statistics.median(values), 1),
            "least_us": round(1e6 * min(values), 1),
            "per_s": round(1 / statistics.median(values)),
            "over_floor": round(statistics.median(values) / floor, 2),
        }
        for name, values in spent.items()
    }
    print(
        json.dumps(
            {
                "machine": platform.machine(),
                "python": platform.python_version(),
                "load": os.getloadavg()[0],
                "cpu_time": rows,
            },
            indent=2,
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

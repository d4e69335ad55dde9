"""Sessions a second of the verifier service: challenge, evidence and result, each on disk.

Starts the real program in a process of its own and speaks to it from this one, on the same machine,
over connections that stay open. First as fast as it goes, with so many clients at once; then at a
fixed rate, to see how long an answer takes. A session is two requests, and counts when its result
verifies and is affirming. Every answer is committed to the database before it is given.

    python -m benchmarks psa_verifier --sessions 4000 --rate 250
    python -m benchmarks psa_verifier --postgres     (Debian's, in a temporary folder)
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "evidence"), str(TESTS / "attest")]

from excise.evidence.base64text import decode_base64  # noqa: E402
from excise.evidence.cose_key import read_key  # noqa: E402
from excise.evidence.ear import EarOptions, verify_ear  # noqa: E402
from postgres_server import postgres_server  # noqa: E402  found through the path above
from token_builders import claims_2, corim, private_key, token  # noqa: E402

EXCISE = Path(sys.executable).with_name("excise")
TYPE = b"application/psa-attestation-token"


class Client:
    """One connection that stays open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def post(self, path: str, body: bytes = b"") -> tuple[int, str, dict[str, Any]]:
        """Return status, Location and the body's JSON."""
        head = f"POST {path} HTTP/1.1\r\nHost: v\r\nContent-Length: {len(body)}\r\n".encode()
        head += b"Content-Type: " + TYPE + b"\r\n" if body else b""
        self._writer.write(head + b"\r\n" + body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        fields = dict(line.split(": ", 1) for line in answer.split("\r\n")[1:-2])
        fields = {name.lower(): value for name, value in fields.items()}
        data = await self._reader.readexactly(int(fields["content-length"]))
        return int(answer[9:12]), fields.get("location", ""), json.loads(data)

    async def session(self) -> tuple[str, bytes, float]:
        """Return the result, the challenge, and the seconds both answers took together."""
        began = time.perf_counter()
        status, location, opened = await self.post("/challenge-response/v1/newSession")
        waited = time.perf_counter() - began
        assert status == 201, opened
        nonce = decode_base64(opened["nonce"], field="nonce")
        evidence = token(claims_2(k10=nonce))
        began = time.perf_counter()
        status, _, done = await self.post(f"/challenge-response/v1/{location}", evidence)
        waited = max(waited, time.perf_counter() - began)
        assert status == 200, done
        return done["result"], nonce, waited


async def connect(port: int, count: int) -> list[Client]:
    return [Client(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(count)]


async def fastest(port: int, *, sessions: int, clients: int) -> tuple[float, list[Any]]:
    """Return sessions a second with so many clients that wait for nothing but answers."""
    left, results = sessions, []

    async def one(client: Client) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            results.append(await client.session())

    opened = await connect(port, clients)
    began = time.perf_counter()
    await asyncio.gather(*(one(client) for client in opened))
    return sessions / (time.perf_counter() - began), results


async def paced(port: int, *, rate: float, seconds: float, clients: int) -> list[Any]:
    """Return the sessions begun at a fixed rate, whether earlier ones are done or not."""
    free: asyncio.Queue[Client] = asyncio.Queue()
    for client in await connect(port, clients):
        free.put_nowait(client)
    results = []

    async def one() -> None:
        due = time.perf_counter()
        client = await free.get()
        queued = time.perf_counter() - due
        result, nonce, waited = await client.session()
        free.put_nowait(client)
        results.append((result, nonce, waited + queued))

    began, tasks = time.perf_counter(), []
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
        tasks.append(asyncio.create_task(one()))
    await asyncio.gather(*tasks)
    return results


def check(results: list[Any], key: Any) -> None:
    """Raise unless every result verifies, answers its challenge and is affirming."""
    for result, nonce, _ in results:
        found = verify_ear(result, key, nonce=nonce, options=EarOptions(submodules=("PSA_IOT",)))
        assert found.verdict == "PASSED", found.checks
    assert len({result for result, _, _ in results}) == len(results)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="excise-verifier") as folder:
        (Path(folder) / "qemu.cbor").write_bytes(corim())
        database = options.database or f"{folder}/verifier.sqlite"
        command = [EXCISE, "verifier", "serve", "--corim", f"{folder}/qemu.cbor", "--json"]
        command += ["--database", database, "--listen", "127.0.0.1:0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            text = ""
            while "}" not in text:
                text += process.stdout.readline()
            port = int(json.loads(text)["url"].rpartition(":")[2])
            try:
                return _rounds(process.pid, port, options)
            finally:
                process.terminate()


def _rounds(pid: int, port: int, options: argparse.Namespace) -> dict[str, Any]:
    import urllib.request

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/.well-known/veraison/verification") as f:
        key = read_key(json.dumps(json.load(f)["ear-verification-key"]).encode())
    private_key()
    rates, costs, client_costs = [], [], []
    for _ in range(options.rounds):
        before, own = cpu_s(pid), time.process_time()
        rate, results = asyncio.run(
            fastest(port, sessions=options.sessions, clients=options.clients)
        )
        rates.append(rate)
        costs.append((cpu_s(pid) - before) / options.sessions)
        client_costs.append((time.process_time() - own) / options.sessions)
        check(results, key)
    results = asyncio.run(
        paced(port, rate=options.rate, seconds=options.seconds, clients=options.clients)
    )
    check(results, key)
    waited = sorted(wait for _, _, wait in results)
    return {
        "sessions_per_s": [round(rate, 1) for rate in rates],
        "median_sessions_per_s": round(statistics.median(rates), 1),
        "server_cpu_ms_per_session": round(1e3 * statistics.median(costs), 3),
        "client_cpu_ms_per_session": round(1e3 * statistics.median(client_costs), 3),
        "paced_rate_per_s": options.rate,
        "paced_sessions": len(waited),
        "request_ms": {
            name: round(1e3 * waited[min(len(waited) - 1, int(share * len(waited)))], 2)
            for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0))
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--database", help="URL or path [a new SQLite file]")
    parser.add_argument("--postgres", action="store_true", help="start a PostgreSQL for this")
    parser.add_argument("--sessions", type=int, default=3000, help="sessions a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=32, help="connections at once")
    parser.add_argument("--rate", type=float, default=250.0, help="sessions a second when paced")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to pace")
    options = parser.parse_args()
    with postgres_server() if options.postgres else nullcontext(options.database) as url:
        options.database = url
        report(options)
    return 0


def report(options: argparse.Namespace) -> None:
    found = {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "database": (options.database or "sqlite").partition(":")[0],
        **measure(options),
        "peak_mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10,
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    sys.exit(main())

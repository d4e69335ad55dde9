"""The hand-over of the original: each step a program of its own, which hands on by file.

Every program that starts, and every file that is read by root, is measured by a policy that
measures both; so each transaction adds entries to the very list that it then collects.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from excise.attest.sensor.protocol import Answer
from excise.errors import HostError
from excise.perf import Recorder

_LAYER: Final = "host"
_PROGRAM: Final = (sys.executable, "-c", "from excise.cli.main import main; main()", "sensor")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHandOver:
    """The steps as programs; options are those of the command line."""

    source: str
    verifier: str
    member: Path
    measurement_list: Path
    perf: Recorder
    tpm: str | None = None
    pcrs: tuple[str, ...] = ()
    ca: Path | None = None

    def transact(self) -> Answer:
        """Make one transaction.

        Raises:
            HostError: A step's program fails; its last words are the reason.
        """
        with tempfile.TemporaryDirectory(prefix="excise-sensor-") as name:
            image, face, message = (Path(name) / each for each in ("image.png", "face", "message"))
            with self.perf.measure(_LAYER, "total"):
                self._step("capture", "--source", self.source, "-o", image)
                self._step("embed", image, "-o", face)
                self._step("collect", face, "-o", message, *self._state())
                printed = self._step("send", message, "--json", *self._peer())
        return msgspec.json.decode(printed, type=Answer)

    def _state(self) -> list[str | Path]:
        words: list[str | Path] = ["--list", self.measurement_list]
        words += ["--tpm", self.tpm] if self.tpm else []
        return words + [word for file in self.pcrs for word in ("--pcrs", file)]

    def _peer(self) -> list[str | Path]:
        words: list[str | Path] = ["--verifier", self.verifier, "--member", self.member]
        words += ["--tpm", self.tpm] if self.tpm else []
        return words + (["--ca", self.ca] if self.ca else [])

    def _step(self, step: str, *words: str | Path) -> bytes:
        with self.perf.measure(_LAYER, step):
            done = subprocess.run(
                [*_PROGRAM, step, *map(str, words)], capture_output=True, check=False
            )
        # An answer of the verifier is one, also where it is no: `send` says so by its exit code.
        if done.returncode == 0 or (step == "send" and done.returncode == 1 and done.stdout):
            return done.stdout
        reason = done.stderr.decode(errors="replace").strip().removeprefix("excise: ")
        raise HostError(f"sensor {step}: {reason or f'exit code {done.returncode}'}")

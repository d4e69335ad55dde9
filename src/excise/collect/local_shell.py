"""Shell scripts on this machine, with the same answers as over ssh."""

from __future__ import annotations

import os
import subprocess
from typing import Final

from excise.collect.remote import Output
from excise.errors import HostError

_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class LocalShell:
    """This machine's /bin/sh; see `excise.collect.boot_entries.Shell`."""

    name = "this machine"

    def run(self, script: str, *, stdin: bytes = b"", timeout_s: float = 60.0) -> Output:
        """Run a script and wait for its end.

        Raises:
            HostError: If it takes too long.
        """
        try:
            done = subprocess.run(
                ["/bin/sh", "-c", script],
                input=stdin,
                capture_output=True,
                check=False,
                timeout=timeout_s,
                # What administers a machine is found whatever the caller's PATH is.
                env={**os.environ, "PATH": f"{os.environ.get('PATH', '')}:{_PATH}"},
            )
        except subprocess.TimeoutExpired as error:
            raise HostError(f"no answer in {timeout_s:.0f} s", source=self.name) from error
        return Output(exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr)

"""The TPM software stack of the extra `tpm`: loaded when it is first needed, and silent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from excise.errors import HostError


@contextmanager
def quiet_tss() -> Iterator[None]:
    """Keep the TSS from writing to stderr on every error that it also returns.

    The level is read at first use. What the user has set stays, and no child inherits it.

    Raises:
        HostError: tpm2-pytss cannot be loaded.
    """
    name = "TSS2_LOG"
    ours = name not in os.environ
    if ours:
        os.environ[name] = "all+NONE"
    try:
        _require_pytss()
        yield
    finally:
        if ours:
            del os.environ[name]


def _require_pytss() -> None:
    try:
        import tpm2_pytss  # noqa: F401 - whether it can be
    except ImportError as error:
        raise HostError(
            f"tpm2-pytss cannot be loaded: {error}",
            hint="pip install 'excise[tpm]'; it needs the libraries of tpm2-tss",
        ) from None

"""Attesting a capture: its seal signed by a TPM, beside the PCRs and the measurement list."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from excise.capture.seal import seal
from excise.capture.store import EVIDENCE, write_durably
from excise.collect.host import SECURITYFS
from excise.collect.tpm import allocated_pcrs, quote
from excise.errors import HostError
from excise.evidence.capture import IMA_LIST

LIST_PATH: Final = SECURITYFS / "ima" / "binary_runtime_measurements"
QUOTED_PCRS: Final = range(24)


def require_tpm(tcti: str) -> dict[str, tuple[int, ...]]:
    """Return the PCRs to quote by bank, before a campaign spends time on what cannot be attested.

    Raises:
        HostError: If the TPM cannot be used, or has no PCR bank.
    """
    selection = {
        bank: tuple(index for index in indices if index in QUOTED_PCRS)
        for bank, indices in allocated_pcrs(tcti).items()
    }
    selection = {bank: indices for bank, indices in selection.items() if indices}
    if not selection:
        raise HostError("the TPM has no PCR bank in use", source=tcti)
    return selection


def attest_capture(path: Path, *, tcti: str, ima_list: Path | None = None) -> tuple[str, ...]:
    """Seal a capture, quote the PCRs over the seal's root, and add the measurement list.

    The list is read after the quote: it may be longer than what the quote covers, never shorter.

    Args:
        path: Capture folder, complete and not sealed.
        tcti: Where the TPM is, as for tpm2-tools.
        ima_list: Measurement list of the machine whose TPM this is; the running kernel's by
            default, left out where there is none.

    Returns:
        Names of the files of evidence, below `evidence/`.

    Raises:
        HostError: If the TPM cannot be used, or a list that was named cannot be read.
        CaptureError: If the capture is sealed already.
    """
    selection = require_tpm(tcti)
    root = seal(path).root
    signed = quote(tcti, qualifying_data=bytes.fromhex(root), selection=selection)
    files = dict(signed.files())
    listed = _read_list(ima_list or LIST_PATH, required=ima_list is not None)
    if listed is not None:
        files[IMA_LIST] = listed
    folder = path / EVIDENCE
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        write_durably(folder / name, data)
    return tuple(files)


def _read_list(path: Path, *, required: bool) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError as error:
        if required:
            raise HostError(f"cannot be read ({error.strerror})", source=str(path)) from error
        return None

"""The demonstration: security modules on a real kernel, and a guest whose evidence is verified."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from excise import __version__
from excise.campaign.spec import Campaign, Configuration, Task, checked, expanded, from_plain
from excise.campaign.target_spec import LabTarget
from excise.capture.seal import read_seal
from excise.capture.store import MANIFEST, read_manifest
from excise.errors import CaptureError
from excise.evidence.checks import AppraisalResult, Outcome
from excise.lab.configurations import preset
from excise.lab.evidence import verify_guest_quote, verify_ima
from excise.lab.jobs import GuestFailure, GuestJob, run_all
from excise.lab.jobs import Progress as GuestProgress
from excise.lab.machine import Machine
from excise.lab.record import LabCapture
from excise.lab.result import GuestResult
from excise.lab.workloads import distinct_files

PRESETS: Final = (
    "none",
    "apparmor",
    "selinux-enforcing",
    "tomoyo-enforcing",
    "landlock",
    "ima-measure",
)
# Published configurations, and ours of the same mechanism; published tasks, and ours.
SAME_MECHANISM: Final = {
    "AppArmor": "apparmor",
    "SELinux": "selinux-enforcing",
    "TOMOYO": "tomoyo-enforcing",
}
SAME_TASK: Final = {
    "stat": "stat/ext4",
    "open/close": "open_close/ext4",
    "0K create": "create_0k/ext4",
    "0K delete": "delete_0k/ext4",
    "10K create": "create_10k/ext4",
    "10K delete": "delete_10k/ext4",
}
MEASURED_FILES: Final = 100
_NONCE_BYTES: Final = 16
_TPM_TITLE: Final = "The demonstration's guest with a TPM"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedGuest:
    """A guest in TPM mode, and what its evidence says.

    Attributes:
        capture: Where its list, PCRs and quote are kept.
        appraisals: Of its IMA list against the PCRs, and of its TPM's quote.
    """

    result: GuestResult
    capture: Path
    appraisals: tuple[AppraisalResult, ...]

    @property
    def passed(self) -> bool:
        """Tell whether every piece of evidence holds."""
        return all(each.verdict is Outcome.PASSED for each in self.appraisals)


def demo_campaign(*, kernel: str = "6.12") -> Campaign:
    """Return the demonstration's campaign, the same as `examples/lsms.toml`."""
    campaign = Campaign(
        title="Security modules on one kernel",
        baseline="none",
        blocks=3,
        target=LabTarget(machine=Machine(kernel=kernel, mode="count")),
        configurations=[Configuration(name=name) for name in PRESETS],
        tasks=[Task(name="syscalls", workload="syscalls")],
    )
    return checked(expanded(campaign), source="demo")


def is_complete(path: Path, campaign: Campaign) -> bool:
    """Tell whether a capture holds all of the demonstration's campaign, sealed.

    Raises:
        CaptureError: If it is sealed and holds something else.
    """
    if not (path / MANIFEST).is_file() or read_seal(path) is None:
        return False
    kept = read_manifest(path).campaign
    if not kept or from_plain(kept, source=str(path)) != campaign:
        raise CaptureError(
            "is sealed and holds another campaign",
            source=str(path),
            hint="Remove it, or give another path with -o",
        )
    return True


def verified_guest(
    path: Path,
    *,
    kernel: str = "6.12",
    on_progress: Callable[[GuestProgress], None] = lambda _: None,
) -> VerifiedGuest:
    """Boot the IMA guest with a software TPM, keep what it brings back, and verify it.

    Args:
        path: Capture to write, in place of one that an earlier demonstration left there: the quote
            is fresh each time.
        kernel: As for a machine.
        on_progress: Called at each stage of the guest.

    Raises:
        OutputError: If the capture cannot be written.
        HostError: If the guest fails.
        FormatError: If its evidence cannot be read.
    """
    nonce = secrets.token_bytes(_NONCE_BYTES)
    job = GuestJob(
        configuration="ima-measure",
        machine=Machine(kernel=kernel, mode="tpm"),
        preset=preset("ima-measure"),
        plan=distinct_files(MEASURED_FILES),
        qualifying_data=nonce,
    )
    if (path / MANIFEST).is_file() and read_manifest(path).title == _TPM_TITLE:
        shutil.rmtree(path)
    with LabCapture(path, jobs=[job], title=_TPM_TITLE, version=__version__) as capture:
        [outcome] = run_all([job], on_progress=on_progress, on_result=capture.add)
    if isinstance(outcome, GuestFailure):
        raise outcome.error
    appraisals = (verify_ima(outcome), verify_guest_quote(outcome, qualifying_data=nonce))
    return VerifiedGuest(result=outcome, capture=path, appraisals=appraisals)

"""A real sshd with a port, keys and a folder of its own; as root in a network namespace."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ended import ended, wait_until
from excise.campaign.target_spec import SshTarget
from ports import free_port
from skips import skip

_CONFIG = """\
Port {port}
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
UsePAM no
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
AcceptEnv none
UseDNS no
LogLevel ERROR
MaxStartups 100:30:200
"""
# A namespace of mounts too, so that the folder sshd insists on is not made on the host.
_IN_NAMESPACE = """\
mount -t tmpfs none /run && mkdir -m 755 /run/sshd || exit 1
ip link set lo up
read -r _ || exit 1
exec "$@"
"""


@dataclass
class SshServer:
    """A running sshd.

    Attributes:
        process: Its first process; each connection is a child of it.
        link: This side of the cable to its namespace; "" where it is on loopback.
    """

    folder: Path
    address: str
    port: int
    process: subprocess.Popen[bytes]
    link: str

    def target(self, **options: object) -> SshTarget:
        """Return this server as a target; its host key is known."""
        given = {
            "host": self.address,
            "port": self.port,
            "identities": [str(self.folder / "key")],
            "known_hosts": str(self.folder / "known_hosts"),
            "config": "/dev/null",
            "keepalive": "500ms",
            "give_up": "60s",
            **options,
        }
        return SshTarget(**given)  # type: ignore[arg-type]

    def answers(self) -> bool:
        """Tell whether it takes connections."""
        try:
            with socket.create_connection((self.address, self.port), timeout=5):
                return True
        except OSError:
            return False

    def connections(self) -> list[int]:
        """Return sshd's processes of the connections that stand."""
        found = []
        for child in _children(self.process.pid):
            found += [child, *(each for each in _children(child) if _name(each) == "sshd")]
        return found

    def cut(self) -> int:
        """Kill every connection as it stands; return how many processes served them."""
        found = self.connections()
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(found)

    @contextmanager
    def unplugged(self) -> Iterator[None]:
        """Take the cable out for a while."""
        subprocess.run(["ip", "link", "set", self.link, "down"], check=True)
        try:
            yield
        finally:
            subprocess.run(["ip", "link", "set", self.link, "up"], check=True)


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(word) for word in text.split()]
    return []


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def make_keys(folder: Path, *, address: str, port: int) -> None:
    """Write a host key, a user's key, and the files that know them."""
    for name in ("host_key", "key"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test"]
        subprocess.run([*command, "-f", str(folder / name)], check=True)
    shutil.copy(folder / "key.pub", folder / "authorized_keys")
    public = (folder / "host_key.pub").read_text()
    (folder / "known_hosts").write_text(f"[{address}]:{port} {public}")


def _has_namespaces() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    made = subprocess.run(
        ["unshare", "--net", "--mount", "ip", "link", "set", "lo", "up"],
        capture_output=True,
        check=False,
    )
    return made.returncode == 0


@contextmanager
def ssh_server(folder: Path, *, in_namespace: bool = False) -> Iterator[SshServer]:
    """Run sshd until the end; skip where there is none.

    Args:
        folder: Where keys and configuration go.
        in_namespace: Whether it runs in a network namespace of its own, behind a cable; needs root.
    """
    program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if program is None:
        skip("sshd is not installed (openssh-server)")
    if in_namespace and not _has_namespaces():
        skip("a network namespace needs root, ip (iproute2), and a system that lets it be made")
    in_namespace = _has_namespaces()
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # as Debian's service makes it at boot
    links = Path("/sys/class/net")
    numbers = range(os.getpid() % 200 + 1, 255)
    number = next(each for each in numbers if not (links / _near(each)).exists())
    address = f"10.213.{number}.2" if in_namespace else "127.0.0.1"
    port = free_port()
    make_keys(folder, address=address, port=port)
    (folder / "sshd_config").write_text(_CONFIG.format(folder=folder, address=address, port=port))
    command = [str(program), "-D", "-e", "-f", str(folder / "sshd_config")]
    if in_namespace:
        command = ["unshare", "--net", "--mount", "sh", "-c", _IN_NAMESPACE, "sh", *command]
    with (folder / "sshd.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
    server = SshServer(folder, address, port, process, _near(number) if in_namespace else "")
    with ended(process):
        try:
            if in_namespace:
                _plug_in(process, number=number)
            wait_until(server.answers, beside=process, what="sshd")
            yield server
        finally:
            server.cut()


def _near(number: int) -> str:
    return f"exc{number}a"


def _plug_in(process: subprocess.Popen[bytes], *, number: int) -> None:
    """Lay a cable into the namespace of a process, then let it go on."""
    near, far = _near(number), f"exc{number}b"
    own, its = Path("/proc/self/ns/net").readlink(), Path(f"/proc/{process.pid}/ns/net")
    wait_until(lambda: its.readlink() != own, beside=process, what="its namespace")
    inside = ["nsenter", f"--net=/proc/{process.pid}/ns/net"]
    for words in (
        ["ip", "link", "add", near, "type", "veth", "peer", "name", far],
        ["ip", "link", "set", far, "netns", str(process.pid)],
        ["ip", "addr", "add", f"10.213.{number}.1/24", "dev", near],
        ["ip", "link", "set", near, "up"],
        [*inside, "ip", "addr", "add", f"10.213.{number}.2/24", "dev", far],
        [*inside, "ip", "link", "set", far, "up"],
    ):
        subprocess.run(words, check=True, capture_output=True)
    assert process.stdin is not None
    process.stdin.write(b"go\n")
    process.stdin.flush()

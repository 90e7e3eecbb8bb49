"""The same guest without Hostler: what somebody would do by hand, as fast as it goes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Generator
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from drivers.hypervisor import Availability, Guest
from drivers.hypervisor.guest_files import opened_files
from drivers.hypervisor.qemu_arguments import build_arguments
from drivers.names import HostNames
from drivers.seed import SeedInput, make_host_key, seed_image
from tests.bench.banner import await_banner, find_process
from tests.fixtures.guest import DemoGuest

TUNSETIFF = 0x400454CA
TAP_FLAGS = 0x0002 | 0x1000 | 0x4000  # IFF_TAP | IFF_NO_PI | IFF_VNET_HDR
MEMORY_MIB, DISK_GIB, CPU_MILLICORES = 128, 1, 1000
BOOT_SECONDS = 120.0
FREE_DESCRIPTORS = 64
"""Above every number that QEMU's process is given."""


@dataclass(frozen=True)
class Boot:
    """One boot, in seconds: until the banner, and how much of it had passed when the guest's process began.

    process_worked: how long that process had a processor until the banner.
    """

    seconds: float
    until_process: float
    process_worked: float


def run(*command: str) -> None:
    """Run a command and raise with what it said if it fails."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


class BareMachine:
    """A bridge with a DHCP server, and guests started on it by hand, one after the other."""

    def __init__(self, folder: Path, names: HostNames, demo: DemoGuest, found: Availability, guests: int) -> None:
        self._folder = folder
        self._names = names
        self._demo = demo
        self._found = found
        self._guests = guests

    @contextlib.contextmanager
    def set_up(self) -> Generator[None]:
        """Make bridge and DHCP server with a reservation for every guest to come, and take them away at the end."""
        names = self._names
        self._folder.mkdir(mode=0o755)
        run("ip", "link", "add", names.bridge, "type", "bridge", "mcast_snooping", "0", "stp_state", "0")
        try:
            Path(f"/proc/sys/net/ipv6/conf/{names.bridge}/disable_ipv6").write_text("1")
            run("ip", "address", "add", f"{names.gateway}/{names.subnet.prefixlen}", "dev", names.bridge)
            run("ip", "link", "set", names.bridge, "up")
            with self._dhcp():
                yield
        finally:
            run("ip", "link", "delete", names.bridge)

    @contextlib.contextmanager
    def _dhcp(self) -> Generator[None]:
        hosts = self._folder / "hosts"
        hosts.write_text("".join(f"{self._mac(n)},{self._address(n)}\n" for n in range(self._guests)))
        server = subprocess.Popen(
            [
                shutil.which("dnsmasq", path="/usr/sbin:/sbin:/usr/bin") or "dnsmasq",
                *("--conf-file=/dev/null", "--keep-in-foreground", "--port=0", "--bind-interfaces", "--user=root"),
                *(f"--interface={self._names.bridge}", "--except-interface=lo", "--dhcp-authoritative", "--no-ping"),
                f"--dhcp-range={self._names.subnet.network_address},static,{self._names.subnet.netmask},1h",
                *(f"--dhcp-hostsfile={hosts}", f"--dhcp-leasefile={self._folder / 'leases'}", "--dhcp-ignore-names"),
                *("--no-resolv", "--no-hosts", "--quiet-dhcp", f"--pid-file={self._folder / 'pid'}"),
            ],
            stderr=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            server.terminate()
            server.wait()

    def _mac(self, number: int) -> str:
        return self._names.mac(f"bare-{number}")

    def _address(self, number: int) -> IPv4Address:
        return self._names.subnet.network_address + 2 + number

    @contextlib.contextmanager
    def booted(self, number: int) -> Generator[tuple[Boot, tuple[str, ...]]]:
        """Boot a guest to its banner; yield its times and QEMU's arguments while it runs."""
        folder = self._folder / str(number)
        address = str(self._address(number))
        fix_neighbour(self._names.bridge, address, self._mac(number))
        begun = time.monotonic()
        folder.mkdir(mode=0o700)
        guest = self._make_guest(folder, number)
        with self._make_tap(number) as tap:
            pid = start_qemu(guest, tap, folder / "said")
        try:
            await_banner(address, self._mac(number), self._folder / "leases", BOOT_SECONDS)
            ended, process = time.monotonic(), find_process(pid)
            yield Boot(ended - begun, process.began - begun, process.worked_seconds), build_arguments(guest)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; QEMU said: {(folder / 'said').read_text().strip() or 'nothing'}") from None
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            shutil.rmtree(folder)

    def _make_guest(self, folder: Path, number: int) -> Guest:
        """Make overlay and seed of a guest."""
        demo, size = self._demo, DISK_GIB << 30
        disk, seed = folder / "disk", folder / "seed.iso"
        run("qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", str(demo.root_qcow2), str(disk), str(size))
        private, public = make_host_key()
        told = SeedInput(
            vm_id=f"bare-{number}",
            hostname=f"bench-{number}",
            ssh_authorized_keys=(),
            user_data=None,
            mac=self._mac(number),
            host_key_private=private,
            host_key_public=public,
        )
        seed.write_bytes(seed_image(told))
        return Guest(
            vm_id=f"bare-{number}",
            uid=0,
            gid=0,
            cpu_millicores=CPU_MILLICORES,
            memory_mib=MEMORY_MIB,
            mac=self._mac(number),
            disk=disk,
            disk_format="qcow2",
            disk_bytes=size,
            seed=seed,
            sockets=folder / "sockets",
            accelerator=self._found.accelerator or "tcg",
            machine_type=self._found.machine_type,
            kernel=demo.vmlinux,
            initrd=demo.initrd,
            command_line=demo.command_line,
            base=demo.root_qcow2,
            base_format="qcow2",
        )

    @contextlib.contextmanager
    def _make_tap(self, number: int) -> Generator[int]:
        """Make a tap on the bridge that goes with its last descriptor, which QEMU has."""
        name = f"{self._names.tap_prefix}{number}"
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), TAP_FLAGS))
            Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1")
            run("ip", "link", "set", name, "master", self._names.bridge, "up")
            yield descriptor
        finally:
            os.close(descriptor)


def start_qemu(guest: Guest, tap: int, said: Path) -> int:
    """Start QEMU with the arguments and the descriptors that Hostler gives it, and with nothing around it."""
    program, *words = build_arguments(guest)
    path = shutil.which(program) or program
    with opened_files(guest, tap) as descriptors, said.open("wb") as errors:
        # High numbers first, so that placing one never overwrites the next.
        high = {n: fcntl.fcntl(d, fcntl.F_DUPFD_CLOEXEC, FREE_DESCRIPTORS) for n, d in descriptors.items()}
        try:
            placed = {2: errors.fileno(), **high}
            actions = [(os.POSIX_SPAWN_OPEN, n, "/dev/null", os.O_RDWR, 0) for n in (0, 1)]
            actions += [(os.POSIX_SPAWN_DUP2, descriptor, n) for n, descriptor in placed.items()]
            return os.posix_spawn(path, [path, *words], {}, file_actions=actions, setsid=True)
        finally:
            for descriptor in high.values():
                os.close(descriptor)


def fix_neighbour(bridge: str, address: str, mac: str) -> None:
    """Tell the kernel a guest's MAC for good: its own questions would be repeated only once a second."""
    run("ip", "neigh", "replace", address, "lladdr", mac, "nud", "permanent", "dev", bridge)

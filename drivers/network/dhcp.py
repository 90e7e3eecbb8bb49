"""One dnsmasq for DHCP on the installation's bridge: reservations as files, its process kept and found again.

It gives addresses to MACs with a reservation and to nobody else, answers no DNS, and outlives the worker. Its user
can write none of its files: dnsmasq opens the lease file while it is root and keeps it open.
"""

from __future__ import annotations

import asyncio
import contextlib
import grp
import hashlib
import os
import pwd
import shutil
import signal
import sys
from collections.abc import Callable
from ipaddress import IPv4Address
from pathlib import Path

from drivers.confine import Confinement, await_end, is_alive, launch_detached, read_boot_id, signal_process
from drivers.durable import make_folder, remove_durably, write_durably
from drivers.formats import DHCP, parse_any
from drivers.names import HostNames
from drivers.network.attachment import Attachment
from drivers.network.namespace import namespace_path
from drivers.processes import find_processes_of
from drivers.threads import in_thread
from model.base import Lenient
from model.errors import StepFailed, Unreadable
from model.process import ProcessRecord
from model.versions import VERSION

BEGIN_SECONDS = 5.0
END_SECONDS = 5.0
_LOOK_SECONDS = 0.01
_ENTER = Path(__file__).with_name("enter.py")

Guard = Callable[[], None]


class StoredServer(Lenient):
    """process.json, of the running dnsmasq; a namespace, bridge or argument that moved makes it useless.

    A later release's is adopted by what both know: a second dnsmasq beside a running one could not begin.
    """

    format: int = DHCP.format
    release: str = VERSION
    process: ProcessRecord
    arguments_digest: str
    namespace: int
    bridge_index: int


class Dhcp:
    """Keep reservations and the process that serves them. user: whom dnsmasq becomes, if that user exists."""

    def __init__(
        self, names: HostNames, folder: Path, *, resolvers: tuple[IPv4Address, ...] = (), user: str = "hostler-dns"
    ) -> None:
        self._names = names
        self._folder = folder
        self._hosts = folder / "hosts"
        self._leases = folder / "leases"
        self._record = folder / "process.json"
        self._pid_file = folder / "dnsmasq.pid"
        self._resolvers = resolvers
        self._user = _find_user(user)

    async def ensure_running(self, bridge_index: int) -> bool:
        """Adopt an earlier worker's dnsmasq if it serves this very bridge, else start one; tell whether started."""
        await in_thread(self._prepare)
        server = self._find_server()
        namespace = namespace_path(self._names.netns).stat().st_ino
        wanted = (self._arguments_digest(), namespace, bridge_index)
        if server is not None and self._is_alive(server):
            if (server.arguments_digest, server.namespace, server.bridge_index) == wanted:
                return False
            await self._end(server.process)
        await self._end_strays()
        await self._start(*wanted)
        return True

    async def stop(self) -> None:
        """End our dnsmasq, for a host that is given up."""
        server = self._find_server()
        if server is not None and self._is_alive(server):
            await self._end(server.process)
        await self._end_strays()
        await in_thread(remove_durably, self._record)

    async def ensure(self, a: Attachment, guard: Guard) -> bool:
        """Make the VM's reservation match, others of its address or MAC removed; tell whether it had none."""
        found = await in_thread(self.reservations)
        line = _line(a)
        stale = [vm_id for vm_id, other in found.items() if vm_id != a.vm_id and set(other) & set(line)]
        for vm_id in stale:
            guard()
            await in_thread(remove_durably, self._hosts / vm_id)
        before = found.get(a.vm_id)
        if before != line:
            guard()
            await in_thread(self._write, a.vm_id, ",".join(line) + "\n")
        # New files count by themselves; what was removed or replaced stays until the signal.
        if stale or before not in (None, line):
            self._reread()
        await self._forget_other_leases(a, guard)
        return before is None

    async def release(self, vm_id: str, guard: Guard) -> None:
        """Remove the VM's reservation; that it is absent is as good."""
        if vm_id in await in_thread(self.reservations):
            guard()
            await in_thread(remove_durably, self._hosts / vm_id)
        self._reread()

    def reservations(self) -> dict[str, tuple[str, ...]]:
        """Read (MAC, address) of each VM; blocks."""
        found: dict[str, tuple[str, ...]] = {}
        for file in sorted(self._hosts.iterdir()) if self._hosts.exists() else ():
            with contextlib.suppress(FileNotFoundError):  # another VM's, which goes at this moment
                found[file.name] = tuple(file.read_text().strip().split(","))
        return found

    def is_there(self, a: Attachment) -> bool:
        """Tell whether the VM's reservation is as wanted; blocks."""
        return self.reservations().get(a.vm_id) == _line(a)

    def is_running(self) -> bool:
        """Tell whether our dnsmasq lives."""
        server = self._find_server()
        return server is not None and self._is_alive(server)

    @property
    def process(self) -> ProcessRecord | None:
        """Return our dnsmasq, alive or not; None when none was started."""
        server = self._find_server()
        return None if server is None else server.process

    def _prepare(self) -> None:
        make_folder(self._folder, 0o755)
        make_folder(self._hosts, 0o755)
        if not self._leases.exists():
            write_durably(self._leases, b"", mode=0o644)

    def _write(self, vm_id: str, line: str) -> None:
        # Written beside the folder that dnsmasq watches, so that it only ever sees whole files.
        new = self._folder / f"reservation-{vm_id}"
        write_durably(new, line.encode(), mode=0o644)
        new.replace(self._hosts / vm_id)

    def _arguments(self) -> list[str]:
        names, (user, _, gid) = self._names, self._user
        program = shutil.which("dnsmasq", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
        if program is None:
            raise StepFailed("dnsmasq is not installed: install dnsmasq-base")
        arguments = [
            program,
            "--conf-file=/dev/null",
            "--keep-in-foreground",
            "--port=0",
            "--bind-interfaces",
            f"--interface={names.bridge}",
            "--except-interface=lo",
            f"--user={user}",
            f"--group={grp.getgrgid(gid).gr_name}",
            f"--dhcp-range={names.subnet.network_address},static,{names.subnet.netmask},1h",
            f"--dhcp-hostsdir={self._hosts}",
            f"--dhcp-leasefile={self._leases}",
            f"--dhcp-lease-max={names.subnet.num_addresses}",
            "--dhcp-authoritative",
            "--dhcp-ignore-names",
            "--no-ping",
            "--no-resolv",
            "--no-hosts",
            "--quiet-dhcp",
            f"--pid-file={self._pid_file}",
        ]
        if self._resolvers:
            arguments.append("--dhcp-option=option:dns-server," + ",".join(map(str, self._resolvers)))
        return arguments

    def _arguments_digest(self) -> str:
        return hashlib.sha256("\0".join(self._arguments()).encode()).hexdigest()

    async def _start(self, arguments_digest: str, namespace: int, bridge_index: int) -> None:
        names, (_, uid, gid) = self._names, self._user
        await in_thread(lambda: self._pid_file.unlink(missing_ok=True))
        netns = "" if names.netns is None else str(namespace_path(names.netns))
        entering = (sys.executable, "-I", "-S", str(_ENTER), netns, str(uid), str(gid), str(self._folder.resolve()))
        said = os.memfd_create("dnsmasq", os.MFD_CLOEXEC)
        try:
            confinement = Confinement(argv=(*entering, *self._arguments()), uid=0, gid=0, descriptors={2: said})

            async def record(process: ProcessRecord) -> None:
                server = StoredServer(
                    process=process,
                    arguments_digest=arguments_digest,
                    namespace=namespace,
                    bridge_index=bridge_index,
                )
                await in_thread(write_durably, self._record, server.model_dump_json().encode())

            process = await launch_detached(confinement, record=record)
            await self._await_begin(process, said)
        finally:
            os.close(said)

    async def _await_begin(self, process: ProcessRecord, said: int) -> None:
        # dnsmasq writes its pid once it listens.
        boot_id = read_boot_id()
        deadline = asyncio.get_running_loop().time() + BEGIN_SECONDS
        while is_alive(process, boot_id):
            if self._pid_file.exists() and self._pid_file.read_text().strip() == str(process.pid):
                return
            if asyncio.get_running_loop().time() > deadline:
                signal_process(process, signal.SIGKILL)
                break
            await asyncio.sleep(_LOOK_SECONDS)
        cause = RuntimeError(os.pread(said, 2000, 0).decode(errors="replace"))
        raise StepFailed(
            f"dnsmasq on bridge {self._names.bridge} did not begin: another DHCP server may hold the bridge"
        ) from cause

    async def _end(self, process: ProcessRecord) -> None:
        signal_process(process, signal.SIGTERM)
        if not await await_end(process, END_SECONDS):
            signal_process(process, signal.SIGKILL)
            await await_end(process, END_SECONDS)

    async def _end_strays(self) -> None:
        """End servers of this very folder that no record names: the folder was lost, or an older one put back (H-E2).

        Such a one would go on to answer guests by reservations that are no longer these.
        """
        for stray in await in_thread(self._find_strays):
            await self._end(stray)

    def _find_strays(self) -> list[ProcessRecord]:
        ours, known, uid = f"--dhcp-hostsdir={self._hosts}".encode(), self.process, self._user[1]
        found: list[ProcessRecord] = []
        for process in find_processes_of(range(uid, uid + 1), read_boot_id()):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                is_ours = ours in Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
                if is_ours and (known is None or process.pid != known.pid):
                    found.append(process)
        return found

    def _reread(self) -> None:
        server = self._find_server()
        if server is not None and self._is_alive(server):
            signal_process(server.process, signal.SIGHUP)

    async def _forget_other_leases(self, a: Attachment, guard: Guard) -> None:
        # dnsmasq gives a reserved address to nobody while its lease names another MAC, and knows no way to end a lease.
        lines = await in_thread(self._read_leases)
        kept = [line for line in lines if not _is_another(line, a)]
        if kept == lines:
            return
        guard()
        server = self._find_server()
        if server is not None and self._is_alive(server):
            await self._end(server.process)
            lines = await in_thread(self._read_leases)
            kept = [line for line in lines if not _is_another(line, a)]
        await in_thread(lambda: write_durably(self._leases, "".join(kept).encode(), mode=0o644))
        if server is not None:
            await self._start(server.arguments_digest, server.namespace, server.bridge_index)

    def _read_leases(self) -> list[str]:
        return self._leases.read_text().splitlines(keepends=True) if self._leases.exists() else []

    def _find_server(self) -> StoredServer | None:
        try:
            return StoredServer.model_validate(parse_any(DHCP, self._record.name, self._record.read_bytes()))
        except (FileNotFoundError, ValueError, Unreadable):
            return None

    def _is_alive(self, server: StoredServer) -> bool:
        return is_alive(server.process, read_boot_id())


def _line(a: Attachment) -> tuple[str, ...]:
    return (a.mac, str(a.address))


def _is_another(lease: str, a: Attachment) -> bool:
    # "expiry mac address name client-id"
    fields = lease.split()
    return fields[2:3] == [str(a.address)] and fields[1] != a.mac


def _find_user(name: str) -> tuple[str, int, int]:
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        # Never `nobody`, which other programs are too: what it may do to one of them it may do to all (S-2).
        return ("root", 0, 0)
    return (found.pw_name, found.pw_uid, found.pw_gid)

"""What a host worker is made of: the real drivers, wired into the steps of one host."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from dataclasses import dataclass

from drivers.cgroups import Cgroups
from drivers.disks import Disks
from drivers.durable import make_folder
from drivers.fences import FenceStore
from drivers.host.parts import Parts, Paths
from drivers.host.seen import SeenStore
from drivers.host.steps import HostSteps
from drivers.hypervisor import Hypervisor
from drivers.hypervisor.choice import Hypervisors
from drivers.hypervisor.qemu import Qemu
from drivers.hypervisor.simulated import Simulated
from drivers.images import Images
from drivers.jobs import Jobs
from drivers.machine import HostIdentity, read_boot_id
from drivers.names import HostNames
from drivers.network import Network
from drivers.network.choice import GuestNetwork, Networks
from drivers.network.simulated import SimulatedNetwork
from drivers.records import RecordStore
from drivers.reserve import Reserve
from drivers.simulated import Simulation
from drivers.simulated_disks import SimulatedDisks
from drivers.slots import Slots
from drivers.space import Space
from runtime.settings import HostSettings, Settings, SimulatedGuests
from workers.enrolment import read_caps
from workers.host_api import HostApi

IMAGE_USER = "hostler-image"
MAX_VIRTUAL_SIZE_BYTES = 2 << 40


@dataclass(frozen=True)
class Drivers:
    """What runs and connects the guests of one host."""

    hypervisor: Hypervisor
    network: GuestNetwork
    simulation: Simulation


def build_drivers(
    names: HostNames, paths: Paths, boot_id: Callable[[], str], *, simulated_guests: SimulatedGuests
) -> Drivers:
    """Build the real and the simulated drivers; the simulated ones find and end what is there in any case."""
    simulation = Simulation(paths.simulated, boot_id)
    simulated = Simulated(simulation, names, allowed=simulated_guests != "none")
    told = SimulatedNetwork(simulation, names)
    if simulated_guests == "only":
        return Drivers(Hypervisors(simulated), told, simulation)
    qemu = Qemu(names, Cgroups.detect(names.cgroup), boot_id)
    network = Network(names, paths.home / "dnsmasq")
    return Drivers(Hypervisors(qemu, simulated), Networks(network, told), simulation)


def build_host(
    settings: Settings, host_settings: HostSettings, identity: HostIdentity, api: HostApi, reserve: Reserve
) -> HostSteps:
    """Wire the drivers into the steps of one host."""
    names, paths = host_settings.names, Paths(settings.host_home)
    make_folder(paths.home / "sockets")
    space = Space(settings.host_home, reserve)
    fences = FenceStore(
        paths.home / "fences",
        fleet_id=identity.fleet_id,
        host_id=identity.host_id,
        instance_id=identity.instance_id,
        write=reserve.write,
    )
    records = RecordStore(paths.machines, reserve.write)

    def boot_id() -> str:
        return read_boot_id(host_settings.boot_id_path)

    drivers = build_drivers(names, paths, boot_id, simulated_guests=host_settings.simulated_guests)
    seen = SeenStore(records, boot_id)
    images = Images(
        paths.images,
        user=_find_user(IMAGE_USER),
        file_root=host_settings.image_file_root,
        space=space,
        max_virtual_size_bytes=MAX_VIRTUAL_SIZE_BYTES,
        allowed=host_settings.image_allow,
    )
    return HostSteps(
        Parts(
            names=names,
            paths=paths,
            identity=identity,
            records=records,
            jobs=Jobs(paths.home / "locks", fences, machines=paths.machines),
            seen=seen,
            create_slots=Slots(
                "waiting for a free create slot ({busy} of {limit} busy)",
                host_settings.max_concurrent_creates,
                seen.call,
            ),
            boot_slots=Slots("waiting for a boot slot", host_settings.max_concurrent_boots, seen.call),
            network=drivers.network,
            hypervisor=drivers.hypervisor,
            images=images,
            disks=Disks(space),
            simulated_disks=SimulatedDisks(drivers.simulation),
            space=space,
            reserve=reserve,
            boot_id=boot_id,
            fetch_input=api.fetch_input,
            fetch_certificate=api.fetch_certificate,
            fetch_sets=api.fetch_sets,
            allow_emulated_guests=host_settings.allow_emulated_guests,
            caps=host_settings.caps_over(read_caps(paths.home)),
            disk_overcommit=host_settings.disk_overcommit,
            find_use=Cgroups.detect(names.cgroup).find_use,
            alone_after_seconds=host_settings.alone_after_seconds or None,
        )
    )


def _find_user(name: str) -> tuple[int, int] | None:
    if os.geteuid() != 0:
        return None  # nobody else to become
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        return None
    return found.pw_uid, found.pw_gid

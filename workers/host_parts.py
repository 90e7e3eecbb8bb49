"""What a host worker is made of: the real drivers, wired into the steps of one host."""

from __future__ import annotations

import pwd

from drivers.cgroups import Cgroups
from drivers.disks import Disks
from drivers.durable import make_folder
from drivers.fences import FenceStore
from drivers.host.parts import Parts, Paths
from drivers.host.seen import SeenStore
from drivers.host.steps import HostSteps
from drivers.hypervisor.qemu import Qemu
from drivers.images import Images
from drivers.jobs import Jobs
from drivers.machine import HostIdentity, read_boot_id
from drivers.network import Network
from drivers.records import RecordStore
from drivers.slots import Slots
from drivers.space import Space
from runtime.settings import HostSettings, Settings
from workers.host_api import HostApi

IMAGE_USER = "hostler-image"
MAX_VIRTUAL_SIZE_BYTES = 2 << 40


def build_host(settings: Settings, host_settings: HostSettings, identity: HostIdentity, api: HostApi) -> HostSteps:
    """Wire the drivers into the steps of one host."""
    names, paths = host_settings.names, Paths(settings.host_home)
    make_folder(paths.home / "sockets")
    space, cgroups = Space(settings.host_home), Cgroups.detect(names.cgroup)
    fences = FenceStore(
        paths.home / "fences",
        fleet_id=identity.fleet_id,
        host_id=identity.host_id,
        instance_id=identity.instance_id,
    )
    records = RecordStore(paths.machines)

    def boot_id() -> str:
        return read_boot_id(host_settings.boot_id_path)

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
            network=Network(names, paths.home / "dnsmasq"),
            hypervisor=Qemu(names, cgroups, boot_id),
            cgroups=cgroups,
            images=images,
            disks=Disks(space),
            space=space,
            boot_id=boot_id,
            fetch_input=api.fetch_input,
            allow_emulated_guests=host_settings.allow_emulated_guests,
        )
    )


def _find_user(name: str) -> tuple[int, int] | None:
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        return None
    return found.pw_uid, found.pw_gid

"""The guest's root file system: a folder of busybox, OpenSSH, our boot scripts, then an ext4 disk."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from kernel import INITRD_MODULES, loader, select_modules

FILES = Path(__file__).resolve().parent / "files"
PROGRAMS = (
    "usr/sbin/sshd",
    "usr/bin/ssh-keygen",
    "sbin/resize2fs",
    "sbin/mke2fs",
    "sbin/e2fsck",
    "sbin/sfdisk",
    "usr/bin/partx",
)
MODULES = (
    *INITRD_MODULES,
    *("isofs", "button", "evdev", "virtio_balloon", "virtio_console", "virtio-rng", "pvpanic-pci", "qemu_fw_cfg"),
    *("vsock", "vmw_vsock_virtio_transport", "virtio_scsi", "sd_mod", "sr_mod", "virtiofs"),
)
FOLDERS = (
    *("bin", "sbin", "usr/bin", "usr/sbin", "usr/lib/hostler", "lib", "lib64", "etc/ssh/sshd_config.d"),
    *("etc/acpi/PWRF", "proc", "sys", "dev", "run", "tmp", "mnt", "root/.ssh", "home", "var/lib/hostler"),
    *("var/log", "var/empty"),
)
SCRIPTS = ("yaml2tree.awk", "commands", "final", "net", "udhcpc", "bylinks", "growpart")
TEXTS = {
    "etc/passwd": "root:x:0:0:root:/root:/usr/lib/hostler/sh\n"
    "sshd:x:100:65534::/run/sshd:/bin/false\n"
    "nobody:x:65534:65534:nobody:/:/bin/false\n",
    "etc/group": "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n",
    "etc/shadow": "root:*:19000:0:99999:7:::\nsshd:!:19000::::::\nnobody:*:19000::::::\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n",
    "etc/profile": "export PATH=/usr/sbin:/usr/bin:/sbin:/bin\n",
    "etc/shells": "/bin/sh\n/usr/lib/hostler/sh\n",
    "etc/fstab": "",
    "etc/os-release": 'ID=hostler-guest\nNAME="Hostler demo guest"\nVERSION_ID=1\n',
}


def make_root_disk(unpacked: Path, dynamic: Path, modules_folder: Path, work: Path, disk: Path, size: str) -> None:
    """Make the root disk (qcow2, ext4 without a partition table) from unpacked packages."""
    tree = work / "root"
    for folder in FOLDERS:
        (tree / folder).mkdir(parents=True, exist_ok=True)
    _place_busybox(tree, unpacked, dynamic)
    _place_programs(tree, unpacked)
    _place_modules(tree, modules_folder)
    _place_configuration(tree)
    raw = work / "root.img"
    _make_file_system(tree, raw, size)
    _run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, disk)


def _place_busybox(tree: Path, unpacked: Path, dynamic: Path) -> None:
    # The static busybox boots: under emulation each start of a dynamic program costs some 10 ms.
    # Its wget, though, dies in getaddrinfo once the guest has an IPv6 address, so the shell that
    # people log in to is the dynamic one.
    _place(unpacked / "bin/busybox", tree / "bin/busybox")
    _place(dynamic / "bin/busybox", tree / "bin/busybox-dyn")
    (tree / "usr/lib/hostler/sh").symlink_to("/bin/busybox-dyn")
    for applet in _run(unpacked / "bin/busybox", "--list-full").split():
        link = tree / applet
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to("/bin/busybox")


def _place_programs(tree: Path, unpacked: Path) -> None:
    for program in PROGRAMS:
        (tree / program).unlink(missing_ok=True)  # the applet of that name
        _place(unpacked / program, tree / program)
    for program in (*PROGRAMS, "bin/busybox-dyn"):
        for library in _libraries(tree / program, unpacked):
            _place(library, tree / "lib/x86_64-linux-gnu" / library.name)
    _place(unpacked / "lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", tree / "lib64/ld-linux-x86-64.so.2")


def _libraries(program: Path, unpacked: Path) -> list[Path]:
    found: list[Path] = []
    for line in _run(*loader(unpacked), "--list", program).splitlines():
        name, _, target = line.strip().partition(" => ")
        path = target.split(" (")[0]
        if path.startswith(str(unpacked)):
            found.append(Path(path))
        elif path:
            raise SystemExit(f"guest: {program.name} needs {name}, which none of the guest's packages has")
    return found


def _place_modules(tree: Path, modules_folder: Path) -> None:
    target = tree / "lib/modules" / modules_folder.name
    for file in (
        *select_modules(modules_folder, MODULES),
        "modules.builtin",
        "modules.builtin.modinfo",
        "modules.order",
    ):
        _place(modules_folder / file, target / file, 0o644)
    _run("depmod", "-b", tree, modules_folder.name)


def _place_configuration(tree: Path) -> None:
    for name, mode in (("rc.boot", 0o755), ("rc.shutdown", 0o755), ("inittab", 0o644)):
        _place(FILES / name, tree / "etc" / name, mode)
    _place(FILES / "sshd_config", tree / "etc/ssh/sshd_config", 0o644)
    _place(FILES / "powerbutton", tree / "etc/acpi/PWRF/00000080")
    for name in SCRIPTS:
        _place(FILES / name, tree / "usr/lib/hostler" / name)
    for name, text in TEXTS.items():
        (tree / name).write_text(text)
        (tree / name).chmod(0o644)
    (tree / "etc/mtab").symlink_to("/proc/self/mounts")
    for name, mode in (("etc/shadow", 0o600), ("root", 0o700), ("root/.ssh", 0o700), ("tmp", 0o1777)):
        (tree / name).chmod(mode)


def _make_file_system(tree: Path, raw: Path, size: str) -> None:
    raw.unlink(missing_ok=True)
    options = ["-q", "-t", "ext4", "-b", "4096", "-L", "hostlerroot", "-E", "root_owner=0:0,lazy_itable_init=1"]
    options += ["-O", "^metadata_csum_seed", "-J", "size=4", "-N", "4096", "-m", "0"]
    _run("mke2fs", *options, "-d", tree, raw, size)


def _place(source: Path, target: Path, mode: int = 0o755) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def _run(*command: str | Path) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

"""Find out whether this host's QEMU really runs a guest, by running one (X-3)."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from drivers.confine import Confinement, Finished, run_confined
from drivers.hypervisor import Accelerator, Availability
from drivers.hypervisor.qemu_arguments import PROGRAM, SANDBOX
from model.errors import StepFailed
from model.text import clean_text

KVM = Path("/dev/kvm")
NOBODY = 65534
PROBE_SECONDS = 15.0
FIRMWARE_BYTES = 65536
ANSWER = 0x31
EXIT_STATUS = ANSWER << 1 | 1
"""What QEMU's isa-debug-exit makes of the guest's answer."""


async def find_availability() -> Availability:
    """Find QEMU's version and newest q35, and the first accelerator of kvm and tcg under which a guest ran."""
    try:
        version = find_version((await run("-version")).stdout)
        machine_type = find_machine_type((await run("-machine", "help")).stdout)
    except StepFailed as error:
        return Availability(name="qemu", available=False, why=str(error))
    reasons: list[str] = []
    accelerators: tuple[Accelerator, ...] = ("kvm", "tcg")
    for accelerator in accelerators:
        reason = await find_reason_against(accelerator)
        if reason is None:
            return Availability(
                name="qemu",
                available=True,
                why="; ".join([*reasons, f"a probe guest ran with {accelerator}"]),
                accelerator=accelerator,
                version=version,
                machine_type=machine_type,
                emulated=accelerator == "tcg",
            )
        reasons.append(reason)
    return Availability(name="qemu", available=False, why="; ".join(reasons), version=version)


async def find_reason_against(accelerator: Accelerator) -> str | None:
    """Run the probe guest under an accelerator; None: it ran."""
    if accelerator == "kvm" and not KVM.exists():
        return "this host has no /dev/kvm"
    firmware = os.memfd_create("firmware", os.MFD_CLOEXEC)
    try:
        os.write(firmware, build_firmware())
        finished = await run(
            *("-machine", "q35", "-accel", accelerator, "-m", "16M", "-nodefaults", "-no-user-config"),
            *("-display", "none", "-sandbox", SANDBOX, "-bios", "/dev/fd/3"),
            *("-device", "isa-debug-exit,iobase=0xf4,iosize=0x01"),
            groups=find_kvm_groups() if accelerator == "kvm" else (),
            descriptors={3: firmware},
        )
    except StepFailed as error:
        return f"{accelerator}: {error}"
    finally:
        os.close(firmware)
    if finished.returncode == EXIT_STATUS:
        return None
    said = clean_text(finished.stderr, 300) or "nothing"
    return f"{accelerator}: the probe guest did not run (status {finished.returncode}, QEMU said: {said})"


def build_firmware() -> bytes:
    """Build a guest of five instructions: at the processor's first address, answer and halt.

    Real mode at F000:FFF0 (Intel SDM 3A, 10.1.4): `mov al, ANSWER; out 0xf4, al; hlt; jmp -3`.
    """
    code = bytes((0xB0, ANSWER, 0xE6, 0xF4, 0xF4, 0xEB, 0xFD))
    return (b"\xf4" * (FIRMWARE_BYTES - 16) + code).ljust(FIRMWARE_BYTES, b"\xf4")


def find_kvm_groups(device: Path = KVM) -> tuple[int, ...]:
    """Find the group through which a guest's user reaches /dev/kvm; never root's, which would open far more."""
    with contextlib.suppress(OSError):
        found = device.stat()
        if found.st_gid != 0 and found.st_mode & 0o060 == 0o060:
            return (found.st_gid,)
    return ()


def find_version(text: bytes) -> str | None:
    match = re.search(rb"version ([0-9]+(?:\.[0-9]+)*)", text)
    return match[1].decode() if match else None


def find_machine_type(text: bytes) -> str | None:
    """Find the versioned name behind q35, which is another one in each release."""
    match = re.search(rb"^q35 .*\(alias of (pc-q35-[0-9.]+)\)", text, re.MULTILINE)
    return match[1].decode() if match else None


async def run(*arguments: str, groups: tuple[int, ...] = (), descriptors: dict[int, int] | None = None) -> Finished:
    return await run_confined(
        Confinement((PROGRAM, *arguments), uid=NOBODY, gid=NOBODY, groups=groups, descriptors=descriptors or {}),
        timeout_seconds=PROBE_SECONDS,
    )

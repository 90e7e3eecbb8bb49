"""A host whose state directory is full: creates are refused with numbers, guests run on, stop and delete work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.installation import Installation
from tests.e2e.sources import all_stays, assert_fit_to_read, flat, make_image, remove, serve
from tests.fixtures.image_server import ImageServer

MIB = 1 << 20
FILESYSTEM_BYTES = 640 * MIB
REFUSED = r"refused: its host has [0-9]+ MiB of [0-9]+ MiB free, and no VM is made below 5 %"


class SmallHost:
    """An installation whose host keeps its state on a small filesystem of its own."""

    def __init__(self, fleet: Installation, folder: Path) -> None:
        self.fleet = fleet
        self.filler = folder / "filler"
        self.folder = folder

    def fill(self, leave_bytes: int) -> None:
        """Take all the room that a user may have, but for so much."""
        with self.filler.open("ab") as file:
            free = os.statvfs(self.folder)
            room = free.f_bavail * free.f_frsize - leave_bytes
            os.posix_fallocate(file.fileno(), file.tell(), max(1, room))

    def fill_to_the_last_block(self) -> None:
        """Take root's own reserve, too."""
        with self.filler.open("ab", buffering=0) as file:
            for size in (MIB, 4096, 512):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError:
                    continue

    def make_room(self) -> None:
        self.filler.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def small_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallHost]:
    """Mount a filesystem where the host's state goes, before anything is there."""
    fleet = Installation(None, "--no-caps", "--set", 'HOSTLER_HOST_IMAGE_ALLOW=["127.0.0.0/8"]')
    folder, backing = fleet.home / "host", tmp_path_factory.mktemp("small") / "filesystem"
    with backing.open("wb") as file:
        file.truncate(FILESYSTEM_BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(backing)], check=True)
    fleet.home.mkdir(mode=0o755)
    folder.mkdir(mode=0o700)
    mounted = subprocess.run(["mount", "-o", "loop", str(backing), str(folder)], capture_output=True, text=True)
    if mounted.returncode != 0:
        shutil.rmtree(fleet.home)
        pytest.skip(f"no small filesystem could be mounted by a loop device here: {mounted.stderr.strip()}")
    try:
        folder.chmod(0o700)
        fleet.up(timeout=300)
        yield SmallHost(fleet, folder)
    finally:
        fleet.down(vms=True)
        subprocess.run(["umount", str(folder)], check=True)
        fleet.remove()


def test_an_image_that_does_not_fit_is_refused_with_the_numbers(
    small_host: SmallHost, image_server: ImageServer, tmp_path: Path
):
    """D-7, J6: before it is fetched; the room that is missing is named, and nothing of it is left."""
    fleet = small_host.fleet
    body = make_image(tmp_path, "1G")
    image = serve(image_server, "/huge.qcow2", body, stated_length=FILESYSTEM_BYTES)
    with all_stays(fleet):
        words = ("--image-url", image["url"], "--sha256", image["sha256"], "--timeout", "8s")
        done = fleet.hostler("vm", "create", "huge", *words, check=False)
        told = flat(done.stdout + done.stderr)
        assert done.returncode in (1, 4), told
        assert_no_room(fleet, told, "the image", image["sha256"])
        remove(fleet, "huge")
        assert not list((fleet.home / "host" / "images").glob("*.part*"))


def test_with_no_room_left_creates_fail_and_stop_and_delete_go_on(small_host: SmallHost):
    """D-12, L-C3, L-V11: a create says what is missing; another VM is stopped, started, stands still and is deleted."""
    fleet = small_host.fleet
    other = fleet.create("other", stop_timeout_seconds=20)
    fleet.ready("other", 90)
    untouched = fleet.guests()
    small_host.fill(leave_bytes=0)
    try:
        with all_stays(fleet):
            done = fleet.hostler("vm", "create", "late", "--image", "demo", "--timeout", "8s", check=False)
            told = flat(done.stdout + done.stderr)
            assert done.returncode in (1, 4), told
            assert re.search(REFUSED, told), told
            assert fleet.row("late")["create_attempts"] == 0
            remove(fleet, "late")
        fleet.hostler("vm", "stop", "other", timeout=100)
        assert fleet.row("other")["power_state"] == "stopped"
        fleet.hostler("vm", "start", "other", timeout=100)
        # A guest that may not write stands still, and goes on by itself once there is room.
        row = fleet.until(other["id"], lambda row: row["phase"] == "failed", 120)
        assert row["last_error"] == "the hypervisor paused the guest: there is no room left for its disk on the host"
        stalled = fleet.guests()[other["id"]]
        small_host.make_room()
        assert fleet.ssh("other", "hostname", seconds=120).strip() == "other"
        assert fleet.guests()[other["id"]] == stalled, "it was never ended for it"
        small_host.fill(leave_bytes=0)
        remove(fleet, "other")
        assert fleet.guests() == {vm_id: seen for vm_id, seen in untouched.items() if vm_id != other["id"]}
    finally:
        small_host.make_room()


def test_on_a_filesystem_without_a_block_nothing_breaks_and_all_goes_on_with_room(small_host: SmallHost):
    """D-7, D-12: even where root's reserve is gone, guests run on, a reason is shown, and with room it is made."""
    fleet = small_host.fleet
    with all_stays(fleet):
        small_host.fill_to_the_last_block()
        try:
            row = fleet.create("later", stop_timeout_seconds=20)
            row = fleet.until(row["id"], lambda found: found["last_error"] is not None, 60)
            assert_fit_to_read(fleet, row["last_error"])
            assert re.fullmatch(REFUSED, row["last_error"]), row["last_error"]
            assert fleet.ssh("demo", "hostname").strip() == "demo"
        finally:
            small_host.make_room()
        fleet.hostler("vm", "retry", "later", timeout=120)
        assert fleet.ssh("later", "hostname").strip() == "later"
        remove(fleet, "later")


def assert_no_room(fleet: Installation, told: str, what: str, *digests: str) -> None:
    """The sentence of D-7, with what was needed and what was found."""
    size = r"[0-9.]+ [MG]iB"
    sentence = (
        f"not enough room for {what}: {size} needed, {size} free for it \\({size} free, of which {size} are promised "
        f"to copies in flight and {size} kept for records\\); make room on the host"
    )
    assert re.search(sentence, told), told
    assert_fit_to_read(fleet, told, *digests)

"""The demo guest: what it is built from, and that it boots, reads its seed and survives a kill."""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pycdlib
import pytest

from cli.place import Place
from cli.ssh_trust import Trust, trust_certificate
from cli.vm_ssh import ssh_command
from drivers.seed import SeedInput, seed_files
from runtime.ssh_ca import SshCa
from tests.fixtures.guest import BUILDER, DemoGuest, guest_cache

ADDRESS, GATEWAY = "10.99.0.2", "10.99.0.1"
MAC = "02:00:00:00:00:01"
BOOT_SECONDS = 60


def builder(*arguments: str, script: Path = BUILDER, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({"PATH": path} if path else {})}
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=environment,
    )


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """A copy of the builder's folder that a test may change."""
    return Path(shutil.copytree(BUILDER.parent, tmp_path / "guest", ignore=shutil.ignore_patterns("__pycache__")))


def test_key_changes_with_each_input(demo_guest: DemoGuest, scripts: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    shutil.copy(guest_cache() / "known.json", cache)

    def key() -> str:
        done = builder("--cache", str(cache), "--print-key", script=scripts / "build.py")
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert key() == demo_guest.folder.name
    boot_script = scripts / "files" / "rc.boot"
    boot_script.write_text(boot_script.read_text() + "# changed\n")
    with_other_script = key()
    names = scripts / "packages.txt"
    names.write_text(names.read_text() + "tree\n")
    with_another_package = key()
    assert len({demo_guest.folder.name, with_other_script, with_another_package}) == 3
    assert not list(cache.glob("*/image.json")), "asking for the key builds nothing"


def test_second_build_is_no_work(demo_guest: DemoGuest, tmp_path: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in guest_cache().rglob("*")}
    # No program to call: neither apt nor anything that builds.
    done = builder("--cache", str(guest_cache()), "--print-folder", path=str(tmp_path))
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, str(demo_guest.folder), "")
    assert {file: file.stat().st_mtime_ns for file in guest_cache().rglob("*")} == before


def test_finished_guest_serves_when_apt_is_no_help(demo_guest: DemoGuest, tmp_path: Path) -> None:
    """Lists that changed since, and no apt that answers: the guest of the same scripts is used, and that is said."""
    cache = tmp_path / "cache"
    kept = cache / demo_guest.folder.name
    kept.mkdir(parents=True)
    shutil.copy(demo_guest.folder / "image.json", kept)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("apt-cache", "apt-get"):
        (programs / name).write_text("#!/bin/sh\necho 'E: no network' >&2; exit 100\n")
        (programs / name).chmod(0o755)
    done = builder("--cache", str(cache), "--print-folder", path=f"{programs}:{os.environ['PATH']}")
    assert (done.returncode, done.stdout.strip()) == (0, str(kept))
    assert "no network" in done.stderr

    (kept / "image.json").write_text((kept / "image.json").read_text().replace('"scripts": "', '"scripts": "0'))
    done = builder("--cache", str(cache), "--print-folder", path=f"{programs}:{os.environ['PATH']}")
    assert done.returncode == 1
    assert "no network" in done.stderr


def test_description_fits_the_files(demo_guest: DemoGuest) -> None:
    for part in ("rootfs", "kernel", "initrd"):
        file = demo_guest.folder / demo_guest.image[part]["file"]
        done = subprocess.run(["sha256sum", file], check=True, capture_output=True, text=True)
        assert done.stdout.split()[0] == demo_guest.image[part]["sha256"]
    command = ["qemu-img", "info", "--output=json", demo_guest.root_qcow2]
    info = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert info["format"] == demo_guest.image["rootfs"]["format"] == "qcow2"
    assert info["virtual-size"] == demo_guest.image["virtual_size_bytes"]
    assert "backing-filename" not in info
    assert sorted(file.name for file in demo_guest.folder.iterdir()) == [
        "image.json",
        "initrd",
        "root.qcow2",
        "vmlinux",
    ]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_builds_at_once_share_one_result(demo_guest: DemoGuest, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    shutil.copytree(guest_cache() / "packages", cache / "packages")
    command = [sys.executable, str(BUILDER), "--cache", str(cache), "--print-folder"]
    builds = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    results = [build.communicate(timeout=500) for build in builds]
    assert [build.returncode for build in builds] == [0, 0], results
    assert {folder.strip() for folder, _ in results} == {str(cache / demo_guest.folder.name)}
    assert sorted("root disk" in progress for _, progress in results) == [False, True], "one built, the other waited"
    assert sorted(path.name for path in cache.iterdir() if path.is_dir()) == sorted(
        [demo_guest.folder.name, "packages"]
    )
    inputs = json.loads((cache / demo_guest.folder.name / "image.json").read_text())["inputs"]
    assert inputs == demo_guest.image["inputs"]


class Lab:
    """One guest under emulation on a tap in a network namespace of its own."""

    def __init__(self, guest: DemoGuest, folder: Path, namespace: str) -> None:
        self.guest, self.folder, self.namespace = guest, folder, namespace
        self.console = folder / "console.log"
        self.disk = folder / "root.qcow2"
        for name in ("user", "host"):
            self._run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", folder / name)
        (folder / "known_hosts").write_text(f"{ADDRESS} {self.public_key('host')}\n")
        backing = ["-F", "qcow2", "-b", guest.root_qcow2]
        self._run("qemu-img", "create", "-q", "-f", "qcow2", *backing, self.disk, "256M")

    def public_key(self, name: str) -> str:
        return " ".join((self.folder / f"{name}.pub").read_text().split()[:2])

    def make_seed(self, **files: str) -> None:
        image = pycdlib.PyCdlib()
        image.new(interchange_level=3, rock_ridge="1.09", vol_ident="CIDATA")
        for number, (name, text) in enumerate(files.items()):
            content = text.encode()
            iso_path = f"/F{number}.;1"
            image.add_fp(io.BytesIO(content), len(content), iso_path, rr_name=name.replace("_", "-"))
        image.write(str(self.folder / "seed.iso"))
        image.close()

    @contextlib.contextmanager
    def boot(self) -> Generator["subprocess.Popen[bytes]"]:
        self.console.write_text("")
        drive = "driver={},node-name={},read-only={},file.driver=file,file.filename={}"
        command = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35"]
        command += ["-accel", "tcg,tb-size=64", "-cpu", "qemu64", "-m", "128"]
        command += ["-kernel", str(self.guest.vmlinux), "-initrd", str(self.guest.initrd)]
        command += ["-append", self.guest.command_line, "-serial", f"file:{self.console}"]
        command += [
            "-blockdev",
            drive.format("qcow2", "root", "off", self.disk),
            "-device",
            "virtio-blk-pci,drive=root",
        ]
        command += ["-blockdev", drive.format("raw", "seed", "on", self.folder / "seed.iso")]
        command += ["-device", "virtio-blk-pci,drive=seed", "-device", "virtio-rng-pci"]
        command += ["-netdev", "tap,id=n0,ifname=tap0,script=no,downscript=no"]
        command += ["-device", f"virtio-net-pci,netdev=n0,mac={MAC},romfile="]
        process = subprocess.Popen([*self._inside(), *command])
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def wait_for_mark(self, process: "subprocess.Popen[bytes]", name: str) -> float:
        """Wait until the guest has said so on its console; return its uptime in seconds."""
        end = time.monotonic() + BOOT_SECONDS
        while time.monotonic() < end and process.poll() is None:
            # Anywhere in a line: the login prompt may stand before it.
            if mark := re.search(rf"@@hostler {name} (?:\S+ )?([0-9.]+)\s", self.console.read_text(errors="replace")):
                return float(mark[1])
            time.sleep(0.02)
        pytest.fail(f"no mark {name}; the console says:\n{self.console.read_text(errors='replace')}")

    def ssh(self, command: str) -> str:
        """Run a command in the guest, its host key checked."""
        options = ["-F", "none", "-i", self.folder / "user", "-o", "StrictHostKeyChecking=yes", "-o", "BatchMode=yes"]
        options += ["-o", f"UserKnownHostsFile={self.folder / 'known_hosts'}", "-o", "ConnectTimeout=10"]
        options += ["-o", "ConnectionAttempts=10"]
        return self._run(*self._inside(), "ssh", *options, f"root@{ADDRESS}", command)

    def make_user_certificate(self) -> None:
        """Make a user CA, and by it a certificate beside the user's key, where ssh finds it."""
        self._run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / "user_ca")
        sign = ["-s", self.folder / "user_ca", "-I", "user", "-n", "root", self.folder / "user.pub"]
        self._run("ssh-keygen", "-q", *sign)

    def try_ssh(self, trust: Trust, command: str) -> str:
        """Run a command in the guest as `hostler vm ssh` does; return what it printed, or what ssh said."""
        words = ssh_command(trust, ADDRESS, user="root", identities=(self.folder / "user",), command=(command,))
        options = ["-F", "none", "-o", "BatchMode=yes", "-o", "ConnectionAttempts=10"]
        done = subprocess.run(
            [*self._inside(), "ssh", *options, *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=BOOT_SECONDS,
        )
        return done.stdout.strip() if done.returncode == 0 else done.stderr

    def _inside(self) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{self.namespace}", "--"]

    def _run(self, *command: str | Path) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BOOT_SECONDS)
        assert done.returncode == 0, f"{command[0]}: {done.stderr}"
        return done.stdout


@pytest.fixture
def lab(demo_guest: DemoGuest, tmp_path: Path) -> Generator[Lab]:
    if os.geteuid():
        pytest.skip("needs root: a network namespace with a tap")
    namespace = f"guest-{uuid.uuid4().hex[:8]}"
    ip = ["ip", "-n", namespace]
    subprocess.run(["ip", "netns", "add", namespace], check=True)
    try:
        subprocess.run([*ip, "tuntap", "add", "tap0", "mode", "tap"], check=True)
        subprocess.run([*ip, "address", "add", f"{GATEWAY}/24", "dev", "tap0"], check=True)
        subprocess.run([*ip, "link", "set", "tap0", "up"], check=True)
        yield Lab(demo_guest, tmp_path, namespace)
    finally:
        subprocess.run(["ip", "netns", "delete", namespace], check=True)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_boots_by_its_seed_and_survives_a_kill(lab: Lab) -> None:
    """L-C10: name, keys, host key and network from the seed; user-data is the user's, the rest is vendor-data."""
    network = {"version": 2, "ethernets": {"id0": {"match": {"macaddress": MAC}, "addresses": [f"{ADDRESS}/24"]}}}
    vendor = {
        "ssh_keys": {
            "ed25519_private": (lab.folder / "host").read_text(),
            "ed25519_public": lab.public_key("host"),
        },
        "hostname": "from-vendor",
        "runcmd": ["touch /root/vendor-ran"],
    }
    user = "#cloud-config\nhostname: from-user\nwrite_files:\n- {path: /root/by-user, content: hello}\n"
    user += "runcmd:\n- echo ran >>/root/user-ran\n"
    meta = {"instance-id": str(uuid.uuid4()), "local-hostname": "from-meta", "public-keys": [lab.public_key("user")]}
    lab.make_seed(
        meta_data=json.dumps(meta),
        user_data=user,
        vendor_data="#cloud-config\n" + json.dumps(vendor),
        network_config=json.dumps(network),
    )
    with lab.boot() as process:
        lab.wait_for_mark(process, "net")
        assert lab.ssh("hostname").strip() == "from-user"
        lab.wait_for_mark(process, "final")
        assert lab.ssh("cat /root/by-user /root/user-ran; ls /root").split() == ["helloran", "by-user", "user-ran"]
        assert int(lab.ssh("df -m / | tail -n 1 | awk '{print $2}'")) > 200, "the root grew with its disk"
        lab.ssh("echo kept >/root/kept; sync")
    with lab.boot() as process:
        lab.wait_for_mark(process, "final")
        assert lab.ssh("cat /root/kept /root/user-ran").split() == ["kept", "ran"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_instance_killed_while_it_is_set_up_is_set_up_again(lab: Lab) -> None:
    """No kill leaves an empty host key behind a finished setup: SSH answers with the seed's key afterwards."""
    network = {"version": 2, "ethernets": {"id0": {"match": {"macaddress": MAC}, "addresses": [f"{ADDRESS}/24"]}}}
    keys = {"ed25519_private": (lab.folder / "host").read_text(), "ed25519_public": lab.public_key("host")}
    lab.make_seed(
        meta_data=json.dumps(
            {"instance-id": "i-1", "local-hostname": "web-1", "public-keys": [lab.public_key("user")]}
        ),
        user_data="#!/bin/sh\necho script >/root/script\n",
        vendor_data="#cloud-config\n" + json.dumps({"ssh_keys": keys}),
        network_config=json.dumps(network),
    )
    for mark in ("seed", "grown", "net"):
        with lab.boot() as process:
            lab.wait_for_mark(process, mark)
    with lab.boot() as process:
        lab.wait_for_mark(process, "final")
        assert lab.ssh("hostname; cat /root/script").split() == ["web-1", "script"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_shows_its_certificate_and_takes_users_by_their_authority(lab: Lab) -> None:
    """L-C2, L-C10, S-41: OpenSSH takes a renewed certificate, and none that has ended, is another's, or is revoked.

    The user has a certificate by a user CA alone: the seed holds no key of theirs.
    """
    vm_id, private = str(uuid.uuid4()), (lab.folder / "host").read_text()
    authority, other = SshCa(lab.folder / "ca"), SshCa(lab.folder / "other")
    ca, others = authority.create(), other.create()
    lab.make_user_certificate()
    now = datetime.now(UTC)

    def make_seed(valid_until: datetime) -> None:
        certificate = authority.sign_host(
            lab.public_key("host"),
            ca=ca,
            serial=1,
            key_id="test",
            principals=(vm_id,),
            valid_from=now - timedelta(days=2),
            valid_until=valid_until,
        )
        seed = SeedInput(
            vm_id=vm_id,
            hostname="web-1",
            ssh_authorized_keys=(),
            user_data=b"#!/bin/sh\ntrue\n",
            mac=MAC,
            host_key_private=private,
            host_key_public=lab.public_key("host"),
            host_certificate=certificate,
            ssh_user_cas=(f" {lab.public_key('user_ca')} ",),
        )
        files = {name.replace("-", "_"): data.decode() for name, data in seed_files(seed).items()}
        card = {"match": {"macaddress": MAC}, "addresses": [f"{ADDRESS}/24"]}
        network = {"version": 2, "ethernets": {"nic0": card}}
        lab.make_seed(**{**files, "network_config": json.dumps(network)})

    def log_in(host_ca: str = ca, *, named: str = vm_id, revoked: str | None = None) -> str:
        """Return what the guest answers, or what ssh says against it."""
        shown = {"id": named, "host_certificate": {"valid_until": (now + timedelta(days=1)).isoformat()}}
        keys = [{"public_key": revoked}] if revoked else []
        place = Place("http://127.0.0.1:1", None, lab.folder)
        return lab.try_ssh(trust_certificate(shown, {"host_ca": host_ca, "revoked": keys}, place), "hostname")

    make_seed(now - timedelta(days=1))
    with lab.boot() as process:
        lab.wait_for_mark(process, "final")
        assert "expired" in log_in()
    make_seed(now + timedelta(days=1))
    with lab.boot() as process:
        lab.wait_for_mark(process, "final")
        assert log_in() == "web-1"
        assert "verification failed" in log_in(others)
        assert "verification failed" in log_in(named="another")
        assert "revoked" in log_in(revoked=lab.public_key("host"))

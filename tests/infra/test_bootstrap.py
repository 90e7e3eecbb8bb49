"""infra/bootstrap.sh on this machine, its /etc laid over in a mount namespace of the test's own."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
USERS = ("hostler", "hostler-temporal", "hostler-postgres", "hostler-image", "hostler-dns")
BOOTSTRAP = PROJECT / "infra" / "bootstrap.sh"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: an overlay over /etc")


class ScratchEtc:
    """Runs commands that see a copy of /etc (and of dpkg's records), which they may change."""

    def __init__(self, folder: Path) -> None:
        self.changes = folder
        for layer in ("etc", "etc.work", "dpkg", "dpkg.work"):
            (folder / layer).mkdir()
        self.script = folder / "bootstrap.sh"
        shutil.copy(BOOTSTRAP, self.script)
        for path in (folder, *folder.parents):  # an unprivileged user must reach the script
            if path.stat().st_uid == os.geteuid() and path.is_relative_to("/tmp/"):
                path.chmod(path.stat().st_mode | 0o755)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        over = {"etc": "/etc", "dpkg": "/var/lib/dpkg"}
        layers = {name: f"upperdir={self.changes}/{name},workdir={self.changes}/{name}.work" for name in over}
        lay = " && ".join(f"mount -t overlay o -o lowerdir={at},{layers[name]} {at}" for name, at in over.items())
        return subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", f'{lay} && exec "$@"', "sh", *command],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=60,
            check=False,
        )

    def bootstrap(self, *arguments: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        return self.run(*prefix, str(self.script), *arguments)

    def forget_users(self) -> None:
        for name in ("passwd", "shadow", "group", "gshadow"):
            source = Path("/etc") / name
            if source.exists():
                kept = [line for line in source.read_text().splitlines() if not re.match(r"hostler(-\w+)?:", line)]
                (self.changes / "etc" / name).write_text("\n".join(kept) + "\n")
                shutil.copymode(source, self.changes / "etc" / name)

    def forget_package(self, name: str) -> None:
        stanzas = Path("/var/lib/dpkg/status").read_text().split("\n\n")
        kept = [stanza for stanza in stanzas if f"Package: {name}\n" not in stanza + "\n"]
        assert len(kept) < len(stanzas), f"{name} is not installed here"
        (self.changes / "dpkg" / "status").write_text("\n\n".join(kept))


@pytest.fixture
def scratch(tmp_path_factory: pytest.TempPathFactory) -> ScratchEtc:
    return ScratchEtc(tmp_path_factory.mktemp("etc"))


def test_check_names_what_is_missing_and_changes_nothing(scratch: ScratchEtc) -> None:
    scratch.forget_users()
    scratch.forget_package("xfsprogs")
    done = scratch.bootstrap("--check")
    assert done.returncode == 1
    assert "missing Debian packages: xfsprogs\n" in done.stderr
    assert all(re.search(rf"users .*\b{user}( |$)", done.stderr, re.MULTILINE) for user in USERS)
    assert "hostler" not in (scratch.changes / "etc" / "passwd").read_text()


def test_adds_users_without_login_once(scratch: ScratchEtc) -> None:
    """S-2: each part of the control plane has a user of its own, which nobody can log in as."""
    scratch.forget_users()
    first = scratch.bootstrap()
    assert first.returncode == 0, first.stderr
    accounts = (scratch.changes / "etc" / "passwd").read_text()
    for user in USERS:
        assert re.search(rf"^{user}:x:\d+:\d+::/nonexistent:/usr/sbin/nologin$", accounts, re.MULTILINE)
    numbers = re.findall(r"^hostler\S*?:x:(\d+):(\d+)", accounts, re.MULTILINE)
    assert len({uid for uid, _ in numbers}) == len({gid for _, gid in numbers}) == len(USERS)

    before = {file.name: file.read_bytes() for file in (scratch.changes / "etc").iterdir() if file.is_file()}
    second = scratch.bootstrap()
    after = {file.name: file.read_bytes() for file in (scratch.changes / "etc").iterdir() if file.is_file()}
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert after == before
    assert scratch.bootstrap("--check").returncode == 0


def test_unprivileged_user_learns_what_is_missing(scratch: ScratchEtc) -> None:
    scratch.forget_users()
    scratch.forget_package("xfsprogs")
    as_nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs")
    done = scratch.bootstrap(prefix=as_nobody)
    assert done.returncode != 0
    assert "missing Debian packages: xfsprogs\n" in done.stderr
    assert "hostler-dns" in done.stderr
    assert "sudo" in done.stderr


def test_another_distribution_is_told_so(scratch: ScratchEtc) -> None:
    (scratch.changes / "etc" / "os-release").write_text('ID=plan9\nNAME="Plan 9"\n')
    done = scratch.bootstrap()
    assert done.returncode == 1
    assert "not Debian or Ubuntu" in done.stderr
    assert "qemu-system-x86" in done.stderr

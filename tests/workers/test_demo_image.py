"""The demo guest's files on their way to where `file:` URLs may point."""

import hashlib
import json
from pathlib import Path

import pytest

from model.errors import StepFailed
from workers.demo_image import publish_guest
from workers.installation import Installation, derive_settings


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    installation = Installation(tmp_path / "home", derive_settings("imagetest"))
    installation.images_served.mkdir(parents=True)
    return installation


@pytest.fixture
def guest(tmp_path: Path) -> Path:
    folder = tmp_path / "guest"
    folder.mkdir()
    described: dict[str, object] = {"name": "demo", "architecture": "x86_64", "command_line": "quiet", "inputs": {}}
    for part, file in (("rootfs", "root.qcow2"), ("kernel", "vmlinux"), ("initrd", "initrd")):
        (folder / file).write_text(part)
        described[part] = {"file": file, "sha256": hashlib.sha256(part.encode()).hexdigest()}
    (folder / "image.json").write_text(json.dumps(described))
    return folder


def test_files_are_copied_once_under_their_digest(installation: Installation, guest: Path) -> None:
    image = publish_guest(guest, installation)
    assert image == publish_guest(guest, installation)
    served = Path(image["kernel"]["url"].removeprefix("file://"))
    assert served.parent == installation.images_served
    assert served.read_text() == "kernel"
    assert served.stat().st_mode & 0o777 == 0o644
    assert "inputs" not in image
    assert len(list(installation.images_served.iterdir())) == 3


def test_a_file_that_is_not_what_was_described_is_refused(installation: Installation, guest: Path) -> None:
    (guest / "initrd").write_text("another")
    with pytest.raises(StepFailed, match="initrd of the demo guest is not what"):
        publish_guest(guest, installation)
    (guest / "image.json").unlink()
    with pytest.raises(StepFailed, match=r"no image\.json"):
        publish_guest(guest, installation)

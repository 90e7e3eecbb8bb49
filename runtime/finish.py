"""How a process of Hostler ends."""

from __future__ import annotations

import gc
import logging
import os
import sys
from typing import NoReturn


def finish(exit_code: int) -> NoReturn:
    """End the process with the intended code: Temporal's native threads may abort it in the interpreter's own exit."""
    gc.collect()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            # Nobody reads it any more; the code still tells.
            continue
    os._exit(exit_code)

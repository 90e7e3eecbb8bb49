"""Where Temporal is: said outright, or by a profile of Temporal's own client configuration (`temporal.toml`)."""

from __future__ import annotations

from typing import Any, cast

from temporalio.envconfig import ClientConfig

from model.errors import Permanent
from runtime.settings import Settings


def connect_options(settings: Settings) -> dict[str, Any]:
    """Return what `Client.connect` is told of the server. Errors: Permanent, for a profile that cannot be used.

    A profile wins over address and namespace, and Temporal's own variables (`TEMPORAL_ADDRESS` …) over the profile.
    """
    options: dict[str, Any] = {
        "target_host": settings.temporal_address,
        "namespace": settings.temporal_namespace,
    }
    name = settings.temporal_profile
    if name is None:
        return options
    file = None if settings.temporal_config_file is None else str(settings.temporal_config_file)
    try:
        profile = ClientConfig.load_client_connect_config(name, config_file=file)
    except Exception:
        # Of what kind its errors are nothing is promised; their text may quote the file, which holds keys (S-42).
        raise Permanent(
            f"the Temporal profile {name[:64]!r} cannot be used: look whether {file or 'temporal.toml'} can be read by "
            f"this user, is valid TOML and has [profile.{name[:64]}]"
        ) from None
    return options | cast("dict[str, Any]", profile)

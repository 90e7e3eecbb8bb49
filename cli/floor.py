"""Show or set the least release of a host worker that may act on VMs (H-S5)."""

from __future__ import annotations

from cli.client import Api
from cli.document import documents
from cli.failures import Usage
from cli.options import Json
from cli.output import print_json, say


def floor(version: str | None = None, /, *, none: bool = False, as_json: Json = False) -> None:
    """Show the least release of a host worker that may act on VMs, or set it. Guests of a host below it run on.

    :param version: The least release, such as 1.4.0.
    :param none: Let any release act.
    """
    if version is not None and none:
        raise Usage("--none takes no version")
    with Api() as api:
        if version is None and not none:
            found = api.get("/v1/floor")
        else:
            found = api.call("PUT", "/v1/floor", body={"min_worker_version": version})
    if as_json:
        print_json(found)
        return
    wanted = found.get("min_worker_version")
    say(f"host workers must be {wanted} or newer" if wanted else "host workers may be of any release")
    for host in documents(found, "below"):
        say(f"{host.get('name')} is below it: it runs {host.get('worker_version')}, upgrade it")

"""Show what VMs' host certificates are checked by."""

from __future__ import annotations

import sys

from cli.client import Api
from cli.document import documents
from cli.failures import Unsuccessful
from cli.options import Json
from cli.output import print_json
from model.text import clean_text


def show(*, as_json: Json = False) -> None:
    """Print the SSH CA of VMs' host certificates as lines of a known_hosts file."""
    with Api() as api:
        found = api.get("/v1/ssh-ca")
    if as_json:
        print_json(found)
        return
    if not found.get("host_ca"):
        raise Unsuccessful("the fleet has no SSH CA yet: the API makes it at its start")
    lines = [f"@cert-authority *.{found.get('domain')} {found['host_ca']}"]
    lines += [f"@revoked * {each.get('public_key')}" for each in documents(found, "revoked")]
    sys.stdout.writelines(f"{clean_text(line, 1024)}\n" for line in lines)

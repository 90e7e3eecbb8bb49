"""Foreign text is one line, bounded, without control characters (S-17)."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.text import clean_text


@given(st.one_of(st.text(), st.binary()), st.integers(0, 200))
def test_whatever_comes_in_stays_bounded_and_printable(text: str | bytes, limit: int) -> None:
    """S-17: any text, any limit."""
    cleaned = clean_text(text, limit)
    assert len(cleaned.encode()) <= limit
    assert not any(unicodedata.category(character) in {"Cc", "Cf", "Zl", "Zp", "Cs"} for character in cleaned)


@given(st.text(alphabet=st.characters(categories=("L", "N", "P"), include_characters=" "), max_size=50))
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert clean_text(text) == text


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("a\u00a0b\u3000c", "a\\xa0b\\u3000c"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("user\u202egpj.exe", "user\\u202egpj.exe"),
        ("\x9b2J", "\\x9b2J"),
        ("\ud800", "\\ud800"),
        (b"caf\xc3\xa9\xff", "café\\xff"),
    ],
)
def test_control_characters_are_escaped(text: str | bytes, cleaned: str) -> None:
    """S-17."""
    assert clean_text(text) == cleaned


def test_a_cut_is_marked_and_falls_between_characters() -> None:
    """S-17: 4 KiB by default."""
    cleaned = clean_text("é" * 5000)
    assert cleaned.endswith("…")
    assert 4090 <= len(cleaned.encode()) <= 4096
    assert clean_text("é" * 2048) == "é" * 2048

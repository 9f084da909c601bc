"""Forms and query strings: pairs of texts, encoded. The codecs remember texts, since dashboards send the same ones."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final
from urllib.parse import quote_plus, unquote_plus

_PLAIN: Final = re.compile(r"[A-Za-z0-9_.~-]*")
"""Texts that are encoded as themselves, such as times."""
_SHORT: Final = 1024
"""Characters of a text that is remembered."""
_REMEMBERED: Final = 1024


class TooManyPairs(ValueError):
    """There are more pairs than allowed."""


def decode_pairs(text: str, pairs_max: int) -> tuple[tuple[str, str], ...]:
    """Decode a form or a query string. Pairs without a value count, as in Go.

    Raises:
        TooManyPairs: there are more than `pairs_max`.
        UnicodeDecodeError: a text is not valid UTF-8.
    """
    if not text:
        return ()
    if text.count("&") >= pairs_max:
        raise TooManyPairs
    found = []
    for pair in text.split("&"):
        if pair:
            name, _, value = pair.partition("=")
            found.append((_decoded(name), _decoded(value)))
    return tuple(found)


def encode_pairs(pairs: Iterable[tuple[str, str]]) -> str:
    """Encode pairs as a form or a query string."""
    return "&".join([f"{_encoded(name)}={_encoded(value)}" for name, value in pairs])


def _decoded(text: str) -> str:
    if "%" not in text and "+" not in text:
        return text
    return _decode_remembered(text) if len(text) <= _SHORT else _decode(text)


def _encoded(text: str) -> str:
    if _PLAIN.fullmatch(text):
        return text
    return _encode_remembered(text) if len(text) <= _SHORT else quote_plus(text)


def _decode(text: str) -> str:
    return unquote_plus(text, errors="strict")


_decode_remembered = lru_cache(maxsize=_REMEMBERED)(_decode)
_encode_remembered = lru_cache(maxsize=_REMEMBERED)(quote_plus)

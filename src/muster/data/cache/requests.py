"""Reads the fields of requests, which come from programs of any tenant."""

from __future__ import annotations

from typing import Final

from muster.sdk.data.wire import Message

_LONGEST_KEY: Final = 2048
_LONGEST_VALUE: Final = 64 << 10
_LARGEST_OBJECT: Final = 1 << 50


class BadRequest(Exception):
    """A field is missing or malformed."""


class NotPermitted(Exception):
    """The operation exists only on the control socket, or needs `hello` first."""


def text(message: Message, name: str, default: str | None = None, longest: int = _LONGEST_KEY) -> str:
    """Return a text field. Raises BadRequest."""
    value = message.get(name, default)
    if not isinstance(value, str) or len(value) > longest:
        raise BadRequest(f"{name!r} must be a text of at most {longest} characters")
    return value


def key(message: Message) -> str:
    """Return the field `key`. Raises BadRequest if it is not a plain relative path."""
    found = text(message, "key")
    if (
        not found
        or any(part in ("", ".", "..") for part in found.split("/"))
        or any(ord(letter) < 32 for letter in found)
    ):
        raise BadRequest("'key' must be names separated by single '/', without '..'")
    return found


def number(message: Message, name: str, largest: int = _LARGEST_OBJECT, default: int | None = None) -> int:
    """Return a field that is a whole number from 0 to `largest`. Raises BadRequest."""
    value = message.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= largest:
        raise BadRequest(f"{name!r} must be a whole number from 0 to {largest}")
    return value


def texts(message: Message, name: str) -> dict[str, str]:
    """Return a field that is an object of texts; {} if it is absent. Raises BadRequest, without the values."""
    value = message.get(name) or {}
    if not isinstance(value, dict) or not all(
        isinstance(each, str) and isinstance(held, str) and len(held) <= _LONGEST_VALUE for each, held in value.items()
    ):
        raise BadRequest(f"{name!r} must be an object with texts")
    return value


def numbers(message: Message, name: str, most: int) -> list[int]:
    """Return a field that is a list of at most `most` whole numbers. Raises BadRequest."""
    value = message.get(name, [])
    if not isinstance(value, list) or len(value) > most or not all(isinstance(each, int) for each in value):
        raise BadRequest(f"{name!r} must be a list of at most {most} numbers")
    return value

"""Reads the answer to a query for one number, such as `count(...)`."""

from __future__ import annotations

import msgspec


class Number(msgspec.Struct, frozen=True):
    """A number that the server computed.

    Attributes:
        value: 0 if nothing matched.
        samples: that the server read for it; 0 if it does not say.
    """

    value: int
    samples: int


class _Samples(msgspec.Struct, frozen=True, rename="camel"):
    total_queryable_samples: int = 0


class _Stats(msgspec.Struct, frozen=True):
    samples: _Samples | None = None


class _Result(msgspec.Struct, frozen=True):
    value: tuple[float, str]


class _Data(msgspec.Struct, frozen=True):
    result: list[_Result]
    stats: _Stats | None = None


class _Answer(msgspec.Struct, frozen=True):
    data: _Data


def read_number(body: bytes) -> Number | None:
    """Return the number in the answer to an instant query, None if it is not one."""
    try:
        data = msgspec.json.decode(body, type=_Answer).data
        value = int(float(data.result[0].value[1])) if data.result else 0
    except (msgspec.DecodeError, ValueError, OverflowError):
        return None
    return Number(value, data.stats.samples.total_queryable_samples if data.stats and data.stats.samples else 0)

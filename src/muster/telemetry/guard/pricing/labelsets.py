"""How long the label sets of a selector are in an answer: from some series that the server sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from muster.telemetry.promql.kept import Kept

_LABEL_BYTES: Final = 6
"""Of one label beside its name and value: quotes, colon and comma."""
_HISTOGRAM_BYTES: Final = 16
"""Of the time and brackets around a native histogram."""
_EMPTY_BYTES: Final = 2


class LabelSets(msgspec.Struct, frozen=True):
    """Mean sizes of series.

    Attributes:
        by_label: bytes that each label takes in the answer for one series; less if not all series have it.
        values: mean bytes of the value of each label, among the series that have it.
        histogram_bytes: of a point that is a native histogram, 0 if the series are numbers.
        samples: that one series counts at one instant: more than 1 for native histograms.
    """

    by_label: Mapping[str, float]
    values: Mapping[str, float]
    histogram_bytes: float = 0.0
    samples: float = 1.0

    def bytes_of(self, kept: Kept) -> float:
        """Return the mean bytes of the label set of one series, if these labels remain."""
        if kept.only:
            return _EMPTY_BYTES + sum(self.by_label.get(each, 0.0) for each in kept.labels)
        dropped = sum(self.by_label.get(each, 0.0) for each in kept.labels)
        return _EMPTY_BYTES + sum(self.by_label.values()) - dropped


class _Series(msgspec.Struct, frozen=True):
    metric: dict[str, str]
    histogram: msgspec.Raw = msgspec.Raw()


class _Samples(msgspec.Struct, frozen=True, rename="camel"):
    total_queryable_samples: int = 0


class _Stats(msgspec.Struct, frozen=True):
    samples: _Samples = _Samples()


class _Data(msgspec.Struct, frozen=True):
    result: list[_Series]
    stats: _Stats = _Stats()


class _Answer(msgspec.Struct, frozen=True):
    data: _Data


def read_label_sets(body: bytes, series: int) -> LabelSets | None:
    """Return the sizes of the series in the answer to an instant query. None: the answer has no series.

    Args:
        body: of the answer.
        series: that the query read; the answer has some of them.
    """
    try:
        data = msgspec.json.decode(body, type=_Answer).data
    except msgspec.DecodeError:
        return None
    if not data.result:
        return None
    sets, histograms = [each.metric for each in data.result], [len(bytes(each.histogram)) for each in data.result]
    return _sizes(sets, histograms, max(data.stats.samples.total_queryable_samples / max(series, 1), 1.0))


def _sizes(sets: Sequence[Mapping[str, str]], histograms: Sequence[int], samples: float) -> LabelSets:
    totals: dict[str, int] = {}
    having: dict[str, int] = {}
    for each in sets:
        for label, value in each.items():
            totals[label] = totals.get(label, 0) + len(msgspec.json.encode(value)) - 2
            having[label] = having.get(label, 0) + 1
    names = {label: len(msgspec.json.encode(label)) - 2 + _LABEL_BYTES for label in totals}
    filled = [each for each in histograms if each]
    return LabelSets(
        {label: (total + names[label] * having[label]) / len(sets) for label, total in totals.items()},
        {label: total / having[label] for label, total in totals.items()},
        sum(filled) / len(filled) + _HISTOGRAM_BYTES if len(filled) * 2 > len(sets) else 0.0,
        samples,
    )

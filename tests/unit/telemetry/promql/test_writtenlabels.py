"""Issue 17, A1: how long labels get that an expression writes."""

from __future__ import annotations

import pytest

from muster.telemetry.promql.expression import parse_expression

STORED = 64


def written(text: str) -> int:
    return parse_expression(text).written_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x", 0),
        ("sum by (pod) (rate(x[5m]))", 0),
        ('label_replace(x, "ab", "cdef", "pod", "(.*)")', 2 + 4),
        ('label_replace(x, "a", "$1-$1", "pod", "(.*)")', 1 + 5 + 2 * STORED),
        ('label_join(x, "a", "--", "b", "c")', 1 + 2 * 2 + 2 * STORED),
        ('label_join(label_replace(x, "a", "1234", "", ""), "b", "", "a", "a")', 5 + 1 + 2 * 5),
        ('count_values("ab", x)', 2 + STORED),
        ('sum(label_replace((x), ("a"), "1234", "", ""))[1h:1m]', 5),
        ('label_replace(x, "a", "1", "", "") * on (b) group_left (c) label_replace(y, "c", "12", "", "")', 3),
    ],
)
def test_bytes_of_written_labels(text: str, expected: int) -> None:
    assert written(text) == expected


@pytest.mark.slow
@pytest.mark.parametrize("form", ['label_join({}, "x", "", "x", "x")', 'label_replace({}, "x", "$1$1", "x", "(.*)")'])
def test_labels_that_double_have_a_bound(form: str) -> None:
    text, sizes = "x", []
    for _ in range(100):
        text = form.format(text)
        sizes.append(written(text))
    assert sizes[10] > 2**10 * STORED
    assert sizes[10] < sizes[20] < sizes[99] <= 2**40

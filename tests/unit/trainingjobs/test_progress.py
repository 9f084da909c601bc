"""The pace of writes, and which report counts."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from muster.trainingjobs.executor import merge_patch
from muster.trainingjobs.status.progress import Pacer, ProgressBook


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 0.5)), max_size=60))
def test_writes_are_never_closer_than_a_second_for_a_job_or_more_than_five_a_second(
    wants: list[tuple[str, float]],
) -> None:
    pacer, now, writes = Pacer(), 100.0, []
    for key, pause_s in wants:
        now += pause_s
        now += pacer.want(key, now)
        assert pacer.due(key, now)
        pacer.wrote(key, now)
        writes.append((now, key))
    for key in "abc":
        times = [time for time, whose in writes if whose == key]
        assert all(later - earlier > 0.999 for earlier, later in itertools.pairwise(times))
    assert all(later[0] - earlier[0] > 0.199 for earlier, later in itertools.pairwise(writes))


def test_a_quiet_cluster_writes_at_once() -> None:
    pacer = Pacer()
    assert pacer.want("a", 10.0) == 0
    assert pacer.want("a", 10.0) == 0
    pacer.wrote("a", 10.0)
    assert pacer.want("a", 10.1) > 0.89
    assert not pacer.due("b", 20.0)


def test_a_reserved_moment_is_known_until_something_was_written() -> None:
    pacer = Pacer()
    pacer.want("a", 10.0)
    pacer.wrote("a", 10.0)
    assert pacer.moment("a") is None
    pacer.want("a", 10.5)
    assert pacer.moment("a") == 11.0  # who looks at the job before must come back: an earlier look drops the timer
    pacer.wrote("a", 11.0)
    assert pacer.moment("a") is None


def test_a_smaller_step_is_a_sign_of_life_and_does_not_lower_progress() -> None:
    """Issue 11.3: a program that counts its steps from 1 in each epoch reports, so it is not stalled."""
    book = ProgressBook()
    assert book.report("job", 1, 10, 10, {"loss": 1.0}, 5.0)
    assert book.report("job", 1, 1, 10, {"loss": 0.5}, 6.0)
    newest = book.newest("job", 1)
    assert newest is not None
    assert newest.time is not None
    assert (newest.step, newest.time.timestamp(), newest.metrics) == (10, 6.0, {"loss": 0.5})


def test_reports_of_an_older_attempt_do_not_count() -> None:
    book = ProgressBook()
    assert book.report("job", 1, 10, 100, {"loss": 1.0}, 5.0)
    assert book.report("job", 2, 3, 100, {}, 7.0)
    assert not book.report("job", 1, 11, 100, {}, 8.0)
    newest = book.newest("job", 2)
    assert newest is not None
    assert newest.step == 3
    assert book.newest("job", 3) is None


def test_a_report_of_a_checkpoint_does_not_wipe_what_was_said_before() -> None:
    book = ProgressBook()
    book.report("job", 1, 10, 100, {"loss": 1.0}, 5.0)
    assert book.report("job", 1, 10, None, None, 6.0)
    newest = book.newest("job", 1)
    assert newest is not None
    assert (newest.total_steps, newest.metrics) == (100, {"loss": 1.0})
    assert book.report("job", 1, 11, None, {}, 7.0)  # its loss is not a number any more
    newest = book.newest("job", 1)
    assert newest is not None
    assert newest.metrics == {}


VALUES = st.recursive(
    st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


def applied(target: object, patch: object) -> object:
    """RFC 7386, section 2."""
    if not isinstance(patch, dict):
        return patch
    out = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = applied(out.get(key), value)
    return out


@given(OBJECTS, OBJECTS)
def test_a_merge_patch_leads_from_one_to_the_other(old: dict[str, object], new: dict[str, object]) -> None:
    assert applied(old, merge_patch(old, new)) == new
    assert merge_patch(new, new) == {}

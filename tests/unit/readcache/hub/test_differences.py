from __future__ import annotations

from muster.readcache.hub.differences import differences
from muster.readcache.hub.item import Item


def item(key: str, version: int, uid: str = "") -> Item:
    return Item(key, version, b"", uid=uid or key)


OLD = {each.key: each for each in (item("a", 1), item("b", 2), item("c", 3))}


def test_removals_get_versions_that_no_other_change_has() -> None:
    changes = differences(OLD, [item("d", 10), item("e", 8)], 3, 10)
    assert changes is not None
    assert [change[0] for change in changes] == [6, 7, 8, 9, 10]
    assert [(change[2], change[0]) for change in changes if change[1] != "DELETED"] == [("e", 8), ("d", 10)]


def test_a_recreated_object_is_removed_before_its_new_version() -> None:
    changes = differences({"a": OLD["a"]}, [item("a", 6, "other"), item("b", 5)], 3, 9)
    assert changes is not None
    assert [change[:3] for change in changes] == [(4, "DELETED", "a"), (5, "ADDED", "b"), (6, "ADDED", "a")]


def test_an_object_that_cannot_have_been_removed_before_it_was_recreated_cannot_follow() -> None:
    assert differences(OLD, [item("a", 4, "other"), OLD["b"], OLD["c"]], 3, 9) is None

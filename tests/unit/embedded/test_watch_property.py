"""A watcher that replays events holds, at every version, exactly what a list at that version returns."""

from __future__ import annotations

import dataclasses

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.embedded.objects import Obj
from muster.embedded.store import Store
from muster.embedded.watching import Watcher
from muster.kube.objects.selectors import parse_selector
from muster.readcache.hub.limits import Limits
from muster.readcache.hub.log import Expired
from muster.readcache.hub.selection import ALL, Selection

INDEXES = ("spec.nodeName",)


def describe(obj: Obj) -> dict[str, str]:
    return {"spec.nodeName": obj["spec"].get("nodeName", "")}


changes = st.tuples(
    st.sampled_from(["default", "other"]),
    st.sampled_from(["a", "b", "c", "d"]),
    st.one_of(
        st.none(),  # a delete
        st.fixed_dictionaries({"app": st.sampled_from(["x", "y"]), "node": st.sampled_from(["", "n1", "n2"])}),
    ),
)
selections = st.builds(
    lambda namespace, labels, fields: Selection(namespace, parse_selector(labels), fields, INDEXES),
    st.sampled_from(["", "default"]),
    st.sampled_from(["", "app=x", "app!=x", "!app"]),
    st.sampled_from(
        [
            (),
            (("spec.nodeName", True, "n1"),),
            (("spec.nodeName", False, "n1"),),
            (("spec.nodeName", True, ""),),
            (("metadata.name", True, "a"),),
        ]
    ),
)


@dataclasses.dataclass
class Replay:
    selection: Selection
    watcher: Watcher
    state: dict[str, str]

    def catch_up(self) -> None:
        for line in b"".join(self.watcher.take()).splitlines():
            event = msgspec.json.decode(line)
            meta = event["object"]["metadata"]
            key, version = f"{meta['namespace']}/{meta['name']}", meta["resourceVersion"]
            if event["type"] == "ADDED":
                assert key not in self.state
                self.state[key] = version
            elif event["type"] == "MODIFIED":
                assert key in self.state
                self.state[key] = version
            else:
                del self.state[key]


def listed(store: Store, selection: Selection, version: int) -> dict[str, str]:
    found = store.define("pods").select_at(version, selection)
    return {item.key: str(item.version) for item in found}


def start(store: Store, selection: Selection, version: int) -> Replay:
    """List at a version and watch from there; where that is too old, list again, as an informer does."""
    table = store.define("pods")
    try:
        state, watcher = listed(store, selection, version), Watcher(table.hub, selection, version)
    except Expired:
        assert version < store.version
        version = store.version
        state, watcher = listed(store, selection, version), Watcher(table.hub, selection, version)
    return Replay(selection, watcher, state)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(changes, min_size=1, max_size=60),
    st.lists(st.tuples(selections, st.integers(0, 60), st.integers(0, 60)), max_size=6),
    st.integers(2, 12),
)
def test_replayed_events_are_the_list_at_every_version(
    history: list[tuple[str, str, dict[str, str] | None]],
    watches: list[tuple[Selection, int, int]],
    capacity: int,
) -> None:
    store = Store(limits=Limits(log_events=capacity))
    table = store.define("pods", describe, INDEXES)
    replays: list[Replay] = []
    for index, (namespace, name, content) in enumerate(history):
        replays += [
            start(store, selection, 1 + back) for selection, at, back in watches if at == index and back < store.version
        ]
        key = f"{namespace}/{name}"
        if content is not None:
            meta = {"namespace": namespace, "name": name, "uid": key, "labels": {"app": content["app"]}}
            store.put("pods", key, {"metadata": meta, "spec": {"nodeName": content["node"]}})
        elif key in table.items:
            store.delete("pods", key)
        for replay in replays:
            replay.catch_up()
            assert replay.state == listed(store, replay.selection, store.version)
    assert table.range() == sorted(table.items)
    for node in ("n1", "n2"):
        assert table.indexed("spec.nodeName", node) == sorted(
            key for key, item in table.items.items() if item.fields["spec.nodeName"] == node
        )


@given(st.lists(changes, min_size=1, max_size=40))
@settings(max_examples=100, deadline=None)
def test_a_list_at_an_old_version_is_what_was_there(history: list[tuple[str, str, dict[str, str] | None]]) -> None:
    store = Store()
    table = store.define("pods", describe, INDEXES)
    snapshots = {store.version: {}}
    for namespace, name, content in history:
        key = f"{namespace}/{name}"
        if content is not None:
            meta = {"namespace": namespace, "name": name, "labels": {}}
            store.put("pods", key, {"metadata": meta, "spec": {"nodeName": content["node"]}})
        elif key in table.items:
            store.delete("pods", key)
        snapshots[store.version] = {key: item.version for key, item in table.items.items()}
    for version, expected in snapshots.items():
        found = [(item.key, item.version) for item in table.select_at(version, ALL)]
        assert dict(found) == expected
        assert [key for key, _ in found] == sorted(expected)

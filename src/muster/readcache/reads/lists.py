"""LIST.

Source of the rules: k8s.io/apiserver pkg/storage/cacher (delegator.go, cacher.go GetList, watch_cache.go).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from muster.readcache.hub.item import Item
from muster.readcache.hub.log import Expired
from muster.readcache.hub.selection import NAMESPACE, Selection
from muster.readcache.hub.store import KindStore
from muster.readcache.kinds import CachedKind
from muster.readcache.reads.continuation import INCONSISTENT, Continuation, read_token, write_token
from muster.readcache.reads.freshness import (
    Limits,
    age_headers,
    at_least,
    loaded,
    newest,
    number_error,
    parse_version,
)
from muster.readcache.reads.options import EXACT, ListOptions, check_options, read_options
from muster.readcache.reads.selecting import selection_of
from muster.readcache.reads.sources import Source
from muster.readcache.reads.statuses import bad_request
from muster.readcache.request import Answer, Forward, Target
from muster.readcache.wire.format import ListMeta


async def answer(target: Target, query: Mapping[str, str], source: Source, limits: Limits) -> Answer | Forward:
    """Answers a list. Raises Refusal."""
    options = read_options(query)
    if options is None:
        return Forward("parameter")
    selection = selection_of(target.kind, target.namespace, options.labels, options.fields)
    if selection is None:
        return Forward("selector")
    check_options(options)
    version = parse_version(options.version)
    if options.token:
        return await _continued(options, selection, source, limits)
    if version is None:
        raise bad_request(f"invalid resource version: {number_error(options.version)}")
    legacy_exact = not options.match and options.limit > 0 and version > 0
    if _is_single(target.kind, selection) and (options.match == EXACT or legacy_exact):
        return Forward("one object at a version")
    if options.limit and not target.namespace and any(field == NAMESPACE for field, _, _ in selection.fields):
        return Forward("pages of a namespace by field selector")
    await loaded(source, limits)
    if not options.version:
        return _newest(options, selection, source, await newest(source, limits))
    headers = age_headers(source, limits)
    reached = await at_least(source, version, limits)
    if options.match == EXACT or legacy_exact:
        return _exact(options, selection, source, Continuation("", version), headers)
    return _newest(options, selection, source, reached, headers)


async def _continued(options: ListOptions, selection: Selection, source: Source, limits: Limits) -> Answer | Forward:
    place = read_token(options.token)
    if place is None:
        return Forward("continue token")
    if options.version not in ("", "0"):
        raise bad_request("specifying resource version is not allowed when using continue")
    if options.version and options.limit:
        return Forward("continue with version 0")  # kube-apiserver's cache ignores the limit then, and etcd does not
    await loaded(source, limits)
    if place.version == INCONSISTENT:
        place = Continuation(place.key, await newest(source, limits))
        return _page(options, selection, source, place, source.store.select(selection, after=_after(selection, place)))
    headers = age_headers(source, limits)
    return _exact(options, selection, source, place, headers)


Headers = tuple[tuple[str, str], ...]


def _newest(options: ListOptions, selection: Selection, source: Source, version: int, headers: Headers = ()) -> Answer:
    found = source.store.select(selection)
    return _page(options, selection, source, Continuation("", version), found, headers, newest=True)


def _exact(
    options: ListOptions, selection: Selection, source: Source, place: Continuation, headers: Headers
) -> Answer | Forward:
    if place.version > source.store.version:
        return Forward("between the last event and a later proof")
    try:
        found = source.store.select(selection, after=_after(selection, place), at=place.version)
    except Expired:
        return Forward("older than the log")
    return _page(options, selection, source, place, found, headers)


def _after(selection: Selection, place: Continuation) -> str:
    return f"{selection.namespace}/{place.key}" if place.key and selection.namespace else place.key


def _page(
    options: ListOptions,
    selection: Selection,
    source: Source,
    place: Continuation,
    found: Iterator[Item],
    headers: Headers = (),
    *,
    newest: bool = False,
) -> Answer:
    version = place.version
    limit = 0 if options.version == "0" else options.limit
    if not limit:
        meta, datas = ListMeta(version), (item.data for item in found)
        return Answer(200, source.format.media_type, source.format.listing(datas, meta), headers)
    items = list(itertools.islice(found, limit))
    meta = ListMeta(version)
    if len(items) == limit:
        following = _following(source.kind, selection, source.store, items[-1], version, newest=newest)
        if following:
            key = items[-1].key.removeprefix(f"{selection.namespace}/") if selection.namespace else items[-1].key
            meta = ListMeta(version, write_token(key, version), following if selection.everything else None)
    datas = (item.data for item in items)
    return Answer(200, source.format.media_type, source.format.listing(datas, meta), headers)


def _is_single(kind: CachedKind, selection: Selection) -> bool:
    """Returns whether kube-apiserver reads one key: it needs the namespace for that."""
    return selection.only_name is not None and (not kind.resource.namespaced or bool(selection.only_namespace))


def _following(
    kind: CachedKind, selection: Selection, store: KindStore, last: Item, version: int, *, newest: bool
) -> int:
    """Returns how many objects follow the page: kube-apiserver counts those that the selectors exclude, too.

    It counts what it has read: a single object, the objects of an index (only of the newest state), or a namespace.
    """
    if _is_single(kind, selection):
        return 0
    bucket = selection.bucket
    if newest and bucket is not None and bucket[0] in selection.indexes:
        read = Selection(selection.namespace, fields=((bucket[0], True, bucket[1]),), indexes=selection.indexes)
        return sum(1 for _ in store.select(read, after=last.key))
    return count_at(store, selection.namespace, last.key, version)


def count_at(store: KindStore, namespace: str, after: str, version: int) -> int:
    """Returns the number of objects after a key, in a namespace or in all, at a version that the log reaches.

    Raises:
        Expired: the log does not reach back that far.
    """
    count = store.count(namespace, after)
    if version >= store.version:
        return count
    prefix = f"{namespace}/" if namespace else ""
    for key, before in store.hub.log.changed_since(version).items():
        if key > after and key.startswith(prefix):
            count += (before is not None) - (store.get(key) is not None)
    return count

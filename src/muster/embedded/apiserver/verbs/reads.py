"""GET of one object, LIST and WATCH."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable

import msgspec

from muster.embedded.apiserver.request import Request, Response, json_response
from muster.embedded.apiserver.status import (
    StatusError,
    bad_request,
    expired,
    forbidden_field,
    invalid,
    invalid_object,
    not_found,
    version_too_large,
)
from muster.embedded.apiserver.tables.printers import columns_of
from muster.embedded.apiserver.tables.table import table
from muster.embedded.apiserver.types.registry import ResourceType
from muster.embedded.apiserver.types.strategy import Context
from muster.embedded.apiserver.verbs.finish import Form, PartialView, TableView, accepted, convert, partial, plain_view
from muster.embedded.apiserver.verbs.selection import select
from muster.embedded.apiserver.verbs.watches import Bookmarks, WatchResponse
from muster.embedded.item import Item
from muster.embedded.objects import Obj, encode
from muster.embedded.store import Table
from muster.embedded.watching import JsonView, Watcher, frame
from muster.readcache.hub.event import ADDED
from muster.readcache.hub.log import Expired
from muster.readcache.hub.selection import Selection

DEFAULT_TIMEOUT_S = 1800.0
TOO_OLD_CONTINUE = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)


class Reads:
    """The verbs that read."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def get(self, resource: ResourceType, key: str, name: str, request: Request) -> Response:
        """Answer GET of one object."""
        found = self._table(resource).items.get(key)
        if found is None:
            raise not_found(resource.plural, resource.group, name)
        form = _form(request)
        if not form.name and resource.group != "events.k8s.io":
            return Response(200, found.data)
        return self.render(resource, found.object(), request)

    def render(self, resource: ResourceType, obj: Obj, request: Request, code: int = 200) -> Response:
        """Answer with one object in the requested form."""
        form = _form(request)
        obj = convert(resource, obj)
        if form.name == "Table":
            made = table([obj], columns_of(resource), _include(request), self._context.clock.now())
            made["metadata"] = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
            return json_response(code, made)
        return json_response(code, partial(obj) if form.name == "PartialObjectMetadata" else obj)

    def listing(self, resource: ResourceType, namespace: str, request: Request) -> Response:
        """Answer LIST."""
        form = _form(request)
        selection = self.selection(resource, namespace, request)
        found, meta = self._page(resource, selection, request)
        if form.name == "Table":
            objects = [convert(resource, item.object()) for item in found]
            made = table(objects, columns_of(resource), _include(request), self._context.clock.now())
            made["metadata"] = meta
            return json_response(200, made)
        if form.name:
            body: Obj = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": meta}
            body["items"] = [partial(item.object()) for item in found]
            return json_response(200, body)
        view = plain_view(resource)
        head = b'{"kind":"%s","apiVersion":"%s","metadata":%s,"items":[' % (
            resource.items_kind.encode(),
            resource.api_version.encode(),
            encode(meta),
        )
        return Response(200, head + b",".join([view.encode(item.data) for item in found]) + b"]}")

    def select_items(self, resource: ResourceType, selection: Selection) -> list[Item]:
        """Return the selected objects in key order. For an indexed field, only the index is read."""
        return list(self._table(resource).select(selection))

    def watch(self, resource: ResourceType, namespace: str, request: Request) -> WatchResponse | Response:
        """Open a WATCH."""
        form = _form(request)
        selection = self.selection(resource, namespace, request)
        table = self._table(resource)
        current = self._context.store.version
        text = request.query.get("resourceVersion", "")
        version = _version(text)
        initial = request.query.get("sendInitialEvents")
        self._check_initial(request)
        bookmarks = Bookmarks(resource, form, request.flag("allowWatchBookmarks"))
        view: JsonView = plain_view(resource)
        if form.name == "Table":
            view = TableView(resource, columns_of(resource), _include(request), self._context.clock)
        elif form.name:
            view = PartialView()
        first: list[bytes] = []
        send_state = request.flag("sendInitialEvents") if initial is not None else version == 0
        if send_state:
            if version > current:
                raise version_too_large(version, current)
            first = [frame(ADDED, view.encode(item.data)) for item in table.select(selection)]
            version = current
            if initial is not None and bookmarks.wanted:
                first.append(bookmarks.frame(current, initial_end=True))
        elif version == 0:
            version = current
        try:
            watcher = Watcher(table.hub, selection, version, view)
        except Expired as error:
            status = expired(str(error)).status()
            return Response(200, frame("ERROR", encode(status)), content_type="application/json;stream=watch")
        timeout_s = request.number("timeoutSeconds") or DEFAULT_TIMEOUT_S
        return WatchResponse(watcher, first, self._context.store, bookmarks=bookmarks, timeout_s=float(timeout_s))

    def _page(self, resource: ResourceType, selection: Selection, request: Request) -> tuple[list[Item], Obj]:
        table = self._table(resource)
        current = self._context.store.version
        limit = request.number("limit") or 0
        request.number("timeoutSeconds")
        if "sendInitialEvents" in request.query:
            raise _list_forbidden("sendInitialEvents is forbidden for list", "sendInitialEvents")
        token = request.query.get("continue", "")
        text = request.query.get("resourceVersion", "")
        match = request.query.get("resourceVersionMatch", "")
        try:
            version, after = _version(text), ""
        except StatusError as error:
            raise bad_request(f"invalid resource version: {error}") from None
        exact = match == "Exact"
        if match and match not in ("Exact", "NotOlderThan"):
            raise _list_invalid("resourceVersionMatch", match, 'supported values: "Exact", "NotOlderThan", ""')
        if match and not text:
            raise _list_forbidden("resourceVersionMatch is forbidden unless resourceVersion is provided")
        if exact and version == 0:
            raise _list_forbidden('resourceVersionMatch "exact" is forbidden for resourceVersion "0"')
        if token:
            if text and text != "0":
                raise bad_request("specifying resource version is not allowed when using continue")
            version, after = _decode_continue(token)
            exact = True
        if version > current:
            raise version_too_large(version, current)
        snapshot = version if exact and version else current
        try:
            if snapshot == current:
                source: Iterable[Item] = table.select(selection, after)
            else:
                source = table.select_at(snapshot, selection, after)
            found: list[Item] = []
            more = False
            for item in source:
                if limit and len(found) == limit:
                    more = True
                    break
                found.append(item)
        except Expired as error:
            if not token:
                raise expired(str(error)) from None
            failure = expired(TOO_OLD_CONTINUE)
            raise failure from None
        meta: Obj = {"resourceVersion": str(snapshot)}
        if more:
            meta["continue"] = _encode_continue(snapshot, found[-1].key)
            if selection.everything and snapshot == current:
                meta["remainingItemCount"] = table.count(selection.namespace, found[-1].key)
        return found, meta

    def selection(self, resource: ResourceType, namespace: str, request: Request) -> Selection:
        """Read the request's selectors."""
        query = request.query
        return select(resource, namespace, query.get("labelSelector", ""), query.get("fieldSelector", ""))

    def _table(self, resource: ResourceType) -> Table:
        return self._context.store.define(resource.storage, resource.describe, resource.indexes)

    def _check_initial(self, request: Request) -> None:
        match = request.query.get("resourceVersionMatch", "")
        if request.query.get("sendInitialEvents") is not None:
            if match != "NotOlderThan":
                text = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
                raise _list_forbidden(text, "resourceVersionMatch")
        elif match:
            raise _list_forbidden("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided")


def _list_forbidden(message: str, field: str = "resourceVersionMatch") -> StatusError:
    return invalid_object("ListOptions", "meta.k8s.io", "", [forbidden_field(field, message)])


def _list_invalid(field: str, value: str, message: str) -> StatusError:
    return invalid_object("ListOptions", "meta.k8s.io", "", [invalid(field, value, message)])


def _form(request: Request) -> Form:
    form = accepted(request.headers.get("accept", ""))
    if form is None:
        raise StatusError(
            406,
            "NotAcceptable",
            "only the following media types are accepted: application/json, application/json;stream=watch",
        )
    return form


def _include(request: Request) -> str:
    return request.query.get("includeObject", "") or "Metadata"


def _version(text: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and int(text) < 2**64):
        what = f'strconv.ParseUint: parsing "{text}": invalid syntax'
        raise bad_request(str(invalid("resourceVersion", text, what)))  # kube-apiserver answers a watch with 500
    return int(text)


def _encode_continue(version: int, key: str) -> str:
    token = encode({"v": "meta.k8s.io/v1", "rv": version, "start": key})
    return base64.urlsafe_b64encode(token).rstrip(b"=").decode()


def _decode_continue(token: str) -> tuple[int, str]:
    try:
        found = msgspec.json.decode(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        return int(found["rv"]), str(found["start"])
    except (ValueError, KeyError, TypeError, binascii.Error, msgspec.DecodeError):
        raise bad_request("invalid continue token: continue key is not valid: not of this server") from None

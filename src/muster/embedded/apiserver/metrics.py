"""Counters of the server in the Prometheus text format, with kube-apiserver's names if it has such a metric."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from muster.embedded.apiserver.core import ApiCore
from muster.embedded.apiserver.request import Request
from muster.embedded.apiserver.routes import parse

_VERBS = {"POST": "CREATE", "PUT": "UPDATE", "PATCH": "PATCH", "DELETE": "DELETE"}


class Metrics:
    """Counters of one server."""

    def __init__(self, core: ApiCore) -> None:
        self._core = core
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._in_flight = 0
        self._last_request = core.context.clock.now()

    def started(self, request: Request, *, watch: bool) -> Callable[[int], None]:
        """Count a request. Call the returned function with the status code at its end."""
        route = parse(request.path)
        resource = route.plural if route is not None else ""
        verb = _VERBS.get(request.method, "")
        if not verb:
            verb = "WATCH" if watch else "GET" if route is None or route.name else "LIST"
        self._in_flight += 1
        self._last_request = self._core.context.clock.now()

        def done(code: int) -> None:
            self._in_flight -= 1
            self._requests[(verb, resource, code)] += 1

        return done

    def text(self, controllers_progress: float | None = None) -> bytes:
        """Write everything; `controllers_progress` is when the controllers last looked at their work."""
        lines = ["# TYPE apiserver_request_total counter"]
        for (verb, resource, code), count in sorted(self._requests.items()):
            labels = f'verb="{verb}",resource="{resource}",code="{code}"'
            lines.append(f"apiserver_request_total{{{labels}}} {count}")
        lines += [
            "# TYPE apiserver_current_inflight_requests gauge",
            f"apiserver_current_inflight_requests {self._in_flight}",
        ]
        tables = self._core.store.tables
        lines.append("# TYPE apiserver_longrunning_requests gauge")
        for name, table in tables.items():
            lines.append(f'apiserver_longrunning_requests{{verb="WATCH",resource="{name}"}} {len(table.hub)}')
        lines.append("# TYPE apiserver_storage_objects gauge")
        for name, table in tables.items():
            lines.append(f'apiserver_storage_objects{{resource="{name}"}} {len(table.items)}')
        lines.append("# TYPE muster_embedded_slow_watchers_dropped_total counter")
        for name, table in tables.items():
            lines.append(f'muster_embedded_slow_watchers_dropped_total{{resource="{name}"}} {table.hub.slow}')
        lines += [
            "# TYPE muster_embedded_resource_version gauge",
            f"muster_embedded_resource_version {self._core.store.version}",
            "# TYPE muster_embedded_last_request_timestamp_seconds gauge",
            f"muster_embedded_last_request_timestamp_seconds {self._last_request:.3f}",
        ]
        if controllers_progress is not None:
            lines += [
                "# TYPE muster_embedded_controllers_last_progress_timestamp_seconds gauge",
                f"muster_embedded_controllers_last_progress_timestamp_seconds {controllers_progress:.3f}",
            ]
        return ("\n".join(lines) + "\n").encode()

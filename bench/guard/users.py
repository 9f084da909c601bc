"""Users of Grafana: most look at dashboards of their team, some ask for everything, as Grafana sends it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tests.support.manyseries import HISTOGRAM

ORDINARY: Final = 15
CARELESS: Final = 5
REFRESH_S: Final = 10.0
PAUSE_S: Final = 2.0
RANGE_S: Final = 1800.0
STEP_S: Final = 15.0
_YEAR_S: Final = 365 * 86400.0


@dataclass(frozen=True)
class Request:
    """A request of a panel or a variable.

    Attributes:
        path: of the API.
        params: without times.
        range_s: seconds before the end; 0: an instant query; None: no times at all.
        step_s: step of a range query.
        panel: its identifier.
    """

    path: str
    params: tuple[tuple[str, str], ...]
    range_s: float | None = RANGE_S
    step_s: float | None = None
    panel: int = 0

    def timed(self, end_s: float) -> list[tuple[str, str]]:
        """The parameters for a range that ends then."""
        if self.range_s is None:
            return list(self.params)
        if self.range_s == 0:
            return [*self.params, ("time", f"{end_s:.3f}")]
        times = [("start", f"{end_s - self.range_s:.3f}"), ("end", f"{end_s:.3f}")]
        return [*self.params, *times, *([("step", f"{self.step_s:g}")] if self.step_s else [])]


@dataclass(frozen=True)
class User:
    """A user: what one load of the dashboard asks, and how long until the next.

    Attributes:
        name: as Grafana sends it.
        dashboard: its uid.
        variables: asked first, one after the other.
        panels: asked at once.
        every_s: from the end of one load to the begin of the next.
    """

    name: str
    dashboard: str
    variables: tuple[Request, ...]
    panels: tuple[Request, ...]
    every_s: float
    careless: bool = False

    @property
    def headers(self) -> Mapping[str, str]:
        """What Grafana sends with each request."""
        return {"X-Grafana-User": self.name, "X-Dashboard-Uid": self.dashboard, "User-Agent": "Grafana/11.4.0"}


def query_range(expression: str, panel: int = 0, range_s: float = RANGE_S, step_s: float = STEP_S) -> Request:
    """A panel's range query."""
    return Request("/api/v1/query_range", (("query", expression),), range_s, step_s, panel)


def panels_of(team: int) -> tuple[Request, ...]:
    """The panels of a team's dashboard: a few hundred to a few thousand series each."""
    own = f'namespace="team-{team}"'
    expressions = (
        f'sum by (node) (rate(container_cpu_usage_seconds_total{{{own},container="trainer"}}[5m]))',
        f'sum(container_memory_working_set_bytes{{{own},container="trainer"}})',
        f"sum by (container) (rate(container_network_receive_bytes_total{{{own}}}[5m]))",
        f'histogram_quantile(0.99, sum by (le) (rate({HISTOGRAM}_bucket{{{own},handler="step"}}[5m])))',
        f"sum by (handler) (rate({HISTOGRAM}_count{{{own}}}[5m]))",
        f'topk(5, max by (pod) (container_threads{{{own},container="trainer"}}))',
    )
    return tuple(query_range(each, panel) for panel, each in enumerate(expressions, 1))


def ordinary(number: int) -> User:
    """A user who looks at one of five teams' dashboards, so that some users look at the same."""
    team = number % 5
    match = ("match[]", f'container_threads{{namespace="team-{team}"}}')
    variables = (
        Request("/api/v1/label/namespace/values", (("match[]", 'container_threads{container="trainer"}'),)),
        Request("/api/v1/label/pod/values", (match,)),
    )
    return User(f"user-{number}", f"team-{team}", variables, panels_of(team), REFRESH_S)


def careless() -> dict[str, Request]:
    """What careless users ask for, by name; the first is the query of the outage."""
    everything = ("match[]", '{__name__=~".+"}')
    return {
        "outage": Request("/api/v1/series", (("match[]", '{le!=""}'),), None),
        "count_year": query_range('count by (__name__) ({__name__=~".+"})', 1, _YEAR_S, 3600.0),
        "label_values": Request("/api/v1/label/pod/values", (everything,), None),
        "federate": Request("/federate", (everything,), None),
        "tiny_steps": query_range("sum by (pod) (rate(container_cpu_usage_seconds_total[5m]))", 1, RANGE_S, 1.0),
    }


def crowd() -> list[User]:
    """All users: 15 ordinary and 5 careless ones."""
    users = [ordinary(number) for number in range(ORDINARY)]
    for name, request in careless().items():
        users.append(User(f"careless-{name}".replace("_", "-"), name, (), (request,), PAUSE_S, careless=True))
    return users

"""Free room on nodes in a simulation of the queue: nodes by state, and how many pods of each class fit.

A state is a node class with an amount of free room. Each step of a simulation moves nodes from state to state, so the
results of one step are remembered for all simulations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice

from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.pods.resources import times_fits

Amounts = tuple[int, ...]


class States:
    """All states of nodes in the simulations of one forecast.

    Args:
        wanted: the pod classes that wait; a class is named by its position in this list.
        accepted: for each node class, the positions of the pod classes that may run there.

    Attributes:
        fits: for each state, how many pods of each wanted class fit on one node.
        domain: for each state, the position of its node class.
    """

    def __init__(self, wanted: Sequence[PodClass], accepted: Mapping[int, Iterable[int]]) -> None:
        self._wanted = wanted
        self._resources = sorted({resource for cls in wanted for resource in cls.request})
        self.domains = {number: at for at, number in enumerate(accepted)}
        self._accepted = [frozenset(positions) for positions in accepted.values()]
        self._numbers: dict[tuple[int, Amounts], int] = {}
        self._free: list[Amounts] = []
        self._amounts: list[Amounts] = []
        self._by_class: dict[PodClass, int] = {}
        self._next: dict[tuple[int, int], int] = {}
        self._gains: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {}
        self.fits: list[tuple[int, ...]] = []
        self.domain: list[int] = []

    def of(self, node_class: int, free: Mapping[str, int]) -> int:
        """Return the state of a node with this class and free room."""
        amounts = tuple([free.get(resource, 0) for resource in self._resources])
        return self._number(self.domains[node_class], amounts)

    def request(self, cls: PodClass) -> int:
        """Return the number of the room that a pod of the class takes; `~number` is the room that it returns."""
        known = self._by_class.get(cls)
        if known is None:
            known = self._by_class[cls] = len(self._amounts)
            self._amounts.append(tuple([cls.request.get(resource, 0) for resource in self._resources]))
        return known

    def after(self, state: int, request: int) -> int:
        """Return the state of a node after a pod took (or, for `~request`, returned) its room."""
        known = self._next.get((state, request))
        if known is None:
            sign, taken = (-1, request) if request >= 0 else (1, ~request)
            pairs = zip(self._free[state], self._amounts[taken], strict=True)
            known = self._number(self.domain[state], tuple([free + sign * amount for free, amount in pairs]))
            self._next[state, request] = known
        return known

    def exists(self, state: int) -> bool:
        """Return whether a node can be in that state: it does not give more than it has."""
        return min(self._free[state], default=0) >= 0

    def gains(self, before: int, after: int) -> tuple[tuple[int, int], ...]:
        """Return (wanted class, how many more of its pods fit) for classes for which the two states differ."""
        known = self._gains.get((before, after))
        if known is None:
            pairs = enumerate(zip(self.fits[before], self.fits[after], strict=True))
            known = self._gains[before, after] = tuple([(at, new - old) for at, (old, new) in pairs if new != old])
        return known

    def _number(self, domain: int, amounts: Amounts) -> int:
        known = self._numbers.get((domain, amounts))
        if known is None:
            known = self._numbers[domain, amounts] = len(self._free)
            self._free.append(amounts)
            free = dict(zip(self._resources, amounts, strict=True))
            self.domain.append(domain)
            self.fits.append(
                tuple([
                    _fits(cls, free) if at in self._accepted[domain] else 0 for at, cls in enumerate(self._wanted)
                ])
            )  # fmt: skip
        return known


def _fits(cls: PodClass, free: Mapping[str, int]) -> int:
    times = times_fits(cls.request, free)
    return min(times, 1) if cls.alone else times


class Board:
    """The nodes of one simulation, by state.

    Attributes:
        state: the state of each node, by its number.
        room: for each wanted class, how many pods fit on all nodes together, by node class.
        total: the sums of `room`.
    """

    __slots__ = ("_members", "_states", "room", "state", "total")

    def __init__(self, states: States, state: Sequence[int], wanted: int) -> None:
        self._states = states
        self.state = dict(enumerate(state))
        self._members: dict[int, set[int]] = {}
        self.room = [[0] * len(states.domains) for _ in range(wanted)]
        for node, number in enumerate(state):
            self._members.setdefault(number, set()).add(node)
        for number, nodes in self._members.items():
            for at, fits in enumerate(states.fits[number]):
                self.room[at][states.domain[number]] += fits * len(nodes)
        self.total = [sum(each) for each in self.room]

    def copy(self) -> Board:
        """Return an independent copy."""
        other = Board.__new__(Board)
        other._states = self._states
        other.state = self.state.copy()
        other._members = {number: nodes.copy() for number, nodes in self._members.items()}
        other.room = [each.copy() for each in self.room]
        other.total = self.total.copy()
        return other

    def open_room(self, wanted: int, closed: int) -> int:
        """Return how many pods of the class fit, without the node classes in the bit set `closed`."""
        if not closed:
            return self.total[wanted]
        return sum(count for domain, count in enumerate(self.room[wanted]) if not closed >> domain & 1)

    def move(self, nodes: Sequence[int], request: int) -> None:
        """Take (or, for `~request`, return) the room of one pod on each of these nodes, which may repeat."""
        state = self.state
        befores = {state[node] for node in nodes}
        if len(befores) == 1:
            alike = set(nodes)
            if len(alike) == len(nodes):
                self._shift(befores.pop(), alike, request)
                return
        for node in nodes:
            self._shift(state[node], (node,), request)

    def _shift(self, before: int, nodes: Collection[int], request: int) -> None:
        """Move nodes of one state to the next state."""
        states = self._states
        after = states.after(before, request)
        if after == before:
            return
        here = self._members[before]
        here.difference_update(nodes)
        if not here:
            del self._members[before]
        there = self._members.get(after)
        if there is None:
            self._members[after] = set(nodes)
        else:
            there.update(nodes)
        self.state.update(dict.fromkeys(nodes, after))
        for wanted, gain in states.gains(before, after):
            gain *= len(nodes)
            self.room[wanted][states.domain[before]] += gain
            self.total[wanted] += gain

    def has_room(self, node: int, request: int) -> bool:
        """Return whether the room that a request takes is free on the node."""
        return self._states.exists(self._states.after(self.state[node], request))

    def nodes_for(self, wanted: int, count: int, closed: int, freer: Board | None = None) -> list[int]:
        """Return nodes for `count` pods, one entry for each pod; fewer entries if not all fit.

        Nodes with the least room come first, so that other nodes stay whole. With `freer`, the nodes that also have
        room on that board come before all others.
        """
        fits, domain = self._states.fits, self._states.domain
        offers = [
            (fits[number][wanted], number)
            for number in self._members
            if fits[number][wanted] and not closed >> domain[number] & 1
        ]
        offers.sort()
        chosen: list[int] = []
        later: list[tuple[int, int]] = []
        for times, number in offers:
            if freer is None and times == 1:
                chosen.extend(islice(self._members[number], count - len(chosen)))
                if len(chosen) == count:
                    return chosen
                continue
            for node in self._members[number]:
                if freer is not None and not fits[freer.state[node]][wanted]:
                    later.append((node, times))
                    continue
                chosen.extend([node] * min(times, count - len(chosen)))
                if len(chosen) == count:
                    return chosen
        for node, times in later:
            chosen.extend([node] * min(times, count - len(chosen)))
            if len(chosen) == count:
                break
        return chosen

"""The check `reach`: opens TCP connections to the agents of a few other nodes; the controller decides who is at fault.

Choice of nodes: fleet/health/peers.py. A node that refuses the connection is reached, because its kernel answered.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec

from muster.agent.aside import Aside
from muster.agent.check import Cost, Setup
from muster.agent.checks.sights import Findings, Seen, Sight
from muster.fleet.health.finding import Finding
from muster.fleet.health.peers import UNREACHED, Member, choose
from muster.kube.addresses import is_address

NAME: Final = "reach"
PERIOD_S: Final = 15.0
TIMEOUT_S: Final = 12.0
_CONNECT_S: Final = 4.0
"""Longer than TCP's first two retransmissions of a lost packet, after 1 and 3 s."""
_TRIES: Final = 2
_LOOKS: Final = 2
CONFIRM_S: Final = 60.0
"""The interval at which an unreached peer is reported again. The controller counts a report against a node only if it
is newer than the node's last sign of life (`fleet/remediation/evidence/dead_nodes.py`)."""
_FILE_BYTES_MAX: Final = 8 << 20

CODES: Final = frozenset({(NAME, UNREACHED), (NAME, "no-peers")})


class Options(msgspec.Struct, frozen=True, rename="camel"):
    """Settings of the check.

    Attributes:
        members_file: all nodes as JSON, `[{"name": ..., "address": ..., "domains": [ZONE, SWITCH]}]`, read again when
            it changes. Without it, no peers are probed.
        port: of the agents.
    """

    members_file: str = ""
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 9446


class Peers:
    """The peers of one node, from a file. If the file is missing or invalid, the last valid peers stay.

    Peers without an IP address are not probed: names are not resolved, and a wrong address is not evidence.
    """

    def __init__(self, node: str, file: Path) -> None:
        self._node, self._file = node, file
        self._read: tuple[int, int, int] | None = None
        self.last: tuple[Member, ...] = ()
        """The peers of the last call of `now`."""
        self.members = 0
        """The number of nodes in the file."""
        self.problem = "not read yet"
        """Why the file is not valid; "" if it is."""

    def now(self) -> tuple[Member, ...]:
        """Return the peers of the node."""
        try:
            stat = self._file.stat()
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if seen != self._read:
                self.last, self.problem = self._of_file(), ""
                self._read = seen
        except (OSError, ValueError) as error:
            self.problem = f"{self._file}: {error}"
        return self.last

    def _of_file(self) -> tuple[Member, ...]:
        with self._file.open("rb") as file:
            members = msgspec.json.decode(file.read(_FILE_BYTES_MAX), type=list[Member])
        self.members = len(members)
        by_name = {member.name: member for member in reversed(members)}
        chosen = choose(members, only=self._node).get(self._node, ())
        return tuple(by_name[name] for name in chosen if is_address(by_name[name].address))


class ReachCheck:
    """Probes a few other nodes."""

    name = NAME
    cost: Cost = "cheap"  # it mostly waits, and must not delay other checks

    def __init__(self, setup: Setup, options: Options) -> None:
        self.period_s = setup.period_s or PERIOD_S
        self.timeout_s = setup.timeout_s or TIMEOUT_S
        self._port = options.port
        self._peers = Peers(setup.node, Path(options.members_file))
        self._findings = Findings(NAME, self.period_s)
        self._aside = Aside(NAME)

    async def look(self, now_s: float) -> Sequence[Finding]:
        """Probe all peers concurrently."""
        peers = await self._aside.run(self._peers.now)
        answers = await asyncio.gather(*(reach(peer.address, self._port) for peer in peers))
        states = [
            Sight(NAME, peer.name, UNREACHED, f"{peer.address}: {why}", looks=_LOOKS, refresh_s=CONFIRM_S)
            for peer, why in zip(peers, answers, strict=True) if why
        ]  # fmt: skip
        if self._peers.problem:
            states.append(Sight(NAME, "", "no-peers", self._peers.problem, looks=_LOOKS))
        return self._findings.take(Seen(states=tuple(states)), now_s)


async def reach(address: str, port: int) -> str:
    """Return why an IP address cannot be reached after two attempts; "" if it answers."""
    why = ""
    for _ in range(_TRIES):
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, writer = await asyncio.open_connection(address, port)
        except ConnectionRefusedError:
            return ""
        except TimeoutError:
            why = f"no answer within {_CONNECT_S:g} s"
        except OSError as error:
            why = str(error)
        else:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            return ""
    return why


def make(setup: Setup) -> ReachCheck | None:
    """Create the check if the list of nodes is configured.

    Raises:
        ValueError: a setting is wrong.
    """
    options = setup.options_as(Options)
    return ReachCheck(setup, options) if options.members_file else None

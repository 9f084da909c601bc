"""Users in a header, which only configured peers may name."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from multidict import CIMultiDict, CIMultiDictProxy

from muster.telemetry.guard.callers.caller import Caller, NotIdentified
from muster.telemetry.guard.callers.config import PeerConfig

Headers = CIMultiDictProxy[str] | CIMultiDict[str]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_USER_MAX: Final = 256
"""Characters of a user's name. Grafana's logins have at most 190."""


class Peers:
    """The configured peers.

    Args:
        peers: the section `callers.peers`, which `problems` has checked.
    """

    def __init__(self, peers: Sequence[PeerConfig]) -> None:
        self._peers = [(peer, tuple(network_of(each) for each in peer.addresses)) for peer in peers]
        self._headers = {peer.user_header.lower(): peer.user_header for peer in peers}

    def caller(self, address: str, known: Caller | None, headers: Headers) -> Caller | None:
        """Return the caller that a peer's header names.

        Args:
            address: of the other end of the connection.
            known: the caller that the credentials prove; None without credentials.
            headers: of the request.

        Returns:
            `known`, if no peer's header is there. A peer that has no credentials is then a caller itself.

        Raises:
            NotIdentified: the header is from another program, or the name is not valid.
        """
        for peer, networks in self._peers:
            if not _is_peer(peer, networks, address, known):
                continue
            names = headers.getall(peer.user_header, [])
            if len(names) > 1:
                raise NotIdentified(403, "repeated_header", f"{peer.user_header} is there twice; send it once")
            user = names[0].strip() if names else ""
            self._refuse_others(headers, peer.user_header)
            if not user:
                return known or Caller(peer.name, "header", peer.group, peer.name, peer.tenant)
            return Caller(f"{peer.name}/{_printable(user)}", "header", peer.group, f"{peer.name}/*", peer.tenant)
        self._refuse_others(headers, "")
        return known

    def _refuse_others(self, headers: Headers, but: str) -> None:
        """Refuse headers that name a user but are not this peer's: a forged name must not look accepted."""
        for lower, name in self._headers.items():
            if lower != but.lower() and name in headers:
                message = f"{name} is only accepted from the programs in callers.peers; remove this header"
                raise NotIdentified(403, "forged_header", message)


def network_of(text: str) -> Network:
    """Return a network, or an address as a network of one. Raises ValueError."""
    return ipaddress.ip_network(text)


def _is_peer(peer: PeerConfig, networks: Sequence[Network], address: str, known: Caller | None) -> bool:
    if peer.caller and (known is None or known.name != peer.caller):
        return False
    return not networks or _within(address, networks)


def _within(address: str, networks: Sequence[Network]) -> bool:
    found = _parsed(address)
    return found is not None and any(found in network for network in networks)


@lru_cache(maxsize=4096)
def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address of a peer; None for a Unix socket."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


def _printable(user: str) -> str:
    """Return a name that can be logged; unequal names stay unequal. Raises NotIdentified if it is too long."""
    if len(user) > _USER_MAX:
        raise NotIdentified(403, "long_header", f"the user's name is longer than {_USER_MAX} characters")
    if user.isascii() and user.isprintable() and "\\" not in user:
        return user
    return user.replace("\\", "\\\\").encode("ascii", "backslashreplace").decode().translate(_CONTROL)


_CONTROL: Final = {code: f"\\x{code:02x}" for code in (*range(32), 127)}

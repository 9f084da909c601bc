"""SNAT of pods to the node's address, in nftables tables of its own (wiki.nftables.org, "Performing NAT").

A rule matches the name of the pod's host interface, so ADD and DEL do not change it, and it works while the agent is
away. Connections that exist keep their translation when the rule is replaced.
"""

from __future__ import annotations

import ipaddress
import os
import re
import subprocess
from collections.abc import Sequence
from typing import Final

from muster.network.cni.names import PREFIX

TABLE: Final = "muster_pods"
_FAMILIES: Final = {4: "ip", 6: "ip6"}
_NEVER: Final = {4: ("224.0.0.0/4", "169.254.0.0/16"), 6: ("ff00::/8", "fe80::/10")}
"""Multicast and link-local addresses: they do not leave the link."""
_KERNEL: Final = (5, 7)
"""The first kernel that knows the incoming interface after routing."""
_TIMEOUT_S: Final = 30.0


def rules(internal: Sequence[str]) -> str:
    """Return the commands for `nft` that put the tables in place of older ones, in one step."""
    text = []
    for version, family in _FAMILIES.items():
        kept = [each for each in internal if ipaddress.ip_network(each).version == version]
        collapsed = ipaddress.collapse_addresses(map(ipaddress.ip_network, (*kept, *_NEVER[version])))  # type: ignore[type-var]
        elements = ", ".join(map(str, collapsed))
        text.append(
            f"""
table {family} {TABLE} {{}}
delete table {family} {TABLE}
table {family} {TABLE} {{
  set internal {{
    type ipv{version}_addr
    flags interval
    elements = {{ {elements} }}
  }}
  chain postrouting {{
    type nat hook postrouting priority srcnat; policy accept;
    iifname "{PREFIX}*" oifname != "{PREFIX}*" {family} daddr != @internal masquerade fully-random
  }}
}}"""
        )
    return "\n".join(text) + "\n"


def apply(internal: Sequence[str]) -> None:
    """Put the tables in place.

    Raises:
        OSError: `nft` is missing or failed, or the kernel is too old.
    """
    numbers = tuple(int(each) for each in re.findall(r"\d+", os.uname().release)[:2])
    if numbers < _KERNEL:
        raise OSError(
            f"kernel {os.uname().release} cannot masquerade pods, 5.7 can; set pods.masquerade.enabled to false and"
            " masquerade by other means"
        )
    _change(rules(internal))


def remove() -> None:
    """Remove the tables. It is not an error if they are gone. Raises OSError."""
    _change("".join(f"table {family} {TABLE} {{}}\ndelete table {family} {TABLE}\n" for family in _FAMILIES.values()))


def is_applied() -> bool:
    """Return whether both tables exist. Raises OSError if `nft` is missing or hangs."""
    shown = (_nft("list", "chain", family, TABLE, "postrouting") for family in _FAMILIES.values())
    return all(done.returncode == 0 for done in shown)


def _change(commands: str) -> None:
    done = _nft("-f", "-", input=commands)
    if done.returncode != 0:
        raise OSError(f"nft refused the table {TABLE}: {done.stderr.strip()}")


def _nft(*arguments: str, input: str = "") -> subprocess.CompletedProcess[str]:
    command = ["nft", *arguments]
    try:
        return subprocess.run(command, input=input, text=True, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"nft did not end within {_TIMEOUT_S:g} s") from None

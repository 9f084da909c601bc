"""The plugin's configuration, as the runtime passes it on stdin."""

from __future__ import annotations

import ipaddress
from enum import StrEnum
from typing import Any, Final

import msgspec

from muster.network.addresses.attachment import AttachmentKey
from muster.network.cni.errors import CniError, Code

MTU_MIN: Final = 1280  # RFC 8200, section 5: with less, IPv6 is off
MTU_MAX: Final = 65535
NAME_MAX: Final = 253
"""Longest name of a network. It is a file's name in most runtimes."""
ROUTES_MAX: Final = 256
"""All routes of a pod are one message to the kernel."""


class Mode(StrEnum):
    """How a pod is connected."""

    VETH = "veth"
    MACVLAN = "macvlan"
    IPVLAN = "ipvlan"
    CHAINED = "chained"
    """Another plugin before this one made the interface. Only its MTU is set, where one is given."""


class ValidAttachment(msgspec.Struct, frozen=True):
    """An attachment that GC keeps."""

    container_id: str = msgspec.field(name="containerID")
    ifname: str


class NetConf(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The fields that Muster reads. Runtimes add others, so unknown ones are ignored.

    Attributes:
        cni_version: version of the specification in which the answer is written.
        name: name of the network.
        mode: how pods are connected.
        master: for macvlan and ipvlan: the node's interface below. Empty: the one towards the default gateway.
        mtu: bytes; 0: that of the interface towards the default gateway.
        routes: CIDRs to which the pod gets routes, each once and as the kernel writes them; empty: everything.
        dns: is part of the result.
        prev_result: the result of the plugins before this one, or for CHECK and DEL of the whole ADD.
        valid_attachments: for GC, by the key of the specification.
        attachments: for GC, by the key of an earlier text of the specification that libcni sends as well.
    """

    cni_version: str = ""
    name: str = ""
    mode: Mode = Mode.VETH
    master: str = ""
    mtu: int = 0
    routes: tuple[str, ...] = ()
    dns: dict[str, Any] = {}
    prev_result: msgspec.Raw = msgspec.Raw(b"null")
    valid_attachments: tuple[ValidAttachment, ...] | msgspec.UnsetType | None = msgspec.field(
        name="cni.dev/valid-attachments", default=msgspec.UNSET
    )
    attachments: tuple[ValidAttachment, ...] | msgspec.UnsetType | None = msgspec.field(
        name="cni.dev/attachments", default=msgspec.UNSET
    )

    def valid(self) -> frozenset[AttachmentKey] | None:
        """Return the attachments that GC keeps, of both keys. None if there is neither key; null is an empty list."""
        lists = [each for each in (self.valid_attachments, self.attachments) if each is not msgspec.UNSET]
        if not lists:
            return None
        return frozenset(AttachmentKey(each.container_id, each.ifname) for found in lists for each in found or ())


def parse_netconf(text: str) -> NetConf:
    """Read the configuration.

    Raises:
        CniError: code 6 if it is not JSON, 7 if a field has a wrong value.
    """
    try:
        conf = msgspec.json.decode(text, type=NetConf)
    except msgspec.ValidationError as error:
        raise CniError(Code.INVALID_CONFIG, "the plugin's configuration has a wrong field", str(error)) from None
    except msgspec.DecodeError as error:
        raise CniError(Code.DECODING_FAILURE, "the plugin's configuration is not JSON", str(error)) from None
    except RecursionError:
        raise CniError(Code.DECODING_FAILURE, "the plugin's configuration is nested too deeply") from None
    if not conf.name:
        raise CniError(Code.INVALID_CONFIG, "the network has no name; set `name`")
    if len(conf.name) > NAME_MAX:
        raise CniError(Code.INVALID_CONFIG, f"the network's name has more than {NAME_MAX} characters; shorten `name`")
    if len(conf.routes) > ROUTES_MAX:
        raise CniError(Code.INVALID_CONFIG, f"there are more than {ROUTES_MAX} routes; combine them")
    try:
        routes = dict.fromkeys(str(ipaddress.ip_network(each)) for each in conf.routes)
    except ValueError as error:
        raise CniError(Code.INVALID_CONFIG, "a route is not a CIDR", str(error)) from None
    if conf.mtu and not MTU_MIN <= conf.mtu <= MTU_MAX:
        raise CniError(Code.INVALID_CONFIG, f"mtu {conf.mtu} is not between {MTU_MIN} and {MTU_MAX}, nor 0")
    return msgspec.structs.replace(conf, routes=tuple(routes))

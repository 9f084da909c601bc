"""Results of ADD, in the version of the request (CNI specification, section "Success")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from muster.network.addresses.attachment import Address
from muster.network.cni.errors import CniError, Code
from muster.network.cni.interfaces.wanted import Made, Wanted
from muster.network.cni.netconf import NetConf

_Result = dict[str, Any]


class _Lists(msgspec.Struct):
    """The lists of a result to which ADD appends."""

    interfaces: list[_Result] | None = None
    ips: list[_Result] | None = None
    routes: list[_Result] | None = None


def prev_result(conf: NetConf) -> _Result | None:
    """Return the result of the plugins before this one; None if there is none.

    Raises:
        CniError: code 6.
    """
    if bytes(conf.prev_result) == b"null":
        return None
    try:
        msgspec.json.decode(conf.prev_result, type=_Lists)
        return msgspec.json.decode(conf.prev_result, type=_Result)
    except msgspec.DecodeError as error:
        raise CniError(Code.DECODING_FAILURE, "prevResult is not a result of CNI", str(error)) from None
    except RecursionError:
        raise CniError(Code.DECODING_FAILURE, "prevResult is nested too deeply") from None


def result_of(conf: NetConf, wanted: Wanted, made: Made, netns: str) -> _Result:
    """Return the result of ADD: what the plugins before gave, and this interface."""
    before = prev_result(conf) or {}
    interfaces: list[_Result] = list(before.get("interfaces") or ())
    if made.host_interface:
        interfaces.append({"name": made.host_interface, "mac": made.host_mac})
    interfaces.append({"name": wanted.key.ifname, "mac": made.mac, "sandbox": netns})
    if conf.cni_version == "1.1.0":
        for each in interfaces[len(before.get("interfaces") or ()) :]:
            each["mtu"] = wanted.mtu
    place = len(interfaces) - 1
    pairs = list(zip(wanted.addresses, made.gateways, strict=True))
    result: _Result = {
        **before,
        "cniVersion": conf.cni_version,
        "interfaces": interfaces,
        "ips": [*(before.get("ips") or ()), *(_ip(conf, each, gateway, place) for each, gateway in pairs)],
        "routes": [*(before.get("routes") or ()), *_routes(wanted, pairs)],
    }
    result.setdefault("dns", conf.dns)
    return result


def _ip(conf: NetConf, address: Address, gateway: str, place: int) -> _Result:
    ip: _Result = {"address": f"{address.ip}/{address.prefix}", "interface": place}
    if gateway:
        ip["gateway"] = gateway
    if conf.cni_version == "0.4.0":
        ip["version"] = "6" if ":" in address.ip else "4"
    return ip


def _routes(wanted: Wanted, pairs: Sequence[tuple[Address, str]]) -> list[_Result]:
    return [
        {"dst": destination, "gw": gateway} if gateway else {"dst": destination}
        for address, gateway in pairs
        for destination in wanted.routes_of(address)
    ]


def addresses_in(result: _Result) -> set[str]:
    """Return the addresses of a result, without their prefixes."""
    return {str(each.get("address", "")).partition("/")[0] for each in result.get("ips") or ()}

"""A server that speaks EC2's API for addresses of network interfaces, and the instance metadata service.

moto has no prefixes, limits of types, fragmented subnets, throttling or lagging views. boto3 reads these answers as it
reads EC2's: query protocol in, XML out (Amazon EC2 API Reference).
"""

from __future__ import annotations

import http.server
import ipaddress
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

_NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"


class Refusal(Exception):
    """An error answer: HTTP status, code, message."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code, self.message, self.status = code, message, status


@dataclass
class Interface:
    primary: str
    prefixes: list[str] = field(default_factory=list)
    singles: list[str] = field(default_factory=list)
    six: list[str] = field(default_factory=list)


class Ec2Network(http.server.ThreadingHTTPServer):
    """One subnet, any number of interfaces, and metadata of one machine.

    Attributes:
        subnet: its addresses.
        slots: addresses per interface of the instance type, with the primary one.
        taken: single addresses that others use.
        throttled: how many of the next calls are refused.
        hidden: whether views show the state before the last change.
        lose_answer: the next change takes effect, but its answer does not arrive.
        calls: the operations, in order.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, subnet: str = "10.0.0.0/24", slots: int = 5) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.subnet = ipaddress.IPv4Network(subnet)
        self.slots = slots
        self.lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Begin again with one interface in an empty subnet."""
        self.interfaces = {"eni-1": Interface(str(self.subnet[4]))}
        self.taken: set[str] = {str(self.subnet[number]) for number in range(4)}
        self.throttled = 0
        self.denied = False
        self.hidden = False
        self.lose_answer = False
        self.calls: list[str] = []
        self._before = ""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def used(self) -> set[str]:
        """All addresses of the subnet that cannot be assigned."""
        out = set(self.taken)
        for each in self.interfaces.values():
            out |= {each.primary, *each.singles}
            out |= {str(ip) for prefix in each.prefixes for ip in ipaddress.IPv4Network(prefix)}
        return out

    def answer(self, action: str, one: dict[str, str], lists: dict[str, list[str]]) -> str:
        self.calls.append(action)
        if self.throttled > 0:
            self.throttled -= 1
            raise Refusal("RequestLimitExceeded", "Request limit exceeded.", 503)
        if self.denied:
            raise Refusal("UnauthorizedOperation", "You are not authorized to perform this operation.", 403)
        match action:
            case "DescribeNetworkInterfaces":
                text = self._described(lists["NetworkInterfaceId"][0])
                return self._before if self.hidden and self._before else text
            case "DescribeInstanceTypes":
                info = f"<ipv4AddressesPerInterface>{self.slots}</ipv4AddressesPerInterface>"
                info += f"<ipv6AddressesPerInterface>{self.slots}</ipv6AddressesPerInterface>"
                kind = lists["InstanceType"][0]
                item = f"<item><instanceType>{kind}</instanceType><networkInfo>{info}</networkInfo></item>"
                return f"<instanceTypeSet>{item}</instanceTypeSet>"
        name = one["NetworkInterfaceId"]
        before = self._described(name)
        text = self._change(action, self.interfaces[name], name, one, lists)
        self._before = before
        return text

    def _change(
        self, action: str, interface: Interface, name: str, one: dict[str, str], lists: dict[str, list[str]]
    ) -> str:
        match action:
            case "AssignPrivateIpAddresses":
                prefixes = self._prefixes(interface, int(one.get("Ipv4PrefixCount", 0)))
                singles = self._singles(interface, int(one.get("SecondaryPrivateIpAddressCount", 0)))
                four = "".join(f"<item><ipv4Prefix>{each}</ipv4Prefix></item>" for each in prefixes)
                lone = "".join(f"<item><privateIpAddress>{each}</privateIpAddress></item>" for each in singles)
                return (
                    f"<networkInterfaceId>{name}</networkInterfaceId>"
                    f"<assignedIpv4PrefixSet>{four}</assignedIpv4PrefixSet>"
                    f"<assignedPrivateIpAddressesSet>{lone}</assignedPrivateIpAddressesSet><return>true</return>"
                )
            case "UnassignPrivateIpAddresses":
                _remove(interface.prefixes, lists.get("Ipv4Prefix", []), name)
                _remove(interface.singles, lists.get("PrivateIpAddress", []), name)
                return "<return>true</return>"
            case "AssignIpv6Addresses":
                prefix = f"2600:1f18::{len(interface.six) + 1:x}:0:0:0/80"
                interface.six.append(str(ipaddress.IPv6Network(prefix)))
                item = f"<item>{interface.six[-1]}</item>"
                given = f"<assignedIpv6PrefixSet>{item}</assignedIpv6PrefixSet>"
                return f"<networkInterfaceId>{name}</networkInterfaceId>{given}"
            case "UnassignIpv6Addresses":
                _remove(interface.six, lists.get("Ipv6Prefix", []), name)
                return f"<networkInterfaceId>{name}</networkInterfaceId>"
        raise Refusal("InvalidAction", f"The action {action} is not valid for this web service.")

    def _room(self, interface: Interface, count: int) -> None:
        if 1 + len(interface.prefixes) + len(interface.singles) + count > self.slots:
            raise Refusal("PrivateIpAddressLimitExceeded", "Number of private addresses will exceed limit.")

    def _prefixes(self, interface: Interface, count: int) -> list[str]:
        self._room(interface, count)
        used = self.used()
        free = [each for each in self.subnet.subnets(new_prefix=28) if not used & {str(ip) for ip in each}]
        if len(free) < count:
            raise Refusal(
                "InsufficientCidrBlocks",
                "The specified subnet does not have enough free cidr blocks to satisfy the request.",
            )
        given = [str(each) for each in free[:count]]
        interface.prefixes += given
        return given

    def _singles(self, interface: Interface, count: int) -> list[str]:
        self._room(interface, count)
        used = self.used()
        free = [str(each) for each in self.subnet if str(each) not in used]
        if len(free) < count:
            raise Refusal("InvalidParameterValue", "There aren't sufficient free Ipv4 addresses or prefixes")
        interface.singles += free[:count]
        return free[:count]

    def _described(self, name: str) -> str:
        if name not in self.interfaces:
            raise Refusal("InvalidNetworkInterfaceID.NotFound", f"The networkInterface ID '{name}' does not exist")
        found = self.interfaces[name]
        addresses = [(found.primary, "true"), *((each, "false") for each in found.singles)]
        lone = "".join(
            f"<item><privateIpAddress>{each}</privateIpAddress><primary>{primary}</primary></item>"
            for each, primary in addresses
        )
        four = "".join(f"<item><ipv4Prefix>{each}</ipv4Prefix></item>" for each in found.prefixes)
        six = "".join(f"<item><ipv6Prefix>{each}</ipv6Prefix></item>" for each in found.six)
        return (
            f"<networkInterfaceSet><item><networkInterfaceId>{name}</networkInterfaceId>"
            f"<privateIpAddressesSet>{lone}</privateIpAddressesSet><ipv4PrefixSet>{four}</ipv4PrefixSet>"
            f"<ipv6PrefixSet>{six}</ipv6PrefixSet></item></networkInterfaceSet>"
        )


def _remove(held: list[str], given: list[str], name: str) -> None:
    if set(given) - set(held):
        raise Refusal("InvalidParameterValue", f"Some of {given} are not assigned to interface {name}")
    held[:] = [each for each in held if each not in given]


_TOKEN = "token-of-this-instance"
_METADATA = {
    "mac": "02:00:00:00:00:01",
    "network/interfaces/macs/02:00:00:00:00:01/interface-id": "eni-1",
    "instance-type": "p5.48xlarge",
    "placement/region": "us-east-1",
}


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Ec2Network
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        one = {key: values[0] for key, values in form.items() if "." not in key}
        lists: dict[str, list[str]] = {}
        for key, values in form.items():
            if "." in key:
                lists.setdefault(key.partition(".")[0], []).extend(values)
        action = one["Action"]
        with self.server.lock:
            try:
                text = self.server.answer(action, one, lists)
            except Refusal as error:
                what = f"<Code>{error.code}</Code><Message>{escape(error.message)}</Message>"
                self._send(
                    error.status, f"<Response><Errors><Error>{what}</Error></Errors><RequestID>r</RequestID></Response>"
                )
                return
            lost = self.server.lose_answer and "ssign" in action
            if lost:
                self.server.lose_answer = False
        if lost:
            self.close_connection = True
            return
        self._send(200, f'<{action}Response xmlns="{_NAMESPACE}"><requestId>r</requestId>{text}</{action}Response>')

    def do_PUT(self) -> None:
        known = self.path == "/latest/api/token" and self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
        self._send(200 if known else 404, _TOKEN if known else "")

    def do_GET(self) -> None:
        if self.headers["X-aws-ec2-metadata-token"] != _TOKEN:
            self._send(401, "")
            return
        found = _METADATA.get(self.path.removeprefix("/latest/meta-data/"))
        self._send(404 if found is None else 200, found or "")

    def _send(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: pytest shows what failed."""


@contextmanager
def ec2_network(subnet: str = "10.0.0.0/24", slots: int = 5) -> Iterator[Ec2Network]:
    """Yield a server, which ends with the block."""
    server = Ec2Network(subnet, slots)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()

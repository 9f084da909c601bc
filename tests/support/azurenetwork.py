"""A server that speaks ARM's REST API for one machine and its network interface, and the instance metadata service.

No server that is to be had speaks it. Changes are asynchronous operations, as in Azure: 201 with Azure-AsyncOperation,
then polls (Azure, "Track asynchronous Azure operations").
"""

from __future__ import annotations

import copy
import http.server
import ipaddress
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

GROUP = "/subscriptions/s-1/resourceGroups/rg"
MACHINE = f"{GROUP}/providers/Microsoft.Compute/virtualMachines/node-1"
INTERFACE = f"{GROUP}/providers/Microsoft.Network/networkInterfaces/node-1-nic"
SUBNET = f"{GROUP}/providers/Microsoft.Network/virtualNetworks/v/subnets/pods"


class AzureNetwork(http.server.ThreadingHTTPServer):
    """One subnet and one machine.

    Attributes:
        resource: what the metadata service says this machine is.
        taken: single addresses of the subnet that others use.
        refuse: the next answers of the resource manager: (status, code, Retry-After or "").
        polls: how often an operation is InProgress.
        fail_operations: code with which operations end; "" if they succeed.
        race: called after an interface was read, once: another client's change.
        calls: (method, last part of the path).
        token_lives_s: lifetime of tokens.
    """

    daemon_threads = True

    def __init__(self, subnet: str = "10.1.0.0/24") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.subnet = ipaddress.IPv4Network(subnet)
        self.resource = MACHINE
        self.taken = {str(self.subnet[number]) for number in range(4)}
        self.refuse: list[tuple[int, str, str]] = []
        self.polls = 1
        self.fail_operations = ""
        self.race: Any = None
        self.calls: list[tuple[str, str]] = []
        self.token_lives_s = 3600
        self.tokens = 0
        self.version = 1
        self.left: dict[str, int] = {}
        self.configurations: list[dict[str, Any]] = [
            _configuration("ipconfig1", f"{self.subnet[4]}", primary=True),
            _configuration("of-the-operator", f"{self.subnet[5]}"),
        ]
        self.lock = threading.Lock()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def blocks(self) -> list[str]:
        return [each["properties"]["privateIPAddress"] for each in self.configurations[2:]]

    def used(self) -> set[str]:
        held = (ipaddress.ip_network(each["properties"]["privateIPAddress"]) for each in self.configurations)
        return self.taken | {str(ip) for network in held for ip in network}

    def interface(self) -> dict[str, Any]:
        properties = {"ipConfigurations": copy.deepcopy(self.configurations), "enableAcceleratedNetworking": True}
        return {"id": INTERFACE, "name": "node-1-nic", "etag": f'W/"{self.version}"', "properties": properties}

    def put(self, wanted: dict[str, Any]) -> str:
        """Apply a PUT; returns the code of the refusal or ""."""
        known = {each["name"]: each for each in self.configurations}
        kept = [known[each["name"]] for each in wanted["properties"]["ipConfigurations"] if each["name"] in known]
        before, self.configurations = self.configurations, kept
        for each in wanted["properties"]["ipConfigurations"]:
            if each["name"] in known:
                continue
            bits = each["properties"].get("privateIPAddressPrefixLength", 32)
            used = self.used()
            free = (one for one in self.subnet.subnets(new_prefix=bits) if not used & {str(ip) for ip in one})
            chosen = next(free, None)
            if chosen is None or self.fail_operations:
                self.configurations = before
                return self.fail_operations or "SubnetIsFull"
            text = str(chosen) if bits < 32 else str(chosen.network_address)
            self.configurations.append(_configuration(each["name"], text))
        self.version += 1
        return ""


def _configuration(name: str, address: str, *, primary: bool = False) -> dict[str, Any]:
    properties = {"privateIPAddress": address, "primary": primary, "subnet": {"id": SUBNET}}
    return {"name": name, "properties": properties}


class _Handler(http.server.BaseHTTPRequestHandler):
    server: AzureNetwork
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        with self.server.lock:
            if path.startswith("/metadata/"):
                self._metadata(path, query)
                return
            if self._refused("GET", path):
                return
            if path == MACHINE:
                interface = {"id": INTERFACE, "properties": {"primary": True}}
                self._send(200, {"properties": {"networkProfile": {"networkInterfaces": [interface]}}})
            elif path == INTERFACE:
                self._send(200, self.server.interface())
                if self.server.race is not None:
                    race, self.server.race = self.server.race, None
                    race()
            elif path.startswith("/operations/"):
                self._operation(path)
            else:
                self._send(404, {"error": {"code": "ResourceNotFound", "message": path}})

    def do_PUT(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            if self._refused("PUT", self.path.partition("?")[0]):
                return
            if self.headers["If-Match"] != f'W/"{self.server.version}"':
                self._send(412, {"error": {"code": "PreconditionFailed", "message": "the etag differs"}})
                return
            code = self.server.put(body)
            name = f"/operations/{len(self.server.left)}-{code}"
            self.server.left[name] = self.server.polls
            headers = {"Azure-AsyncOperation": f"{self.server.address}{name}", "Retry-After": "0"}
            self._send(201, self.server.interface(), headers)

    def _operation(self, name: str) -> None:
        self.server.left[name] -= 1
        code = name.partition("-")[2]
        if self.server.left[name] >= 0:
            self._send(200, {"status": "InProgress"}, {"Retry-After": "0"})
        elif code:
            self._send(200, {"status": "Failed", "error": {"code": code, "message": "subnet pods cannot do this"}})
        else:
            self._send(200, {"status": "Succeeded"})

    def _refused(self, method: str, path: str) -> bool:
        self.server.calls.append((method, path.rpartition("/")[2]))
        if self.headers["Authorization"] != f"Bearer token-{self.server.tokens}":
            self._send(401, {"error": {"code": "ExpiredAuthenticationToken", "message": "the token expired"}})
            return True
        if not self.server.refuse:
            return False
        status, code, wait = self.server.refuse.pop(0)
        headers = {"Retry-After": wait} if wait else {}
        self._send(status, {"error": {"code": code, "message": "refused"}}, headers)
        return True

    def _metadata(self, path: str, query: str) -> None:
        if self.headers["Metadata"] != "true":
            self._send(400, {"error": "Bad request: the header Metadata is missing"})
        elif path == "/metadata/instance/compute":
            self._send(200, {"resourceId": self.server.resource, "azEnvironment": "AzurePublicCloud"})
        elif "resource=" in query:
            self.server.tokens += 1
            expires = str(int(time.time()) + self.server.token_lives_s)
            self._send(200, {"access_token": f"token-{self.server.tokens}", "expires_on": expires})
        else:
            self._send(404, {})

    def _send(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: pytest shows what failed."""


@contextmanager
def azure_network(subnet: str = "10.1.0.0/24") -> Iterator[AzureNetwork]:
    """Yield a server, which ends with the block."""
    server = AzureNetwork(subnet)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()

"""Issue 11.15: the client escapes each segment of a path, and refuses names that would reach another object."""

from __future__ import annotations

import pytest

from muster.kube.client import Client
from muster.kube.connection.config import ClusterConfig
from muster.kube.errors import Invalid
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod

REFUSED = ("../pods/x", "..", ".", "a/b", "a%2fb", "a\\b", "a\nb", "a\x00")


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_that_is_not_one_segment_is_refused(name: str) -> None:
    for arguments in (("default", name), (name, "x")):
        with pytest.raises(Invalid):
            Pod.RESOURCE.path(*arguments)
    with pytest.raises(Invalid):
        Node.RESOURCE.path(None, name)


def test_other_characters_are_escaped() -> None:
    assert Node.RESOURCE.path(None, "a?b#c d") == "/api/v1/nodes/a%3Fb%23c%20d"
    assert Node.RESOURCE.path(None, "system:node:ä") == "/api/v1/nodes/system%3Anode%3A%C3%A4"
    assert Pod.RESOURCE.path("ns", "job-0.1~x_y", "log") == "/api/v1/namespaces/ns/pods/job-0.1~x_y/log"


async def test_no_request_is_sent_for_a_name_that_is_missing_or_wrong() -> None:
    async with Client(ClusterConfig(server="http://127.0.0.1:9"), retry_for_s=0) as client:
        for name in ("", *REFUSED):
            unnamed = ConfigMap(metadata=ObjectMeta(name=name, namespace="default"))
            for asked in (
                client.get(Pod, name, "default"),
                client.patch(Pod, name, {}, namespace="default"),
                client.delete(Node, name),
                client.bind(name, "n", namespace="default", uid="u"),
                client.evict(name, namespace="default"),
                client.replace(unnamed),
            ):
                with pytest.raises(Invalid, match=r"cannot be|is missing"):
                    await asked


@pytest.mark.parametrize("path", ["/api/v1/../x", "/api/v1/%2e%2E/x", "/api//v1", "/api/./v1", "/api#v1"])
async def test_a_path_that_a_url_library_would_shorten_is_refused(path: str) -> None:
    async with Client(ClusterConfig(server="http://127.0.0.1:9"), retry_for_s=0) as client:
        with pytest.raises(Invalid, match="cannot be requested"):
            await client.request("GET", path)
        with pytest.raises(Invalid, match="cannot be requested"):
            client.stream("GET", path)
        with pytest.raises(Invalid, match="cannot be requested"):
            client.websocket(path)

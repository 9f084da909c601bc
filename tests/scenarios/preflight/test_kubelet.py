"""A kubelet that really runs the tests, on the CPU back end: from the taint to trust, and after a reboot to failure."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from muster.api.preflight import Preflight
from muster.fleet.preflight.config import CONFIG_KEY, CONFIG_MAP
from muster.fleet.preflight.testpod import run_s
from muster.kube.objects.core import ConfigMap, Event
from muster.kube.objects.node import Node
from tests.scenarios.kubelet.conftest import NodeUnderTest
from tests.scenarios.preflight.conftest import POOL, Trusting
from tests.support.anyserver import BY_PREFLIGHT
from tests.support.apiserver import ApiServer
from tests.support.realgpu import REAL_GPU
from tests.support.waiting import until

TEXT = "runAsUser: 0\nbackend: {backend}\nresources: {{cpu: 100m, memory: 64Mi}}\nretests: {{atOnce: 0}}\n"


@BY_PREFLIGHT
async def test_a_process_kubelet_tests_its_node_and_a_reboot_has_it_tested_again(
    trusting: Trusting, api_server_for_kubelets: ApiServer, tmp_path: Path
) -> None:
    flags = ("--gpus=2", f"--labels={POOL}={trusting.namespace}", "--taints=muster.dev/preflight=pending:NoSchedule")
    node = NodeUnderTest(api_server_for_kubelets, trusting.client, tmp_path, flags)
    await trusting.configure(TEXT.format(backend="cpu"))
    trusting.control()
    try:
        await node.start()
        record = await ended(trusting, node, boot="")
        assert record.spec.passed, record.spec.failures
        assert [gpu.uuid for gpu in record.spec.figures] == ["CPU-0000", "CPU-0001"]
        assert all(gpu.figures["memory_bandwidth_gb_per_s"] > 0 for gpu in record.spec.figures)
        await trusting.until_pending()
        await trusting.cluster.add_gang("train", 1, gpus=2)
        await trusting.cluster.until_bound("train", 1, "the gang gets the node that was tested")
        await trusting.cluster.kill("train")

        text = {CONFIG_KEY: TEXT.format(backend="cpu:1")}  # so that it misses one of its two GPUs
        await trusting.client.patch(ConfigMap, CONFIG_MAP, {"data": text}, namespace=trusting.namespace)
        await asyncio.to_thread(node.kill)
        await node.start("--new-boot")
        again = await ended(trusting, node, boot=record.spec.boot_id)
        assert [(each.test, each.code) for each in again.spec.failures] == [("visibility", "gpu-count")]
        await trusting.until_pending(node.name)
    finally:
        await asyncio.to_thread(node.end)


@REAL_GPU
@pytest.mark.timeout(300)
async def test_a_real_gpu_is_tested_before_its_node_is_trusted(
    trusting: Trusting, api_server_for_kubelets: ApiServer, tmp_path: Path
) -> None:
    flags = ("--gpus=1", f"--labels={POOL}={trusting.namespace}", "--taints=muster.dev/preflight=pending:NoSchedule")
    node = NodeUnderTest(api_server_for_kubelets, trusting.client, tmp_path, flags)
    await trusting.configure("image: none\n" + TEXT.format(backend="nvidia"))  # processes need no image
    trusting.control()
    try:
        await node.start()
        record = await ended(trusting, node, boot="", timeout_s=run_s(1))
        assert record.spec.passed, record.spec.failures
        assert [gpu.uuid[:4] for gpu in record.spec.figures] == ["GPU-"]
        assert record.spec.driver
        await trusting.until_pending()
    finally:
        await asyncio.to_thread(node.end)


async def ended(trusting: Trusting, node: NodeUnderTest, *, boot: str, timeout_s: float = 60.0) -> Preflight:
    """Wait for the record of a test in another boot than that."""

    async def there() -> Preflight | None:
        record = await trusting.record(node.name)
        return record if record is not None and record.spec.boot_id != boot else None

    try:
        found: Preflight = await until("the test's result is in the record", there, timeout_s)
    except AssertionError as error:
        seen = [str(pod) for pod in await trusting.cluster.pods()]
        events = [event for event in (await trusting.client.list(Event)).items if "Preflight" in event.reason]
        said = [f"{event.reason}: {event.message}" for event in events]
        raise AssertionError("\n".join([str(error), *seen, *said, node.log.read_text()[-3000:]])) from None
    info = (await trusting.client.get(Node, node.name)).status.node_info
    assert info is not None
    assert found.spec.boot_id == info.boot_id
    return found

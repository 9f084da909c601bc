"""Issue 14.1: what a pod gets for its object stores: settings as variables, credentials only as mounted Secrets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from muster.trainingjobs.decide import decide
from muster.trainingjobs.plan import WriteStatus
from muster.trainingjobs.pods.pod import build_pod
from tests.unit.trainingjobs.world import PODS, World, make_job

STORE = {"endpoint": "http://minio:9000", "region": "eu-1", "credentials": {"secretName": "keys"}}


def pod(**spec: Any) -> tuple[dict[str, Any], dict[str, str], dict[str, Any]]:
    """The pod, the worker's variables, and its volumes by mount path."""
    body = build_pod(make_job(2, **spec), 0, 1, (), PODS)
    worker = body["spec"]["containers"][0]
    env = {each["name"]: each.get("value", "") for each in worker["env"]}
    volumes = {each["name"]: each for each in body["spec"]["volumes"]}
    return body, env, {each["mountPath"]: (volumes[each["name"]], each) for each in worker["volumeMounts"]}


def test_settings_are_variables_and_the_secret_is_a_volume() -> None:
    body, env, mounted = pod(
        data={"url": "s3://b/data", "badShards": "Skip", **STORE}, checkpoint={"path": "s3://b/ckpt", **STORE}
    )
    assert env["MUSTER_DATA_URL"] == "s3://b/data"
    assert env["MUSTER_DATA_BAD_SHARD"] == "skip"
    assert env["MUSTER_CHECKPOINT_DIR"] == "s3://b/ckpt/job-job-uid"
    for name, folder in (("DATA", "data"), ("CHECKPOINT", "checkpoint")):
        assert env[f"MUSTER_{name}_ENDPOINT"] == "http://minio:9000"
        assert env[f"MUSTER_{name}_REGION"] == "eu-1"
        assert env[f"MUSTER_{name}_SECRET"] == "keys"
        path = env[f"MUSTER_{name}_CREDENTIALS"]
        assert path == f"/var/run/muster-store/{folder}"
        volume, mount = mounted[path]
        assert volume["secret"] == {"secretName": "keys"}
        assert mount["readOnly"] is True
    assert "secretKeyRef" not in json.dumps(body)
    assert "envFrom" not in json.dumps(body)


def test_workload_identity_needs_no_secret() -> None:
    _, env, mounted = pod(data={"url": "gs://b/data"}, checkpoint={"path": "/ckpt"})
    assert {name for name in env if name.startswith("MUSTER_DATA")} == {"MUSTER_DATA_URL", "MUSTER_DATA_BAD_SHARD"}
    assert not [path for path in mounted if "muster-store" in path]
    assert "MUSTER_CACHE_SOCKET" not in env


def test_a_file_url_for_checkpoints_is_an_ordinary_folder() -> None:
    _, env, _ = pod(checkpoint={"path": "file:///a%20b"})
    assert env["MUSTER_CHECKPOINT_DIR"] == "/a b/job-job-uid"


def message(world: World) -> str:
    """What the status says after the controller's next decision."""
    plan = decide(world.snapshot(), world.now)
    return next((each.status.message for each in plan.actions if isinstance(each, WriteStatus)), world.status.message)


@pytest.mark.parametrize(
    ("credentials", "words"), [({"secretName": "keys"}, "pods need Secret keys; if that is missing"), (None, "")]
)
def test_a_job_whose_pods_do_not_start_names_its_secret(credentials: dict[str, str] | None, words: str) -> None:
    world = World(make_job(2, checkpoint={"path": "s3://b/c", "credentials": credentials}))
    world.control()
    world.schedule()  # the kubelets do not start the pods
    world.control()
    assert "Secret" not in message(world)
    world.now += 11.0
    assert words in message(world)
    assert ("Secret" in message(world)) is bool(words)

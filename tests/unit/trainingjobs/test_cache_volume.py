"""Which pods get the socket of the node cache."""

from __future__ import annotations

from typing import Any

import pytest

from muster.api.training_job import CheckpointSpec, DataSpec, TrainingJob, TrainingJobSpec
from muster.cli.errors import ExitCode
from muster.cli.main import run
from muster.kube.objects.meta import ObjectMeta
from muster.trainingjobs.pods.pod import PodSettings, build_pod, settings_for
from muster.trainingjobs.pods.stores import CacheVolume

HOST_PATH = CacheVolume(mode="hostPath", folder="/run/cache")
CLAIM = CacheVolume(mode="claim", namespaces=("claims",))
DATA = {"data": DataSpec(url="s3://bucket/data")}
FOLDERS = {"data": DataSpec(url="file:///data"), "checkpoint": CheckpointSpec(path="/shared/checkpoints")}


def cache_of(volume: CacheVolume, spec: dict[str, Any], namespace: str, allows_host_paths: bool = True) -> Any:
    """The pod's source of the socket's folder; None if the pod has none, and does not name the socket either."""
    job = TrainingJob(
        metadata=ObjectMeta(name="train", namespace=namespace, uid="u"),
        spec=TrainingJobSpec(replicas=1, image="train:1", command=("true",), **spec),
    )
    settings = PodSettings(url="https://controller", ca_pem="", muster_image="muster:1", cache=volume)
    pod = build_pod(job, 0, 1, (), settings_for(settings, job, allows_host_paths))["spec"]
    worker = pod["containers"][0]
    sources = [each for each in pod["volumes"] if each["name"] == "muster-cache"]
    mounts = [each for each in worker["volumeMounts"] if each["name"] == "muster-cache"]
    named = [each["value"] for each in worker["env"] if each["name"] == "MUSTER_CACHE_SOCKET"]
    assert len(sources) == len(mounts) == len(named) <= 1
    if not sources:
        return None
    assert mounts == [{"name": "muster-cache", "mountPath": "/var/run/muster-cache", "readOnly": True}]
    assert named == ["/var/run/muster-cache/cache.sock"]
    (source,) = sources
    return {kind: value for kind, value in source.items() if kind != "name"}


@pytest.mark.parametrize("spec", [DATA, {"checkpoint": CheckpointSpec(path="gs://bucket/checkpoints")}])
def test_a_job_with_an_object_store_gets_the_folder_of_its_node(spec: dict[str, Any]) -> None:
    assert cache_of(HOST_PATH, spec, "any") == {"hostPath": {"path": "/run/cache", "type": "DirectoryOrCreate"}}


def test_a_job_with_folders_alone_starts_no_cache() -> None:
    for spec in (FOLDERS, {}):
        assert cache_of(HOST_PATH, spec, "any") is None
        assert cache_of(CLAIM, spec, "claims") is None


def test_a_namespace_that_forbids_host_paths_reads_from_the_bucket() -> None:
    assert cache_of(HOST_PATH, DATA, "strict", allows_host_paths=False) is None


def test_only_namespaces_with_the_claim_wait_for_it() -> None:
    claim = {"persistentVolumeClaim": {"claimName": "muster-cache", "readOnly": True}}
    assert cache_of(CLAIM, DATA, "claims", allows_host_paths=False) == claim
    assert cache_of(CLAIM, DATA, "others") is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--cache-volume=claim",), "--cache-volume claim and --cache-namespace go together"),
        (("--cache-volume=hostPath", "--cache-namespace=a"), "--cache-volume claim and --cache-namespace go together"),
        (("--cache-volume=claim", "--cache-namespace=A_b"), "--cache-namespace 'A_b' cannot be the name"),
        (("--cache-volume=hostPath", "--cache-dir=run"), "--cache-dir 'run' is not an absolute path"),
    ],
)
def test_options_of_the_controller_that_would_leave_pods_pending_are_refused(
    options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["controller", *options]) == ExitCode.BAD_INPUT
    assert said in capsys.readouterr().err

"""From what was typed to a TrainingJob, or to a complaint that says what to change."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.api.names import JOB_NAME_MAX
from muster.cli.errors import BadInput, ExitCode
from muster.cli.jobs import manifest
from muster.cli.jobs.archive import Archive
from muster.cli.jobs.code_store import CONFIG_MAP_BYTES_MAX, config_map, deliver
from muster.cli.jobs.run import build
from muster.cli.target import Cluster
from muster.embedded.layout import Layout
from muster.kube.connection.config import ClusterConfig

FLAGS = dict.fromkeys(
    ("name", "nodes", "min_nodes", "gpus", "ranks_per_node", "launcher", "image", "checkpoint", "time_limit",
     "backoff_limit", "stall_after", "stall_steps", "stall_first", "on_stall", "priority", "code", "code_store",
     "shm", "rdma", "ipc_lock", "host_network", "borrow", "share_nodes", "from_checkpoint",
     "restartable", "data", "bad_shards", "store_endpoint", "store_region", "store_secret")
) | {"env": (), "image": "python:3.12"}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('hello')\n")
    return tmp_path


def test_a_script_and_flags_become_a_job(folder: Path) -> None:
    flags = FLAGS | {
        "nodes": 4, "min_nodes": 3, "gpus": 8, "env": ("A=1=2",), "time_limit": "1h30m", "shm": "64Gi",
        "rdma": "rdma/hca=8", "ranks_per_node": 1, "checkpoint": "s3://b/c", "priority": 3, "backoff_limit": 0,
        "ipc_lock": True, "share_nodes": True,
    }  # fmt: skip
    made, archive = build("train.py", ("--lr", "0.1"), None, "team", flags, None)
    assert made["metadata"]["name"] == "train"
    assert made["metadata"]["namespace"] == "team"
    assert archive.files == 1
    assert made["spec"] == {
        "replicas": 4, "minReplicas": 3, "noSpare": "Shrink", "command": ["python3", "train.py"],
        "args": ["--lr", "0.1"], "gpusPerNode": 8, "nodeSharing": "Shared", "ranksPerNode": 1,
        "image": "python:3.12", "env": [{"name": "A", "value": "1=2"}], "checkpoint": {"path": "s3://b/c"},
        "timeLimitSeconds": 5400, "backoffLimit": 0, "priority": 3, "sharedMemory": "64Gi",
        "rdma": {"resource": "rdma/hca", "count": 8}, "ipcLock": True,
    }  # fmt: skip


@pytest.mark.parametrize("restartable", [True, False, None])
def test_restartable_is_absent_unless_the_user_says_so(folder: Path, restartable: bool | None) -> None:
    made, _ = build("train.py", (), None, "team", FLAGS | {"restartable": restartable}, None)
    assert made["spec"].get("restartable") is restartable


def test_flags_go_over_a_file(folder: Path) -> None:
    (folder / "job.yaml").write_text(
        "apiVersion: muster.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: a}\n"
        "spec: {replicas: 2, image: i, command: [x]}\n"
    )
    made, archive = build(None, (), "job.yaml", "default", FLAGS | {"nodes": 3, "name": "b", "image": None}, None)
    assert (made["metadata"]["name"], made["spec"]["replicas"], made["spec"]["image"]) == ("b", 3, "i")
    assert archive is None


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"name": "Not_A_Name"}, "lower-case letters"),
        ({"name": "x" * 53}, "at most 52"),
        ({"env": ("RANK=1",)}, "Muster sets RANK"),
        ({"env": ("A=1", "A=2")}, "set 2 times"),
        ({"env": ("NOT_SET_ANYWHERE",)}, "is not set here"),
        ({"image": None}, "--image is missing"),
        ({"time_limit": "soon"}, "is not a length of time"),
        ({"time_limit": "0"}, "is not a length of time"),
        ({"rdma": "=8"}, "is not understood"),
        ({"shm": "lots"}, "is not a quantity"),
        ({"code": "missing"}, "is not a folder"),
    ],
)
def test_bad_flags_are_refused_with_what_to_change(folder: Path, flags: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        build("train.py", (), None, "default", FLAGS | flags, None)
    assert caught.value.exit_code == ExitCode.BAD_INPUT


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("spec: [", r"job\.yaml:1:\d+: not YAML"),
        ("a: 1\n\tb: 2\n", r"job\.yaml:2:\d+: not YAML"),
        (
            "apiVersion: muster.dev/v1alpha1\nkind: TrainingJob\nspec:\n  replica: 2\n",
            "job.yaml:4:3.*did you mean repl",
        ),
        ("- 1\n", "is a map"),
        ("", "nothing in it"),
    ],
)
def test_bad_files_are_refused_with_their_line(folder: Path, text: str, message: str) -> None:
    (folder / "job.yaml").write_text(text)
    with pytest.raises(BadInput, match=message):
        build(None, (), "job.yaml", "default", FLAGS, None)


def test_missing_script_names_those_that_are_there(folder: Path) -> None:
    with pytest.raises(BadInput, match="no script trian") as caught:
        manifest.find_script("trian.py", "")
    assert "train.py" in caught.value.hint


def test_a_script_outside_the_working_folder_travels_with_its_own(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path.parent / f"{tmp_path.name}-else"
    elsewhere.mkdir()
    (elsewhere / "go.sh").write_text("echo\n")
    assert manifest.find_script(str(elsewhere / "go.sh"), "") == (["bash", "go.sh"], elsewhere)
    with pytest.raises(BadInput, match="does not lie in"):
        manifest.find_script(str(elsewhere / "go.sh"), ".")


@given(st.text(max_size=80))
def test_every_script_name_gives_a_valid_job_name(stem: str) -> None:
    name = manifest.name_for(f"{stem.replace('/', '')}.py")
    for each in (name, manifest.with_suffix(name)):
        assert re.fullmatch("[a-z0-9]([-a-z0-9]*[a-z0-9])?", each)
        assert len(each) <= JOB_NAME_MAX


def test_a_job_is_named_like_its_script_and_a_suffix_makes_it_another() -> None:
    assert manifest.name_for("examples/Train GPT.py") == "train-gpt"
    assert re.fullmatch("train-[a-z0-9]{5}", manifest.with_suffix("train"))
    assert manifest.with_suffix("train") != manifest.with_suffix("train")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("2h", 7200), ("1d1h1m1s", 90061), ("30m", 1800)]
)
def test_lengths_of_time(text: str, seconds: int) -> None:
    assert manifest.seconds(text) == seconds


def test_code_too_large_for_the_cluster_names_the_largest_files_and_the_ways_out() -> None:
    archive = Archive(b"x" * (CONFIG_MAP_BYTES_MAX + 1), 2, [("big.bin", 900_000)])
    with pytest.raises(BadInput, match="big") as caught:
        config_map("a", "default", archive)
    assert "--code-store" in caught.value.hint
    assert config_map("a", "default", archive._replace(data=b"x"))["immutable"] is True


def test_a_shared_folder_is_mounted_where_the_code_lies(folder: Path, tmp_path: Path) -> None:
    _, archive = build("train.py", (), None, "default", FLAGS, None)
    store = tmp_path.parent / f"{tmp_path.name}-store"
    store.mkdir()
    for _ in range(2):  # the second time it is there already
        spec: dict[str, object] = {"replicas": 1, "image": "i", "command": ["python3", "train.py"]}
        assert deliver(str(store), archive, "a", "default", spec) is None
        assert (Path(str(spec["workingDir"])) / "train.py").read_text() == "print('hello')\n"
        made = manifest.new_manifest("a", "default") | {"spec": spec}
        assert manifest.checked(made).spec.template["spec"]["volumes"][0]["hostPath"]["path"] == str(store)
    with pytest.raises(BadInput, match="is not a folder"):
        deliver("/does/not/exist", archive, "a", "default", {})


def test_options_of_the_store_apply_to_data_and_checkpoints(folder: Path) -> None:
    store = {"store_endpoint": "http://minio:9000", "store_region": "eu", "store_secret": "keys"}
    flags = FLAGS | store | {"data": "s3://b/data", "bad_shards": "skip", "checkpoint": "s3://b/ckpt"}
    made, _ = build("train.py", (), None, "team", flags, None)
    access = {"endpoint": "http://minio:9000", "region": "eu", "credentials": {"secretName": "keys"}}
    assert made["spec"]["data"] == {"url": "s3://b/data", "badShards": "Skip", **access}
    assert made["spec"]["checkpoint"] == {"path": "s3://b/ckpt", **access}
    made, _ = build("train.py", (), None, "team", flags | {"checkpoint": "/ckpt"}, None)
    assert made["spec"]["checkpoint"] == {"path": "/ckpt"}, "they do not apply to a folder"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"store_secret": "keys"}, "--store-secret goes with data or checkpoints in an object store"),
        ({"store_region": "eu", "checkpoint": "/ckpt"}, "--store-region goes with"),
        ({"bad_shards": "skip"}, "--bad-shards goes with --data"),
        ({"data": "./data"}, "do not see this folder"),
        ({"data": "s3://b?x=1"}, "spec.data.url"),
        ({"data": "s3://b", "checkpoint": "gs://b", "store_endpoint": "http://h:1"}, "stores of different kinds"),
        ({"data": "s3://b", "store_endpoint": "h:1"}, "is not the URL of a service"),
        ({"data": "s3://b", "store_secret": "No Name"}, "secretName"),
    ],
)
def test_bad_options_of_the_store_are_refused(folder: Path, flags: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput) as refused:
        build("train.py", (), None, "default", FLAGS | flags, None)
    assert message in str(refused.value)


def test_a_folder_of_data_on_the_embedded_cluster(folder: Path) -> None:
    data = folder / "my data"
    data.mkdir()
    (data / "part.tar").write_text("x")
    embedded = Cluster(ClusterConfig(server="https://none"), "default", "embedded", Layout(folder))
    made, archive = build("train.py", (), None, "default", FLAGS | {"data": "./my data"}, embedded)
    assert made["spec"]["data"] == {"url": f"file://{str(data).replace(' ', '%20')}"}
    assert archive.files == 1, "the data does not travel with the code"
    with pytest.raises(BadInput, match="is not a folder"):
        build("train.py", (), None, "default", FLAGS | {"data": "./none"}, embedded)

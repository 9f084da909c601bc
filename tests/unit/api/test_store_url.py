"""Issue 14.1: URLs of stores in a job. A URL with credentials is refused, and no message repeats them."""

from __future__ import annotations

from typing import Any

import pytest

from muster.api import store_url
from muster.api.checkpoint_dir import attempt_in, own_folder
from muster.api.validate import validate
from tests.unit.api.test_validate import job

SECRETS = (
    "s3://AKIA:hunter2@bucket/x",
    "s3://hunter2@bucket/x",
    "https://account.blob/c?sv=1&sig=hunter2",
    "s3://bucket/x?X-Amz-Signature=hunter2",
    "s3://bucket/x?aws_secret_access_key=hunter2",
    "hdfs://user:hunter2@host/x",
)


@pytest.mark.parametrize("url", SECRETS)
@pytest.mark.parametrize("place", ["data", "checkpoint", "from", "endpoint"])
def test_a_url_with_credentials_is_refused_without_repeating_them(url: str, place: str) -> None:
    endpoint = url.replace("s3://", "http://").replace("hdfs://", "http://")
    spec: dict[str, Any] = {
        "data": {"data": {"url": url}},
        "checkpoint": {"checkpoint": {"path": url}},
        "from": {"checkpoint": {"path": "/c", "from": {"path": url}}},
        "endpoint": {"data": {"url": "s3://b", "endpoint": endpoint}},
    }[place]
    problems = validate(job(**spec))
    assert problems
    assert "hunter2" not in " ".join(map(str, problems))
    assert any("credentials" in each.message for each in problems)


@pytest.mark.parametrize(
    "url", ["s3://bucket", "s3://bucket/a/b/", "gs://my_bucket.x/p", "az://container/p", "file:///data/a%20folder"]
)
def test_usual_data_is_accepted(url: str) -> None:
    assert validate(job(data={"url": url})) == []


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("/data", "file:///FOLDER"),
        ("s3://", "no bucket"),
        ("s3:///path", "no bucket"),
        ("S3://bucket", "scheme"),
        ("http://host/data", "scheme"),
        ("s3://bucket?region=eu", "fields of their own"),
        ("s3://bucket:80/x", "not the URL of a bucket"),
        ("file://data", "file:///FOLDER"),
    ],
)
def test_other_data_is_refused_with_what_to_write(url: str, word: str) -> None:
    (problem,) = validate(job(data={"url": url}))
    assert problem.field == "spec.data.url"
    assert word in problem.message


@pytest.mark.parametrize(
    "path",
    ["ckpt", "/ckpt", "/odd?name", "s3://b/x?region=eu", "abfss://c@account.dfs/x", "hdfs://user@host/x", "file:///c"],
)
def test_checkpoints_that_the_program_handles_by_itself_stay_possible(path: str) -> None:
    assert validate(job(checkpoint={"path": path})) == []


def test_settings_of_a_store_go_with_a_store_only() -> None:
    settings = {"endpoint": "http://h:9", "region": "eu", "credentials": {"secretName": "s"}}
    assert validate(job(checkpoint={"path": "s3://b/x", **settings})) == []
    for path in ("/ckpt", "file:///c", "s3a://b/x", "s3://b/x?a=b"):
        problems = validate(job(checkpoint={"path": path, **settings}))
        assert [each.field for each in problems] == [f"spec.checkpoint.{name}" for name in settings]


@pytest.mark.parametrize("endpoint", ["h:9000", "ftp://h", "http://h?x=1", "http://h/a b", "http://"])
def test_an_endpoint_is_the_url_of_a_service(endpoint: str) -> None:
    (problem,) = validate(job(data={"url": "s3://b", "endpoint": endpoint}))
    assert problem.field == "spec.data.endpoint"


def test_a_secret_needs_the_keys_of_its_store() -> None:
    assert store_url.missing_keys("s3://b", ["AWS_ACCESS_KEY_ID"]) == (
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE"
    )
    assert store_url.missing_keys("s3://b", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "more"]) == ""
    assert store_url.missing_keys("az://b", ["AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_SAS_TOKEN"]) == ""
    assert ", or " in store_url.missing_keys("az://b", ["AZURE_STORAGE_ACCOUNT_NAME"])


def test_a_file_url_is_a_folder() -> None:
    assert own_folder("file:///a%20b/", "train", "123456789") == "/a b/train-12345678"
    assert store_url.local_folder(store_url.file_url("/a b?#%/c")) == "/a b?#%/c"
    assert store_url.data_problem(store_url.file_url("/a b?#%/c")) == ""


@pytest.mark.parametrize(
    ("path", "attempt"),
    [
        ("/c/job-1/step-00000040-attempt-3", 3),
        ("s3://b/job-1/step-00000040-attempt-12-2", 12),
        ("step-1-attempt-1/", 1),
        ("/c/step-40-attempt-3.pt", None),
        ("/c/my-step-40-attempt-3", None),
        ("/c/latest", None),
    ],
)
def test_the_attempt_in_a_name(path: str, attempt: int | None) -> None:
    assert attempt_in(path) == attempt

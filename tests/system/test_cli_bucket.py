"""Code that travels through a bucket: a real server that speaks S3, real workers that fetch from it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator

import boto3
import pytest

from tests.support.awsserver import aws_server
from tests.support.musterprogram import Muster, muster_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

HELLO = "import helper\nprint('hello from', helper.WHERE)\n"
BUCKET = "code"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of moto's server, with a bucket."""
    with aws_server(tmp_path_factory.mktemp("s3")) as address:
        client = boto3.client(
            "s3", endpoint_url=address, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
        )
        client.create_bucket(Bucket=BUCKET)
        yield address


@pytest.fixture(scope="module")
def muster(server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Muster]:
    with muster_in(tmp_path_factory.mktemp("bucket") / "home") as muster:
        muster.ok("up", "--nodes", "2", "--gpus", "0")
        muster.work = tmp_path_factory.mktemp("work")
        (muster.work / "hello.py").write_text(HELLO)
        (muster.work / "helper.py").write_text("WHERE = 'the bucket'\n")
        (muster.work / "data.bin").write_bytes(os.urandom(1_200_000))  # more than a ConfigMap holds
        muster.env |= {
            "AWS_ENDPOINT_URL": server,
            "AWS_ACCESS_KEY_ID": "key-of-the-user",
            "AWS_SECRET_ACCESS_KEY": "secret-of-the-user",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        yield muster


def run(muster: Muster, name: str, store: str) -> subprocess.CompletedProcess[str]:
    arguments = ("hello.py", "--name", name, "--nodes", "2", "--launcher", "none", "--code-store", store)
    return muster.run("run", *arguments, "--wait")


def test_workers_fetch_the_code_by_a_signed_url(muster: Muster) -> None:
    done = run(muster, "fetched", f"s3://{BUCKET}/teams/one")
    assert done.returncode == 0, (done, muster.run("logs", "fetched"))
    for slot in (0, 1):
        assert f"[{slot}] hello from the bucket" in muster.ok("logs", "fetched")
    code = muster.json("status", "fetched")["spec"]["code"]
    assert set(code) == {"url", "sha256"}
    assert code["url"].startswith(f"{muster.env['AWS_ENDPOINT_URL']}/{BUCKET}/teams/one/{code['sha256']}.tar.gz?")
    assert "X-Amz-Signature=" in code["url"]
    assert "secret-of-the-user" not in done.stderr + muster.ok("status", "fetched", "-o", "yaml")


def test_changed_archive_is_not_run(muster: Muster) -> None:
    (muster.work / "helper.py").write_text("WHERE = 'another bucket'\n")
    client = boto3.client(
        "s3",
        endpoint_url=muster.env["AWS_ENDPOINT_URL"],
        region_name="us-east-1",
        aws_access_key_id="a",
        aws_secret_access_key="b",
    )
    arguments = ("hello.py", "--name", "held", "--nodes", "9", "--launcher", "none")
    sent = muster.run("run", *arguments, "--code-store", f"s3://{BUCKET}")
    assert sent.returncode == 0, sent
    held = muster.json("status", "held")
    key = held["spec"]["code"]["sha256"] + ".tar.gz"
    client.put_object(Bucket=BUCKET, Key=key, Body=b"something else")
    muster.ok("delete", "held")
    manifest = {name: held[name] for name in ("apiVersion", "kind", "spec")}
    manifest["metadata"] = {"name": "changed"}
    manifest["spec"] |= {"replicas": 1, "backoffLimit": 0}
    (muster.work / "changed.json").write_text(json.dumps(manifest))
    done = muster.run("run", "-f", "changed.json", "--wait")
    assert done.returncode == 1, done
    said = muster.ok("logs", "changed") + done.stderr
    assert f"{key} does not have the SHA-256 that the job names" in said
    assert "X-Amz-Signature" not in said
    assert "hello" not in muster.ok("logs", "changed")


def test_a_bucket_that_is_not_there_creates_nothing(muster: Muster) -> None:
    done = run(muster, "nowhere", "s3://no-such-bucket/prefix")
    assert done.returncode == 1
    assert "cannot upload the code to s3://no-such-bucket/prefix" in done.stderr
    assert "NoSuchBucket" in done.stderr
    assert muster.run("status", "nowhere").returncode == 4
    assert run(muster, "nameless", "s3:///prefix").returncode == 2


@pytest.mark.parametrize(("url", "reason"), [("s3://no-such-bucket/x", "WrongBucket"), ("s3://code/none", "NotFound")])
def test_data_that_is_not_there_fails_the_job_before_its_program_starts(muster: Muster, url: str, reason: str) -> None:
    name = reason.lower()
    keys = ("--env", "AWS_ACCESS_KEY_ID=a", "--env", "AWS_SECRET_ACCESS_KEY=b")
    store = ("--data", url, "--store-endpoint", muster.env["AWS_ENDPOINT_URL"], "--store-region", "us-east-1")
    job = ("hello.py", "--name", name, "--nodes", "2", "--launcher", "none", "--code-store", f"s3://{BUCKET}", "--wait")
    assert muster.run("run", *job, *keys, *store).returncode == 1
    status = muster.json("status", name)["status"]
    assert f"cannot read the training data at {url} ({reason})" in status["message"]
    assert [fault["rule"] for fault in status["faults"]] == ["cannot-read-data"]
    assert "hello" not in muster.run("logs", name).stdout

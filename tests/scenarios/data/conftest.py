"""The arena of job scenarios, and a server that speaks S3."""

from __future__ import annotations

from collections.abc import Iterator

import boto3
import pytest

from muster.sdk.data import Store, open_store
from tests.scenarios.trainingjobs.conftest import arena, arenas
from tests.support.awsserver import CREDENTIALS, aws_server

__all__ = ["arena", "arenas"]

BUCKET = "training"


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of moto's server, with a bucket."""
    with aws_server(tmp_path_factory.mktemp("s3")) as address:
        client = boto3.client(
            "s3",
            endpoint_url=address,
            region_name=CREDENTIALS["AWS_DEFAULT_REGION"],
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        )
        client.create_bucket(Bucket=BUCKET)
        yield address


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """The bucket, with the credentials of the environment."""
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    store = open_store(f"s3://{BUCKET}", deadline_s=30)
    yield store
    store.close()

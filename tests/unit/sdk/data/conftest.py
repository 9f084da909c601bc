from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from muster.sdk.data import Access, Store, open_store
from tests.support.awsserver import aws_server
from tests.support.buckets import new_bucket, s3_access
from tests.support.faultyproxy import FaultyProxy, faulty_proxy


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of an S3 server, one for each process of tests."""
    with aws_server(tmp_path_factory.mktemp("s3")) as address:
        yield address


@pytest.fixture
def s3_url(s3_server: str) -> str:
    """A new bucket."""
    return f"s3://{new_bucket(s3_server)}/run"


@pytest.fixture
def s3(s3_server: str, tmp_path_factory: pytest.TempPathFactory) -> Access:
    """Access to the server itself."""
    return s3_access(s3_server, tmp_path_factory.mktemp("secret"))


@pytest.fixture
def proxy(s3_server: str) -> Iterator[FaultyProxy]:
    """A proxy before the server, which breaks nothing yet."""
    with faulty_proxy(s3_server) as found:
        yield found


@pytest.fixture
def behind_proxy(proxy: FaultyProxy, s3: Access) -> Access:
    """Access through the proxy."""
    return s3._replace(endpoint=proxy.address)


@pytest.fixture
def opened() -> Iterator[Callable[..., Store]]:
    """`open_store`, whose stores are closed at the end."""
    stores: list[Store] = []

    def open_and_note(*arguments: object, **options: object) -> Store:
        stores.append(open_store(*arguments, **options))  # type: ignore[arg-type]
        return stores[-1]

    yield open_and_note
    for store in stores:
        store.close()

"""Issue 15 A5: the read cache serves a valid certificate, and clients find the authority to trust."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from functools import partial

import pytest
from prometheus_client import CollectorRegistry

from muster.kube.client import Client
from muster.kube.connection.config import ClusterConfig
from muster.kube.connection.pki import CertificateAuthority, KeyPair
from muster.kube.connection.servingcertificates import LIFETIME, load_pair
from muster.kube.errors import Forbidden
from muster.kube.metrics import kube_metrics
from muster.kube.objects.core import ConfigMap, Secret
from muster.kube.secretcertificate import SecretCertificate
from muster.sim.virtual.network import Calm, InProcessTransport, Trace
from tests.support.apicore import Cluster
from tests.support.waiting import until

SPACE, SECRET, CONFIG_MAP = "muster-system", "muster-readcache-tls", "muster-readcache-ca"
HOST = "muster-readcache.muster-system.svc"


@pytest.fixture
def client() -> Client:
    core = Cluster()
    core.ok("POST", "/api/v1/namespaces", {"metadata": {"name": SPACE}})
    transport = InProcessTransport(core.core, "readcache", Calm(random.Random(1)), Trace())
    return Client(ClusterConfig(server="http://none"), transport=transport, metrics=kube_metrics(CollectorRegistry()))


def server_context() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)


def certificate_of(context: ssl.SSLContext, authorities: bytes, host: str = HOST) -> dict[str, object]:
    """What a client of the context gets to see, with a handshake in memory. Raises SSLError if it does not trust it."""
    client_context = ssl.create_default_context(cadata=authorities.decode())
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname=host)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(10):
        for end in (client, server):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    found = client.getpeercert()
    assert found
    return found


class Clock:
    now = time.time()

    def __call__(self) -> float:
        return self.now


def secret_certificate(client: Client, context: ssl.SSLContext | None, clock: Clock) -> SecretCertificate:
    serve = None if context is None else partial(load_pair, context)
    return SecretCertificate(client, SPACE, SECRET, CONFIG_MAP, [HOST], serve, clock=clock, labels={})


async def published(client: Client) -> bytes:
    return (await client.get(ConfigMap, CONFIG_MAP, SPACE)).data["ca.crt"].encode()


async def test_replicas_share_one_certificate_that_clients_trust(client: Client) -> None:
    one, two = server_context(), server_context()
    await secret_certificate(client, one, Clock()).keep()
    await secret_certificate(client, two, Clock()).keep()
    authorities = await published(client)
    assert certificate_of(one, authorities) == certificate_of(two, authorities)
    with pytest.raises(ssl.SSLError, match="Hostname"):
        certificate_of(one, authorities, "elsewhere")


async def test_certificate_is_renewed_before_its_end_and_stays_trusted(client: Client) -> None:
    context, clock = server_context(), Clock()
    kept = secret_certificate(client, context, clock)
    await kept.keep()
    first, authorities = certificate_of(context, await published(client)), await published(client)
    await kept.keep()
    assert certificate_of(context, authorities) == first
    clock.now = time.time() + LIFETIME.total_seconds() * 0.7
    await kept.keep()
    assert certificate_of(context, authorities)["serialNumber"] != first["serialNumber"]


async def test_config_map_that_was_changed_is_mended_and_keeps_other_keys(client: Client) -> None:
    kept = secret_certificate(client, server_context(), Clock())
    await kept.keep()
    authorities = await published(client)
    await client.patch(ConfigMap, CONFIG_MAP, {"data": {"ca.crt": "x", "other": "y"}}, namespace=SPACE)
    await kept.keep()
    assert await published(client) == authorities
    assert (await client.get(ConfigMap, CONFIG_MAP, SPACE)).data["other"] == "y"


async def test_secret_is_kept_for_another_program_without_a_context(client: Client) -> None:
    await secret_certificate(client, None, Clock()).keep()
    assert {"tls.crt", "tls.key", "ca.crt", "ca.key"} <= (await client.get(Secret, SECRET, SPACE)).data.keys()


async def test_missing_right_is_reported_until_the_certificate_is_there(client: Client) -> None:
    async def refused(*_: object) -> Secret:
        raise Forbidden(403, "Forbidden", "secrets is forbidden")

    kept = SecretCertificate(client, SPACE, SECRET, CONFIG_MAP, [HOST], None, look_s=0.001, labels={})
    good, kept._secret.good = kept._secret.good, refused  # type: ignore[method-assign]
    assert kept.not_ready() == "no certificate yet"
    task = asyncio.create_task(kept.run())
    try:
        await until("the error is reported", lambda: kept.not_ready() == "no certificate: secrets is forbidden")
        kept._secret.good = good  # type: ignore[method-assign]
        await until("the certificate is kept", lambda: kept.not_ready() is None)
    finally:
        task.cancel()
        await asyncio.wait([task])


def test_pair_that_does_not_match_leaves_the_present_certificate() -> None:
    authority, context = CertificateAuthority.create(), server_context()
    pair, other = (authority.issue_server("x", [HOST]) for _ in range(2))
    load_pair(context, pair)
    first = certificate_of(context, authority.certificate)
    with pytest.raises(ValueError, match="cannot be used"):
        load_pair(context, KeyPair(other.certificate, pair.key))
    assert certificate_of(context, authority.certificate) == first

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from muster.kube.client import JSON_PATCH, STRATEGIC_MERGE_PATCH, Client
from muster.kube.connection.config import ClusterConfig
from muster.kube.connection.credentials import StaticToken
from muster.kube.errors import AlreadyExists, Conflict, Invalid, NotFound, Unauthorized
from muster.kube.metrics import KubeMetrics
from muster.kube.objects.affinity import (
    Affinity,
    LabelSelector,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PodAffinity,
    PodAffinityTerm,
    PreferredSchedulingTerm,
    Toleration,
    TopologySpreadConstraint,
    WeightedPodAffinityTerm,
)
from muster.kube.objects.auth import (
    BoundObjectReference,
    TokenRequest,
    TokenRequestSpec,
    TokenReview,
    TokenReviewSpec,
)
from muster.kube.objects.container import (
    Container,
    ContainerPort,
    EnvFromSource,
    EnvSource,
    EnvVar,
    EnvVarSource,
    ExecAction,
    HTTPGetAction,
    HTTPHeader,
    KeySelector,
    Lifecycle,
    LifecycleHandler,
    Probe,
    ResourceRequirements,
    SecurityContext,
    TCPSocketAction,
)
from muster.kube.objects.coordination import Lease, LeaseSpec
from muster.kube.objects.core import (
    ConfigMap,
    Secret,
    ServiceAccount,
)
from muster.kube.objects.meta import KubeObject, ObjectMeta
from muster.kube.objects.node import Node, NodeSpec, Taint
from muster.kube.objects.pod import Pod, PodSchedulingGate, PodSecurityContext, PodSpec
from muster.kube.objects.quantity import canonical_quantity
from muster.kube.objects.scheduling import PriorityClass
from muster.kube.objects.selectors import parse_selector
from muster.kube.objects.storage import (
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeSpec,
    VolumeNodeAffinity,
)
from muster.kube.objects.struct import encode
from muster.kube.objects.volume import (
    ConfigMapVolumeSource,
    DownwardAPIVolumeFile,
    DownwardAPIVolumeSource,
    EmptyDirVolumeSource,
    HostPathVolumeSource,
    KeyToPath,
    ObjectFieldSelector,
    PersistentVolumeClaimVolumeSource,
    ProjectedVolumeSource,
    ResourceFieldSelector,
    SecretProjection,
    SecretVolumeSource,
    ServiceAccountTokenProjection,
    Volume,
    VolumeMount,
    VolumeProjection,
)

UID_FIELD = ObjectFieldSelector(field_path="metadata.uid")
ZONE = NodeSelectorTerm(match_expressions=(NodeSelectorRequirement(key="zone", operator="In", values=("a",)),))
LABELLED = LabelSelector(match_labels={"app": "x"})

FULL_POD = PodSpec(
    containers=(
        Container(
            name="main",
            image="busybox",
            command=("sleep",),
            args=("1",),
            working_dir="/work",
            ports=(ContainerPort(container_port=80, name="web"),),
            env=(
                EnvVar(name="A", value="1"),
                EnvVar(name="UID", value_from=EnvVarSource(field_ref=UID_FIELD)),
                EnvVar(
                    name="CPU", value_from=EnvVarSource(resource_field_ref=ResourceFieldSelector(resource="limits.cpu"))
                ),
                EnvVar(
                    name="C", value_from=EnvVarSource(config_map_key_ref=KeySelector(name="c", key="k", optional=True))
                ),
                EnvVar(name="S", value_from=EnvVarSource(secret_key_ref=KeySelector(name="s", key="k"))),
            ),
            env_from=(
                EnvFromSource(prefix="P_", config_map_ref=EnvSource(name="c")),
                EnvFromSource(secret_ref=EnvSource(name="s")),
            ),
            resources=ResourceRequirements(
                limits={"cpu": 2, "nvidia.com/gpu": "8"}, requests={"cpu": "500m", "memory": "1.5Gi"}
            ),
            volume_mounts=(
                VolumeMount(name="empty", mount_path="/work", sub_path="a"),
                VolumeMount(name="token", mount_path="/t", read_only=True),
            ),
            liveness_probe=Probe(
                http_get=HTTPGetAction(port="web", path="/", http_headers=(HTTPHeader(name="X", value="1"),)),
                period_seconds=5,
            ),
            readiness_probe=Probe(tcp_socket=TCPSocketAction(port=80), failure_threshold=2),
            startup_probe=Probe(exec=ExecAction(command=("true",)), initial_delay_seconds=1, timeout_seconds=2),
            lifecycle=Lifecycle(pre_stop=LifecycleHandler(exec=ExecAction(command=("true",)))),
            security_context=SecurityContext(run_as_user=0, run_as_group=0),
            termination_message_policy="FallbackToLogsOnError",
        ),
    ),
    init_containers=(
        Container(name="install", image="busybox"),
        Container(name="side", image="busybox", restart_policy="Always"),
    ),
    volumes=(
        Volume(
            name="config",
            config_map=ConfigMapVolumeSource(
                name="c", items=(KeyToPath(key="k", path="p", mode=0o400),), default_mode=0o644
            ),
        ),
        Volume(name="secret", secret=SecretVolumeSource(secret_name="s", optional=True)),
        Volume(name="empty", empty_dir=EmptyDirVolumeSource(medium="Memory")),
        Volume(name="host", host_path=HostPathVolumeSource(path="/dev", type="Directory")),
        Volume(name="claim", persistent_volume_claim=PersistentVolumeClaimVolumeSource(claim_name="pvc")),
        Volume(
            name="down",
            downward_api=DownwardAPIVolumeSource(items=(DownwardAPIVolumeFile(path="uid", field_ref=UID_FIELD),)),
        ),
        Volume(
            name="token",
            projected=ProjectedVolumeSource(
                sources=(
                    VolumeProjection(
                        service_account_token=ServiceAccountTokenProjection(
                            path="token", audience="muster.dev", expiration_seconds=3600
                        )
                    ),
                    VolumeProjection(config_map=ConfigMapVolumeSource(name="c")),
                    VolumeProjection(secret=SecretProjection(name="s")),
                    VolumeProjection(
                        downward_api=DownwardAPIVolumeSource(
                            items=(DownwardAPIVolumeFile(path="u", field_ref=UID_FIELD),)
                        )
                    ),
                )
            ),
        ),
    ),
    node_selector={"pool": "a"},
    affinity=Affinity(
        node_affinity=NodeAffinity(
            required_during_scheduling_ignored_during_execution=NodeSelector(node_selector_terms=(ZONE,)),
            preferred_during_scheduling_ignored_during_execution=(PreferredSchedulingTerm(weight=5, preference=ZONE),),
        ),
        pod_affinity=PodAffinity(
            preferred_during_scheduling_ignored_during_execution=(
                WeightedPodAffinityTerm(
                    weight=1, pod_affinity_term=PodAffinityTerm(topology_key="zone", label_selector=LABELLED)
                ),
            )
        ),
        pod_anti_affinity=PodAffinity(
            required_during_scheduling_ignored_during_execution=(
                PodAffinityTerm(topology_key="kubernetes.io/hostname", label_selector=LABELLED),
            )
        ),
    ),
    tolerations=(Toleration(key="gpu", operator="Exists", effect="NoExecute"),),
    topology_spread_constraints=(
        TopologySpreadConstraint(
            max_skew=1, topology_key="zone", when_unsatisfiable="ScheduleAnyway", label_selector=LABELLED
        ),
    ),
    scheduler_name="muster",
    scheduling_gates=(PodSchedulingGate(name="example.dev/hold"),),
    restart_policy="Never",
    termination_grace_period_seconds=0,
    service_account_name="default",
    hostname="h",
    security_context=PodSecurityContext(fs_group=0, supplemental_groups=(1,)),
)


def objects(namespace: str) -> list[KubeObject]:
    def meta(name: str) -> ObjectMeta:
        return ObjectMeta(name=name, namespace=namespace, labels={"a": "b"}, annotations={"c": "d"})

    return [
        Pod(metadata=meta("pod"), spec=FULL_POD),
        Node(
            metadata=ObjectMeta(name="n"),
            spec=NodeSpec(taints=(Taint(key="k", effect="NoSchedule"),), provider_id="x://n"),
        ),
        ConfigMap(metadata=meta("c"), data={"k": "v"}, binary_data={"b": b"\x00\xff"}, immutable=True),
        Secret(metadata=meta("s"), data={"k": b"\x00"}, string_data={"t": "u"}, type="Opaque"),
        ServiceAccount(metadata=meta("sa")),
        Lease(metadata=meta("l"), spec=LeaseSpec(holder_identity="me", lease_duration_seconds=15)),
        PriorityClass(metadata=ObjectMeta(name="p"), value=1000, preemption_policy="Never", description="d"),
        PersistentVolume(
            metadata=ObjectMeta(name="pv"),
            spec=PersistentVolumeSpec(
                capacity={"storage": "1Gi"},
                access_modes=("ReadWriteOnce",),
                host_path=HostPathVolumeSource(path="/x"),
                node_affinity=VolumeNodeAffinity(required=NodeSelector(node_selector_terms=(ZONE,))),
                storage_class_name="local",
            ),
        ),
        PersistentVolumeClaim(
            metadata=meta("pvc"),
            spec=PersistentVolumeClaimSpec(
                access_modes=("ReadWriteOnce",),
                storage_class_name="",
                resources=ResourceRequirements(requests={"storage": "1Gi"}),
            ),
        ),
    ]


async def test_writes_pass_strict_field_validation_of_the_server(
    client: Client, namespace: str, embedded: bool
) -> None:
    """A misspelt field would be refused."""
    for obj in objects(namespace):
        if embedded and isinstance(obj, PersistentVolume | PersistentVolumeClaim):
            continue
        path = obj.RESOURCE.path(namespace if obj.namespace else None)
        await client.request("POST", path, params={"fieldValidation": "Strict", "dryRun": "All"}, body=encode(obj))


async def test_a_pod_comes_back_as_it_was_sent(client: Client, namespace: str) -> None:
    sent = Pod(metadata=ObjectMeta(name="pod", namespace=namespace), spec=FULL_POD)
    made = await client.create(sent)
    for name in FULL_POD.__struct_fields__:
        mine, theirs = getattr(sent.spec, name), getattr(made.spec, name)
        if name in ("tolerations", "containers", "init_containers", "volumes"):
            assert [m.name if hasattr(m, "name") else m.key for m in mine] == [
                m.name if hasattr(m, "name") else m.key for m in theirs
            ][: len(mine)]
        elif mine:
            assert theirs == mine, name
    assert made.spec.containers[0].resources == ResourceRequirements(
        limits={"cpu": "2", "nvidia.com/gpu": "8"},
        requests={"cpu": "500m", "memory": "1536Mi", "nvidia.com/gpu": "8"},
    )
    assert (await client.get(Pod, "pod", namespace)).uid == made.uid
    await client.delete(Pod, "pod", namespace=namespace, grace_s=0)


async def test_quantities_are_written_as_the_server_writes_them(client: Client, namespace: str, embedded: bool) -> None:
    if embedded:
        pytest.skip("the embedded server serves no kind that holds any quantity; LimitRange does")
    rng = random.Random(20240501)
    suffixes = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "e3", "E2", "e-3"]
    texts = ["0", "1.", ".5", "+3", "1000Ki", "1024", "1.5Gi", "0.1", "8Ei", "1E", "1e3", "0.5n", "00012", "0.0001Ki"]
    for suffix in suffixes:
        texts += [f"{rng.randrange(10 ** rng.randrange(1, 7))}{suffix}" for _ in range(6)]
        texts += [f"{rng.randrange(1000)}.{rng.randrange(1000)}{suffix}" for _ in range(6)]
    limits: dict[str, Any] = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "l"}}
    stored = {}
    for text in texts:
        limits["spec"] = {"limits": [{"type": "Container", "max": {"cpu": text}}]}
        answer = await client.create(limits, namespace=namespace, dry_run=True)
        stored[text] = answer["spec"]["limits"][0]["max"]["cpu"]
    assert stored == {text: canonical_quantity(text, finest_exponent=-3) for text in texts}


async def test_selectors_select_what_the_server_selects(client: Client, namespace: str) -> None:
    rng = random.Random(7)
    labels = [{key: rng.choice("xyz") for key in "abc" if rng.random() < 0.6} for _ in range(12)]
    for number, chosen in enumerate(labels):
        await client.create(ConfigMap(metadata=ObjectMeta(name=f"c{number}", namespace=namespace, labels=chosen)))
    ours = "kube-root-ca.crt"
    for text in ("a=x", "a!=x", "a", "!a", "a in (x,y),b", "a notin (x,y)", "a=x,b!=y,!c", "a==z, c in (x)", "b!="):
        listed = await client.list(ConfigMap, namespace, label_selector=text)
        selector = parse_selector(text)
        expected = {f"c{number}" for number, chosen in enumerate(labels) if selector.matches(chosen)}
        assert {obj.name for obj in listed.items} - {ours} == expected, text
    named = await client.list(ConfigMap, namespace, field_selector="metadata.name=c3")
    assert [obj.name for obj in named.items] == ["c3"]


async def test_preconditions_and_errors(client: Client, namespace: str) -> None:
    first = await client.create(ConfigMap(metadata=ObjectMeta(name="a"), data={"k": "1"}), namespace=namespace)
    with pytest.raises(AlreadyExists):
        await client.create(ConfigMap(metadata=ObjectMeta(name="a", namespace=namespace)))
    second = await client.replace(ConfigMap(metadata=first.metadata, data={"k": "2"}))
    with pytest.raises(Conflict):
        await client.replace(ConfigMap(metadata=first.metadata, data={"k": "3"}))
    with pytest.raises(Conflict):
        await client.delete(ConfigMap, "a", namespace=namespace, uid="another")
    with pytest.raises(Conflict):
        await client.delete(ConfigMap, "a", namespace=namespace, resource_version=first.metadata.resource_version)
    await client.delete(ConfigMap, "a", namespace=namespace, uid=second.uid)
    with pytest.raises(NotFound):
        await client.get(ConfigMap, "a", namespace)
    with pytest.raises(Invalid, match="name"):
        await client.create(ConfigMap(metadata=ObjectMeta(name="Not A Name", namespace=namespace)))


async def test_every_kind_of_patch(client: Client, namespace: str) -> None:
    await client.create(ConfigMap(metadata=ObjectMeta(name="a", namespace=namespace), data={"k": "1"}))
    merged = await client.patch(ConfigMap, "a", {"data": {"m": "2"}}, namespace=namespace)
    assert merged.data == {"k": "1", "m": "2"}
    operations = [{"op": "test", "path": "/data/k", "value": "1"}, {"op": "remove", "path": "/data/k"}]
    assert (await client.patch(ConfigMap, "a", operations, namespace=namespace, content_type=JSON_PATCH)).data == {
        "m": "2"
    }
    with pytest.raises(Invalid):  # the test no longer holds
        await client.patch(ConfigMap, "a", operations, namespace=namespace, content_type=JSON_PATCH)
    strategic = await client.patch(
        ConfigMap, "a", {"data": {"s": "3"}}, namespace=namespace, content_type=STRATEGIC_MERGE_PATCH
    )
    assert strategic.data == {"m": "2", "s": "3"}


async def test_binding_checks_the_uid_and_is_final(client: Client, namespace: str) -> None:
    container = Container(name="c", image="i")
    pod = await client.create(
        Pod(
            metadata=ObjectMeta(name="p", namespace=namespace),
            spec=PodSpec(containers=(container,), scheduler_name="muster", termination_grace_period_seconds=0),
        )
    )
    with pytest.raises(Conflict):
        await client.bind("p", "n1", namespace=namespace, uid="another")
    await client.bind("p", "n1", namespace=namespace, uid=pod.uid)
    assert (await client.get(Pod, "p", namespace)).spec.node_name == "n1"
    with pytest.raises(Conflict):
        await client.bind("p", "n2", namespace=namespace, uid=pod.uid)
    await client.evict("p", namespace=namespace, uid=pod.uid)
    with pytest.raises(NotFound):
        await client.get(Pod, "p", namespace)


async def test_self_subject_reviews_return_the_user(client: Client, namespace: str, metrics: KubeMetrics) -> None:
    await client.create(ServiceAccount(metadata=ObjectMeta(name="worker", namespace=namespace)))
    pod = await client.create(
        Pod(
            metadata=ObjectMeta(name="p", namespace=namespace),
            spec=PodSpec(
                containers=(Container(name="c", image="i"),), service_account_name="worker", scheduler_name="none"
            ),
        )
    )
    bound = BoundObjectReference(kind="Pod", api_version="v1", name="p", uid=pod.uid)
    request = TokenRequest(
        spec=TokenRequestSpec(audiences=("muster.dev",), expiration_seconds=600, bound_object_ref=bound)
    )
    token = (await client.create_token("worker", request, namespace=namespace)).status.token
    spec = TokenReviewSpec(token=token, audiences=("muster.dev",))
    review = await client.create(TokenReview(spec=spec))
    assert review.status.authenticated
    assert review.status.user.username == f"system:serviceaccount:{namespace}:worker"
    assert review.status.user.extra["authentication.kubernetes.io/pod-name"] == ("p",)
    assert review.status.user.extra["authentication.kubernetes.io/pod-uid"] == (pod.uid,)
    await client.delete(Pod, "p", namespace=namespace, grace_s=0)


async def test_credentials_that_are_not_accepted(cluster_config: ClusterConfig, metrics: KubeMetrics) -> None:
    stranger = dataclasses.replace(
        cluster_config, credentials=StaticToken("wrong"), client_certificate=b"", client_key=b""
    )
    async with Client(stranger, metrics=metrics) as client:
        with pytest.raises(Unauthorized, match="missing, wrong or expired"):
            await client.list(Pod)

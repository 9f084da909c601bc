"""Auto Scaling groups of moto's server, through boto3, and a cloud between them that throttles, lies and hangs."""

from __future__ import annotations

import http.client
import http.server
import sys
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import boto3
import pytest

from muster.fleet.providers.aws import AutoScalingGroups
from muster.fleet.providers.base import ProviderError
from muster.fleet.scaling.snapshot import Fault, PoolSpec, Template
from tests.support.awsserver import CREDENTIALS, aws_server
from tests.support.waiting import TIMEOUT_S, until

pytestmark = [pytest.mark.slow]

GROUP = "asg-h100"
POOL = PoolSpec("h100", "aws", GROUP, 0, 8, 1.0, Template({}, (), {"pods": 110}), {"region": "us-east-1"})
NAMESPACE = "http://autoscaling.amazonaws.com/doc/2011-01-01/"
SPOT = "Could not launch Spot Instances. InsufficientInstanceCapacity - There is no Spot capacity available"


class Weather(http.server.ThreadingHTTPServer):
    """Hands requests on, less what `instead` answers: by action, (code, body), or None for no answer at all."""

    daemon_threads = True

    def __init__(self, behind: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind = urlsplit(behind)
        self.instead: dict[str, tuple[int, str] | None] = {}
        self.asked: list[str] = []
        self.over = threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Weather

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        action = parse_qs(body.decode())["Action"][0]
        self.server.asked.append(action)
        if action not in self.server.instead:
            behind = self.server.behind
            onward = http.client.HTTPConnection(behind.hostname or "", behind.port, timeout=30)
            onward.request("POST", "/", body, dict(self.headers))
            answer = onward.getresponse()
            code, text = answer.status, answer.read()
            onward.close()
        else:
            instead = self.server.instead[action]
            if instead is None:
                self.server.over.wait(30)
                return
            code, text = instead[0], instead[1].encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/xml")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: pytest shows what failed."""


def refusal(code: str, message: str) -> tuple[int, str]:
    error = f"<Error><Type>Sender</Type><Code>{code}</Code><Message>{message}</Message></Error>"
    return 400, f'<ErrorResponse xmlns="{NAMESPACE}">{error}<RequestId>r</RequestId></ErrorResponse>'


def activities(*found: tuple[str, str, str]) -> tuple[int, str]:
    """(status, start, message) of launches, newest first."""
    members = "".join(
        f"<member><ActivityId>{number}</ActivityId><AutoScalingGroupName>{GROUP}</AutoScalingGroupName>"
        f"<Description>Launching a new EC2 instance.  Status Reason: {message}</Description><Cause>c</Cause>"
        f"<StartTime>{start}</StartTime><StatusCode>{status}</StatusCode><StatusMessage>{message}</StatusMessage></member>"
        for number, (status, start, message) in enumerate(found)
    )
    result = f"<DescribeScalingActivitiesResult><Activities>{members}</Activities></DescribeScalingActivitiesResult>"
    return (
        200,
        f'<DescribeScalingActivitiesResponse xmlns="{NAMESPACE}">{result}</DescribeScalingActivitiesResponse>',
    )


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with aws_server(tmp_path_factory.mktemp("moto")) as address:
        yield address


@pytest.fixture
def weather(cloud: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Weather]:
    """A fresh group, and the way to it in the environment, as a pod has it."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    server = Weather(cloud)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.address)
    direct = client(cloud)
    direct.create_launch_configuration(LaunchConfigurationName="lc", ImageId="ami-12c6146b", InstanceType="p5.48xlarge")
    direct.create_auto_scaling_group(
        AutoScalingGroupName=GROUP,
        LaunchConfigurationName="lc",
        MinSize=0,
        MaxSize=5,
        DesiredCapacity=1,
        AvailabilityZones=["us-east-1a"],
        NewInstancesProtectedFromScaleIn=True,
    )
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        thread.join(TIMEOUT_S)
        server.server_close()
        direct.delete_auto_scaling_group(AutoScalingGroupName=GROUP, ForceDelete=True)
        direct.delete_launch_configuration(LaunchConfigurationName="lc")


def client(address: str) -> Any:
    return boto3.client(
        "autoscaling",
        endpoint_url=address,
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
    )


@pytest.fixture
async def groups(weather: Weather) -> Any:
    made = AutoScalingGroups(timeout_s=60.0, read_s=30.0)
    yield made
    await made.close()


async def fault(work: Any) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await work
    return caught.value


async def test_sizes_instances_and_deletions(groups: AutoScalingGroups) -> None:
    group = await groups.look(POOL)
    assert (group.size, group.floor, group.ceiling, len(group.instances)) == (1, 0, 5, 1)
    await groups.set_size(POOL, 3)
    await groups.set_size(POOL, 3)
    group = await groups.look(POOL)
    assert group.size == 3
    ids = [each.id for each in group.instances if not each.terminating]
    assert len(ids) == 3
    assert all(each.startswith("i-") for each in ids)
    await groups.delete(POOL, ids[0], replace=False)
    group = await groups.look(POOL)
    assert group.size == 2
    assert {each.id for each in group.instances if not each.terminating} == set(ids[1:])
    await groups.delete(POOL, ids[1], replace=True)
    group = await groups.look(POOL)
    left = {each.id for each in group.instances if not each.terminating}
    assert group.size == 2
    assert len(left) == 2
    assert ids[1] not in left


async def test_missing_instance_counts_as_deleted(groups: AutoScalingGroups, weather: Weather) -> None:
    words = "Instance Id not found - No managed instance found for instance ID: i-1"
    weather.instead["TerminateInstanceInAutoScalingGroup"] = refusal("ValidationError", words)
    await groups.delete(POOL, "i-1", replace=False)
    weather.instead["TerminateInstanceInAutoScalingGroup"] = refusal("ValidationError", "below its least size")
    assert (await fault(groups.delete(POOL, "i-1", replace=False))).fault is Fault.MISCONFIGURED


async def test_a_group_that_may_take_any_instance_is_not_used(groups: AutoScalingGroups, cloud: str) -> None:
    client(cloud).update_auto_scaling_group(AutoScalingGroupName=GROUP, NewInstancesProtectedFromScaleIn=False)
    error = await fault(groups.look(POOL))
    assert error.fault is Fault.MISCONFIGURED
    assert "not protected from scale-in" in error.message


async def test_a_group_that_does_not_exist(groups: AutoScalingGroups) -> None:
    other = PoolSpec("x", "aws", "nowhere", 0, 1, 1.0, POOL.template, POOL.options)
    error = await fault(groups.look(other))
    assert (error.fault, error.message) == (Fault.MISCONFIGURED, "there is no Auto Scaling group nowhere")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (SPOT, Fault.NO_CAPACITY),
        ("We currently do not have sufficient p5.48xlarge capacity in the zone you requested", Fault.NO_CAPACITY),
        ("You have requested more instances (7) than your current instance limit of 6 allows", Fault.QUOTA),
        ("VcpuLimitExceeded: You have requested more vCPU capacity than your current limit", Fault.QUOTA),
        ("The image id '[ami-1]' does not exist", Fault.MISCONFIGURED),
    ],
)
async def test_failed_launch_reports_its_reason(
    groups: AutoScalingGroups, weather: Weather, message: str, expected: Fault
) -> None:
    """kubernetes/autoscaler#3241: setting a size succeeds, and only the activities say that nothing comes of it."""
    assert (await groups.look(POOL)).failure is None
    assert "DescribeScalingActivities" not in weather.asked, "it is only asked where something is missing"
    weather.instead["DescribeAutoScalingGroups"] = missing_one()
    weather.instead["DescribeScalingActivities"] = activities(
        ("Failed", "2026-01-02T03:04:05Z", message), ("Successful", "2026-01-02T03:00:00Z", "")
    )
    failure = (await groups.look(POOL)).failure
    assert failure is not None
    assert (failure.fault, failure.message) == (expected, message)
    assert failure.at == 1767323045.0
    weather.instead["DescribeScalingActivities"] = activities(
        ("InProgress", "2026-01-02T03:09:00Z", ""),
        ("Successful", "2026-01-02T03:08:00Z", ""),
        ("Failed", "2026-01-02T03:04:05Z", message),
    )
    assert (await groups.look(POOL)).failure is None, "what has succeeded since counts"


def missing_one() -> tuple[int, str]:
    """A group of two with one instance, and one that is on its way out."""
    instances = "".join(
        f"<member><InstanceId>{name}</InstanceId><AvailabilityZone>us-east-1a</AvailabilityZone>"
        f"<LifecycleState>{state}</LifecycleState><HealthStatus>Healthy</HealthStatus>"
        "<ProtectedFromScaleIn>true</ProtectedFromScaleIn></member>"
        for name, state in (("i-1", "InService"), ("i-2", "Terminating:Wait"), ("i-3", "Warmed:Stopped"))
    )
    group = (
        f"<member><AutoScalingGroupName>{GROUP}</AutoScalingGroupName><MinSize>0</MinSize><MaxSize>5</MaxSize>"
        f"<DesiredCapacity>2</DesiredCapacity><DefaultCooldown>300</DefaultCooldown><Instances>{instances}</Instances>"
        "<AvailabilityZones><member>us-east-1a</member></AvailabilityZones><HealthCheckType>EC2</HealthCheckType>"
        "<CreatedTime>2026-01-01T00:00:00Z</CreatedTime>"
        "<NewInstancesProtectedFromScaleIn>true</NewInstancesProtectedFromScaleIn></member>"
    )
    found = f"<AutoScalingGroups>{group}</AutoScalingGroups>"
    result = f"<DescribeAutoScalingGroupsResult>{found}</DescribeAutoScalingGroupsResult>"
    return 200, f'<DescribeAutoScalingGroupsResponse xmlns="{NAMESPACE}">{result}</DescribeAutoScalingGroupsResponse>'


async def test_terminating_and_warm_pool_instances_are_distinguished(
    groups: AutoScalingGroups, weather: Weather
) -> None:
    weather.instead["DescribeAutoScalingGroups"] = missing_one()
    group = await groups.look(POOL)
    assert [(each.id, each.terminating) for each in group.instances] == [("i-1", False), ("i-2", True)]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (refusal("Throttling", "Rate exceeded"), Fault.THROTTLED),
        (refusal("AccessDenied", "User is not authorized to perform: autoscaling:SetDesiredCapacity"), Fault.DENIED),
        (refusal("ExpiredToken", "The security token included in the request is expired"), Fault.DENIED),
        (refusal("ValidationError", "New SetDesiredCapacity value 9 is above max value 5"), Fault.MISCONFIGURED),
        (refusal("ScalingActivityInProgress", "Scaling activity is in progress"), Fault.UNAVAILABLE),
        ((500, "<html>oops</html>"), Fault.UNAVAILABLE),
        ((200, "no XML"), Fault.UNAVAILABLE),
    ],
)
async def test_a_refusal_is_asked_for_once_and_says_why(
    groups: AutoScalingGroups, weather: Weather, answer: tuple[int, str], expected: Fault
) -> None:
    weather.instead["SetDesiredCapacity"] = answer
    error = await fault(groups.set_size(POOL, 2))
    assert error.fault is expected
    assert error.message.startswith("set_desired_capacity: ")
    assert weather.asked.count("SetDesiredCapacity") == 1, "who repeats it, and when, is decided elsewhere"
    assert "secret" not in error.message


async def test_a_service_that_does_not_answer_is_given_up(weather: Weather) -> None:
    hasty = AutoScalingGroups(timeout_s=60.0, read_s=0.2)
    weather.instead["SetDesiredCapacity"] = None
    error = await fault(hasty.set_size(POOL, 2))
    assert error.fault is Fault.TIMED_OUT
    assert error.message.startswith("set_desired_capacity: Read timeout")
    await until("the service has read the request", lambda: weather.asked)  # perhaps after the client gave up
    assert weather.asked == ["SetDesiredCapacity"]
    await hasty.close()


async def test_a_call_ends_at_its_deadline_whatever_boto3_does(weather: Weather) -> None:
    hasty = AutoScalingGroups(timeout_s=0.5, read_s=20.0)
    weather.instead["DescribeAutoScalingGroups"] = None
    error = await fault(hasty.look(POOL))
    assert error.fault is Fault.TIMED_OUT
    weather.over.set()
    await hasty.close()


async def test_unreachable_endpoint_is_an_error(groups: AutoScalingGroups, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert (await fault(groups.look(POOL))).fault is Fault.UNAVAILABLE


async def test_without_credentials(groups: AutoScalingGroups, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    assert (await fault(groups.look(POOL))).fault is Fault.DENIED


async def test_without_boto3(groups: AutoScalingGroups, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    error = await fault(groups.look(POOL))
    assert error.fault is Fault.MISCONFIGURED
    assert "pip install 'muster[aws]'" in error.message

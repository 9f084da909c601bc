"""What the pods of a job that borrows say."""

from __future__ import annotations

from typing import Any

import pytest

from muster.kube.objects.affinity import Toleration
from muster.kube.objects.node import Taint
from muster.kube.objects.pod import Pod
from muster.kube.objects.struct import from_dict
from muster.kube.objects.taints import find_untolerated_taint
from muster.trainingjobs.pods.pod import PodSettings, build_pod
from tests.unit.trainingjobs.world import make_job

KEY = "openai.com/team"
OWNED = (Taint(key=KEY, value="blue", effect="NoSchedule"), Taint(key=KEY, value="red", effect="NoSchedule"))


def made(**spec: Any) -> Pod:
    settings = PodSettings(url="https://x", ca_pem="", muster_image="muster", team_key=KEY)
    return from_dict(build_pod(make_job(2, **spec), 0, 1, (), settings), Pod)


def test_pods_of_a_borrower_go_to_nodes_of_every_team_and_say_so() -> None:
    pod = made(borrow=True)
    assert pod.metadata.labels["muster.dev/borrowed"] == "true"
    assert [find_untolerated_taint((taint,), pod.spec.tolerations) for taint in OWNED] == [None, None]
    assert pod.spec.affinity is None
    assert pod.spec.priority_class_name == "muster-borrower"
    assert all(each.key for each in pod.spec.tolerations), "a toleration without a key bears every taint there is"


def test_pods_of_others_do_not() -> None:
    pod = made()
    assert "muster.dev/borrowed" not in pod.metadata.labels
    assert [find_untolerated_taint((taint,), pod.spec.tolerations) for taint in OWNED] == list(OWNED)
    assert pod.spec.priority_class_name == ""


@pytest.mark.parametrize("borrow", [False, True])
def test_a_priority_class_that_is_named_stands(borrow: bool) -> None:
    assert made(borrow=borrow, priorityClassName="mine").spec.priority_class_name == "mine"


def test_tolerations_of_the_template_stay() -> None:
    pod = made(borrow=True, template={"spec": {"tolerations": [{"key": "x", "operator": "Exists"}]}})
    assert Toleration(key="x", operator="Exists") in pod.spec.tolerations

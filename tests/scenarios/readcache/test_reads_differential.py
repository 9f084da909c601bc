"""Issue 15: the read cache answers as a real kube-apiserver does.

`python -m tests.support.readdifferential` compares 100,000 requests.
"""

from __future__ import annotations

from muster.kube.connection.config import load_config
from tests.support.controlplane import RealCluster
from tests.support.readdifferential.run import Size, compare

SIZE = Size(changes=60, requests=400, watches=60, churn_s=3.0)


async def test_answers_are_the_same_on_a_quiet_cluster_and_under_churn(real_control_plane: RealCluster) -> None:
    quiet, churn = await compare(load_config(real_control_plane.kubeconfig), SIZE, seed=15)
    assert not quiet.differences, str(quiet)
    for answered in ("read 200", "read 404", "read 422", "read 400", "watch 200", "watch 422"):
        assert quiet.statuses[answered], f"the requests cover no {answered}: {quiet}"
    assert quiet.bookmarks, str(quiet)
    assert not churn.differences, str(churn)
    assert churn.statuses["watch 200"] >= 30, str(churn)
    assert churn.statuses["read 200"] >= 50, str(churn)

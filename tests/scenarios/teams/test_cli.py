"""`muster teams`, `muster capacity` and `muster nodes why` on both API servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from muster.cli.errors import ExitCode
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from tests.scenarios.teams.conftest import Typed
from tests.support.teamclusters import SELECTOR, TeamCluster


async def test_owners_of_nodes_are_listed_with_reasons(cluster: TeamCluster, typed: Typed) -> None:
    names = await cluster.add_nodes(5)
    await cluster.configure(vision=2, speech=1)
    cluster.manage()
    await cluster.until_owned(vision=2, speech=1)
    found = await typed.json("teams")
    pool = f"{SELECTOR}={cluster.pool}"
    owned = {each["team"]: (each["entitled"], each["owned"], each["healthy"]) for each in found["teams"]}
    assert owned == {"vision": (2, 2, 2), "speech": (1, 1, 1), "": (2, 2, 2)}
    assert {each["reason"] for each in found["cautions"]} == {"UnknownTeam"}
    table = (await typed.ok("teams")).splitlines()
    assert table[0].split()[:4] == ["TEAM", "POOL", "ASKED", "ENTITLED"]
    assert table[1].split()[:5] == ["vision", pool, "2", "2", "2"]
    why = await typed.json("nodes", "why", names[0])
    assert (why["team"], why["pool"], why["by"]) == ("vision", pool, "manager-0")
    assert why["why"] == f"vision is entitled to 2 nodes of {pool}"
    assert why["since"]
    assert f"{names[0]} belongs to team vision since" in await typed.ok("nodes", "why", names[0])
    assert "no allocation has taken it" in await typed.ok("nodes", "why", names[4])
    (capacity,) = [each for each in (await typed.json("capacity"))["pools"] if each["pool"] == pool]
    assert (capacity["nodes"], capacity["owned"], capacity["rest"], capacity["idle"]) == (5, 3, 2, 5)
    assert pool in await typed.ok("capacity")


async def test_preview_of_a_configuration_equals_its_changes(
    cluster: TeamCluster, typed: Typed, tmp_path: Path
) -> None:
    names = await cluster.add_nodes(3)
    await cluster.configure(vision=3)
    cluster.manage()
    await cluster.until_owned(vision=3)
    for name in (names[0], names[1]):
        spec: dict[str, Any] = {"schedulerName": "muster", "nodeName": name, "tolerations": [{"operator": "Exists"}]}
        spec["containers"] = [{"name": "c", "image": "none"}]
        meta = {"name": f"on-{name}", "labels": {"muster.dev/gang": "train"}}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
        await cluster.client.create(pod, namespace=cluster.namespace)
    new = tmp_path / "new.yaml"
    selector = f"{{{SELECTOR}: {cluster.pool!r}}}"
    new.write_text(
        f"teamKey: {cluster.key}\nallocations:\n- {{nodeSelector: {selector}, team: speech, amount: 2}}\n"
        f"- {{nodeSelector: {selector}, team: vision, amount: 1}}\n"
    )
    found = await typed.json("teams", "plan", "-f", str(new))
    said = {each["node"]: (each["from"], each["to"], each["when"]) for each in found["changes"]}
    gang = f"after {cluster.namespace}/train"
    assert said == {names[2]: ("vision", "speech", "now"), names[0]: ("vision", "speech", gang)}
    assert await cluster.owners() == {"vision": 3}, "planning changed something"
    await cluster.configure_text(new.read_text())
    await cluster.until_owned(vision=2, speech=1)
    assert (await cluster.nodes())[names[2]].metadata.labels[cluster.key] == "speech"
    await cluster.client.delete(Pod, f"on-{names[0]}", namespace=cluster.namespace, grace_s=0)
    await cluster.until_owned(vision=1, speech=2)
    code, out, err = await typed.fails("teams", "plan", "-f", str(new))
    assert (code, out) == (0, "")
    assert "no node would change hands" in err


async def test_missing_objects_have_their_exit_code(cluster: TeamCluster, typed: Typed) -> None:
    code, out, err = await typed.fails("nodes", "why", "no-such-node")
    assert (code, out) == (ExitCode.NOT_FOUND, "")
    assert "no node 'no-such-node'" in err
    code, out, err = await typed.fails("teams")
    assert (code, out) == (0, "")
    assert "there is no ConfigMap muster-teams" in err
    assert "owned now: no node" in err
    assert "muster teams plan -f FILE shows what a file would change" in err
    code, out, err = await typed.fails("teams", "-o", "json", "plan", "-f", "none.yaml")
    assert (code, out) == (ExitCode.BAD_INPUT, "")
    assert "write them after 'plan'" in err


async def test_a_node_by_hand_says_so(cluster: TeamCluster, typed: Typed) -> None:
    (name,) = await cluster.add_nodes(1)
    await cluster.client.patch(Node, name, {"metadata": {"labels": {cluster.key: "music"}}})
    await cluster.configure(vision=1)
    assert "its label was set by hand" in await typed.ok("nodes", "why", name)
    assert "SetByHand" in (await typed.fails("teams"))[2]

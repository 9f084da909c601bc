"""What users of others ran into, in the same situation here; docs/upstream.md."""

from __future__ import annotations

from muster.api.names import HEALTH_POLICY_KEY
from tests.scenarios.remediation.conftest import Ward
from tests.scenarios.remediation.test_remediation import POLICY, QUARANTINE, REBOOT
from tests.support.anyserver import BY_REMEDIATION
from tests.support.waiting import until


async def rebooted(ward: Ward, node: str, times: int = 1) -> None:
    """The node has been through a reboot, and remediation knows."""

    async def seen() -> bool:
        session = await ward.session(node)
        reasons = [step.reason for step in session.status.history] if session is not None else []
        return reasons.count("booted") == times

    await until("the boot is seen", seen)


async def given_back(ward: Ward, node: str) -> None:
    await ward.tests(node)
    await ward.until_rung(node, "Released")
    await ward.until_out_of_use()


@BY_REMEDIATION
async def test_an_ended_session_is_not_taken_up_again_after_a_restart_1347(ward: Ward) -> None:
    """NVSentinel: a restarted drainer works on faults of ended quarantines. Ours: the ended session says it all."""
    node, other = await ward.add_nodes(2)
    await ward.configure(**{HEALTH_POLICY_KEY: POLICY})
    ward.start()
    await ward.finds(node, REBOOT)
    await rebooted(ward, node)
    await given_back(ward, node)
    await ward.add_pod("new-work", node)
    await ward.stop()
    ward.start()
    await ward.finds(other, QUARANTINE)
    await ward.until_out_of_use(other)  # it has looked at everything
    assert await ward.rung(node) == "Released"
    assert await ward.pods_on(node) == {"new-work"}
    assert ward.rebooted == [node]


@BY_REMEDIATION
async def test_a_fault_that_came_during_quarantine_drains_nothing_after_it_1415(ward: Ward) -> None:
    """NVSentinel: a fault seen meanwhile is drained for after the release. Ours: a pass clears what came before it."""
    node, other = await ward.add_nodes(2)
    await ward.configure(**{HEALTH_POLICY_KEY: POLICY})
    ward.start()
    await ward.finds(node, QUARANTINE)
    await ward.until_out_of_use(node)
    await ward.finds(node, QUARANTINE, component="0000:5e:00")
    await given_back(ward, node)
    await ward.add_pod("new-work", node)
    await ward.finds(other, QUARANTINE)
    await ward.until_out_of_use(other)
    assert await ward.rung(node) == "Released"
    assert await ward.pods_on(node) == {"new-work"}


async def test_a_fresh_fault_is_not_cancelled_by_the_release_before_it_1451(ward: Ward) -> None:
    """NVSentinel: a release cancels the quarantine that follows it closely. Ours: each time is one of its own."""
    [node] = await ward.add_nodes(1)
    await ward.configure(**{HEALTH_POLICY_KEY: POLICY})
    ward.start()
    await ward.finds(node, REBOOT)
    await rebooted(ward, node)
    await ward.tests(node)
    await ward.until_rung(node, "Released")
    await ward.finds(node, REBOOT)  # its taint may be there still
    await rebooted(ward, node, 2)
    assert ward.rebooted == [node, node]
    assert await ward.out_of_use() == {node}

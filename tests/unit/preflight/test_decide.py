"""Which nodes are tested, in which order, and what their tests mean for the taint."""

from __future__ import annotations

from muster.fleet.preflight.plan import Accept, PutTaint, Remove, Start, State, TakeTaint
from tests.unit.preflight.world import CONFIG, World

HOUR_S = 3600.0


def started(world: World) -> list[tuple[str, int]]:
    """Which nodes are tested now, and how thoroughly."""
    return sorted((test.node, test.level) for test in world.tests.values())


def test_a_new_node_gets_the_taint_is_tested_and_is_opened_by_its_pass() -> None:
    world = World()
    world.add("a")
    plan = world.step()
    assert [type(action) for action in plan.actions] == [PutTaint, Start]
    assert plan.states == {"a": State.WAITING}
    assert world.nodes["a"].pending
    world.run_test("a")
    assert world.settle().states == {"a": State.TESTING}
    world.end_test("a")
    world.settle()
    assert not world.nodes["a"].pending
    assert world.nodes["a"].record.passed  # type: ignore[union-attr]
    assert not world.tests


def test_a_node_that_fails_keeps_the_taint_and_is_not_tested_again_by_itself() -> None:
    world = World()
    world.add("a")
    world.step()
    world.end_test("a", passed=False)
    world.settle()
    world.now += 1000 * HOUR_S
    plan = world.settle()
    assert world.nodes["a"].pending
    assert plan.states == {"a": State.FAILED}
    assert not world.tests
    world.change("a", record=None)  # a person deletes the record
    world.step()
    assert started(world) == [("a", 1)]


def test_reboot_invalidates_the_record_and_the_node_is_tested_again() -> None:
    world = World()
    world.add("a")
    world.record("a")
    assert not world.settle().actions
    world.reboot("a", "boot-2")
    world.step()
    assert world.nodes["a"].pending
    assert started(world) == [("a", 1)]


def test_the_result_of_an_older_boot_is_not_accepted() -> None:
    world = World()
    world.add("a")
    world.step()
    world.end_test("a")
    world.reboot("a", "boot-2")
    plan = world.step()
    assert not any(isinstance(action, Accept) for action in plan.actions)
    assert world.nodes["a"].record is None
    world.settle()
    world.end_test("a")
    world.settle()
    assert not world.nodes["a"].pending


def test_neither_is_that_of_a_node_that_had_the_name_before() -> None:
    world = World()
    world.add("a")
    world.step()
    world.end_test("a")
    world.add("a", uid="uid-other")
    world.settle()
    assert world.nodes["a"].record is None
    assert world.test_of("a").identity.node_uid == "uid-other"  # type: ignore[union-attr]


def test_a_test_whose_node_is_gone_is_removed() -> None:
    world = World()
    world.add("a")
    world.step()
    world.run_test("a")
    del world.nodes["a"]
    world.settle()
    assert not world.tests


def test_a_node_in_use_gets_no_taint_and_no_test_until_it_is_idle() -> None:
    world = World()
    world.add("a", busy=True)
    assert not world.settle().actions
    world.change("a", busy=False)
    world.step()
    assert world.nodes["a"].pending
    assert started(world) == [("a", 1)]


def test_a_slot_keeps_a_test_away_only_where_the_node_is_trusted() -> None:
    world = World()
    world.add("doubted", "idle", promised=True)
    world.record("idle", ago_s=1000 * HOUR_S)
    world.step()
    assert started(world) == [("doubted", 1)]
    assert world.nodes["doubted"].pending


def test_nodes_that_join_are_cordoned_or_not_ready_are_tainted_and_tested_only_later() -> None:
    world = World()
    world.add("a", held="has taint muster.dev/joining")
    world.settle()
    assert world.nodes["a"].pending
    assert not world.tests
    world.change("a", held="")
    world.step()
    assert started(world) == [("a", 1)]


def test_a_node_whose_gpus_are_not_there_yet_is_tainted_and_waits() -> None:
    world = World()
    world.add("a", gpus=0)
    world.settle()
    assert world.nodes["a"].pending
    assert not world.tests


def test_the_taint_of_a_node_that_shows_no_gpus_stays_and_that_of_one_out_of_our_care_goes() -> None:
    world = World()
    world.add("a", gpus=0, has_gpus=False, pending=True)
    world.add("b", ignored=True, pending=True)
    world.settle()
    assert world.nodes["a"].pending
    assert not world.nodes["b"].pending
    assert not world.tests


def test_without_a_configuration_nothing_is_tested_and_no_taint_is_taken_away() -> None:
    world = World(None)
    world.add("a")
    world.add("b", pending=True)
    world.settle()
    assert not world.tests
    assert (world.nodes["a"].pending, world.nodes["b"].pending) == (False, True)


def test_no_more_tests_than_allowed_run_at_once_and_who_waits_longest_goes_first() -> None:
    world = World()
    for number in range(7):
        world.now += 1
        world.add(f"n{number}")
    world.settle()
    assert [node for node, _ in started(world)] == ["n0", "n1", "n2", "n3"]
    world.end_test("n1")
    world.settle()
    assert [node for node, _ in started(world)] == ["n0", "n2", "n3", "n4"]


def test_test_without_result_is_retried_with_backoff_and_changes_no_record() -> None:
    world = World()
    world.add("a")
    pauses = []
    for _ in range(8):
        world.step()
        assert started(world) == [("a", 1)]
        world.end_test("a", why="it ended with 127 and no result")
        world.step()
        assert world.nodes["a"].record is None
        before = world.now
        wake = world.settle().wake_at
        assert wake is not None
        pauses.append(wake - before)
        world.now = wake
    assert pauses == [60, 120, 240, 480, 960, 1800, 1800, 1800]
    world.reboot("a", "boot-2")
    world.step()
    assert started(world) == [("a", 1)]


def test_a_test_that_never_starts_is_given_up_and_one_that_never_ends_is_a_finding() -> None:
    world = World()
    world.add("never-starts", "never-ends", "gone")
    world.settle()
    for node in ("never-ends", "gone"):
        world.run_test(node)
    world.now += CONFIG.start_s + 1
    world.change("gone", held="is not ready")
    world.step()
    assert world.nodes["never-starts"].record is None
    assert world.nodes["gone"].record is None
    found = world.nodes["never-ends"].record
    assert found is not None
    assert [each.code for each in found.failures] == ["hung"]


def test_idle_nodes_are_tested_again_after_a_while_the_oldest_first_and_leave_at_once() -> None:
    world = World()
    world.add("fresh", "old", "older", "oldest", "busy")
    for node, days in (("fresh", 1), ("old", 8), ("older", 9), ("oldest", 10), ("busy", 11)):
        world.record(node, ago_s=days * 24 * HOUR_S)
    world.change("busy", busy=True)
    world.step()
    assert started(world) == [("older", 2), ("oldest", 2)]
    assert all(test.retest for test in world.tests.values())
    assert not any(node.pending for node in world.nodes.values())
    world.change("older", busy=True)  # before its test got there
    world.settle()
    assert world.test_of("older") is None
    assert "its node is in use" in world.said


def test_retest_without_room_is_withdrawn_and_not_repeated_at_once() -> None:
    world = World()
    world.add("a")
    world.record("a", ago_s=200 * HOUR_S)
    world.step()
    world.now += 31
    world.settle()
    assert not world.tests
    world.now += 601
    world.step()
    assert started(world) == [("a", 2)]


def test_suspicion_makes_a_test_come_sooner() -> None:
    world = World()
    world.add("a", "b")
    for node in ("a", "b"):
        world.record(node, ago_s=20 * HOUR_S)
    world.change("b", suspicion=9.0)
    world.step()
    assert started(world) == [("b", 2)]


def test_pods_that_wait_for_fresh_tests_have_nodes_tested_for_them() -> None:
    world = World()
    world.add("a", "b", "c")
    for node, hours in (("a", 3), ("b", 5), ("c", 30)):
        world.record(node, ago_s=hours * HOUR_S)
    world.wanted_within_h = 4
    world.step()
    assert started(world) == [("b", 2), ("c", 2)]


def test_another_driver_in_the_same_boot_takes_the_record_back_once() -> None:
    world = World()
    world.add("a", agent_driver="550.54")
    world.step()
    world.end_test("a", driver="550.54")
    world.settle()
    assert not world.nodes["a"].pending
    world.change("a", agent_driver="570.10")
    world.settle()
    assert world.said == ["revoked"]
    assert world.nodes["a"].pending
    world.end_test("a", driver="570.10.0")  # which the test and the agent name differently
    world.settle()
    assert not world.nodes["a"].pending
    assert world.said == ["revoked"]


def test_an_agent_that_sees_no_driver_takes_no_record_back() -> None:
    world = World()
    world.add("a")
    world.record("a", driver="550.54", agent_driver="550.54")
    assert not world.settle().actions


def test_a_node_in_quarantine_is_tested_when_the_ladder_waits_for_that_and_not_before() -> None:
    world = World()
    world.add("a")
    world.record("a", ago_s=100)
    world.change("a", quarantined=True)
    world.settle()
    assert not world.tests
    world.change("a", wanted_since=float("inf"))  # it is to be reset first
    world.settle()
    assert not world.tests
    world.now += 10
    world.change("a", wanted_since=world.now, busy=True)
    world.settle()
    assert not world.tests
    world.change("a", busy=False)
    world.step()
    assert started(world) == [("a", 2)]


def test_a_test_that_runs_leaves_a_node_whose_gpus_are_to_be_reset() -> None:
    """What holds a GPU keeps it from being reset; and its result would say nothing of what comes after."""
    world = World()
    world.add("a")
    world.step()
    world.run_test("a")
    world.change("a", quarantined=True, wanted_since=world.now)
    world.settle()
    assert started(world) == [("a", 1)], "one that begins before anything is done may go on"
    world.change("a", wanted_since=float("inf"))
    world.settle()
    assert not world.tests
    world.now += 10
    world.change("a", wanted_since=world.now)
    world.step()
    assert started(world) == [("a", 2)]


def test_a_pass_that_does_not_let_the_node_out_is_followed_by_a_more_thorough_test() -> None:
    world = World()
    world.add("a", quarantined=True, wanted_since=world.now)
    world.step()
    world.end_test("a")
    world.settle()
    assert not world.tests
    world.now += 301
    world.step()
    assert started(world) == [("a", 3)]
    world.end_test("a")
    world.settle()
    world.now += 10_000
    world.settle()
    assert not world.tests


def test_finding_after_a_pass_in_quarantine_causes_another_test() -> None:
    world = World()
    world.add("a", quarantined=True, wanted_since=world.now)
    world.step()
    world.end_test("a")
    world.settle()
    world.change("a", found_at=world.now + 1)
    world.now += 301
    world.step()
    assert started(world) == [("a", 2)]


def test_a_new_leader_finds_what_was_written_and_only_cleans_up() -> None:
    world = World()
    world.add("a")
    world.step()
    world.end_test("a")
    test = world.test_of("a")
    assert test is not None
    world.step()
    world.tests[test.name] = test  # the controller died between the record and the pod's deletion
    plan = world.step()
    assert [type(action) for action in plan.actions if not isinstance(action, TakeTaint)] == [Remove]
    assert world.settle().states == {"a": State.TRUSTED}

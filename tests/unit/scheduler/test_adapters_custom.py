"""JobSets, MPIJobs and RayClusters as gangs: parts, launchers and worker groups."""

from __future__ import annotations

from muster.scheduler.reasons import Reason, Why
from tests.unit.scheduler.foreign import Foreign


def test_a_job_set_is_one_gang_over_all_its_jobs_and_restarts_as_one() -> None:
    world = Foreign()
    world.add_nodes("a", "b", "c")
    parts = [
        {"name": "driver", "template": {"spec": {"parallelism": 1, "completions": 1}}},
        {"name": "workers", "replicas": 2, "template": {"spec": {"parallelism": 1, "completions": 1}}},
    ]
    world.set_object("jobset", "js", {"replicatedJobs": parts})

    def add(part: str, job: int, attempt: int) -> None:
        prefix = "jobset.sigs.k8s.io/"
        labels = {
            f"{prefix}jobset-name": "js",
            f"{prefix}replicatedjob-name": part,
            f"{prefix}job-index": str(job),
            f"{prefix}restart-attempt": str(attempt),
            "batch.kubernetes.io/job-completion-index": "0",
        }
        world.add_pod(f"js-{part}-{job}-0-{attempt}", {}, labels=labels)

    def add_all(attempt: int) -> None:
        for part, job in (("workers", 1), ("driver", 0), ("workers", 0)):
            add(part, job, attempt)

    add_all(0)
    world.run()
    before = world.ran_on()
    assert len(set(before.values())) == 3
    world.finish("js-driver-0-0-0")
    world.terminate("js-workers-0-0-0")
    world.remove_pod("js-workers-0-0-0")
    add("workers", 0, 1)
    assert world.waits("jobset.js") == Reason(Why.WAITING_FOR_PODS, 3, 2), "the driver has to run again as well"
    for name in ("js-driver-0-0-0", "js-workers-1-0-0"):
        world.remove_pod(name)
    add("driver", 0, 1)
    add("workers", 1, 1)
    world.run()
    assert {name.removesuffix("-1"): node for name, node in world.ran_on().items()} == {
        name.removesuffix("-0"): node for name, node in before.items()
    }


def test_a_launcher_is_a_member_and_nothing_starts_without_it() -> None:
    world = Foreign()
    world.add_nodes("a", "b")
    world.set_object("mpijob", "mpi", {"mpiReplicaSpecs": {"Launcher": {}, "Worker": {"replicas": 2}}})
    for index in (1, 0):
        world.mpi_pod("mpi", "worker", index)
    assert world.waits("mpijob.mpi") == Reason(Why.WAITING_FOR_PODS, 3, 2)
    world.mpi_pod("mpi", "launcher")
    world.run()
    gang = world.gang("mpijob.mpi")
    assert {slot: member.name for slot, member in sorted(gang.current.items())} == {
        0: "mpi-launcher", 1: "mpi-worker-0", 2: "mpi-worker-1"
    }  # fmt: skip
    assert world.ran_on().keys() == {"mpi-launcher", "mpi-worker-0", "mpi-worker-1"}


def test_a_launcher_without_room_keeps_its_workers_from_starting() -> None:
    world = Foreign()
    world.add_nodes("a", "b", room={"cpu": "1"})
    world.set_object("mpijob", "mpi", {"mpiReplicaSpecs": {"Launcher": {}, "Worker": {"replicas": 2}}})
    for index in range(2):
        world.mpi_pod("mpi", "worker", index)
    world.mpi_pod("mpi", "launcher")
    world.run()
    assert world.ran_on() == {}


def test_a_launcher_that_comes_when_the_workers_run_does_not_keep_them_waiting_mpi_operator_608() -> None:
    """mpi-operator counts a launcher that it makes only once the workers run; we start them and keep its turn."""
    world = Foreign()
    world.add_nodes("a", "b")
    spec = {
        "launcherCreationPolicy": "WaitForWorkersReady",
        "mpiReplicaSpecs": {"Launcher": {}, "Worker": {"replicas": 2}},
    }
    world.set_object("mpijob", "mpi", spec)
    for index in range(2):
        world.mpi_pod("mpi", "worker", index)
    world.run()
    assert len(world.ran_on()) == 2
    world.mpi_pod("mpi", "launcher")
    world.run()
    assert len(world.ran_on()) == 3
    assert world.slots_of("mpijob.mpi").keys() == {0, 1, 2}


def test_recreated_member_takes_the_free_slot() -> None:
    world = Foreign()
    world.add_nodes("a", "b", "c")
    world.set_object("raycluster", "ray", {"workerGroupSpecs": [{"groupName": "g", "replicas": 2}]})
    world.ray_pod("ray", "ray-head-x")
    for suffix in ("p", "q"):
        world.ray_pod("ray", f"ray-g-{suffix}", "g")
    world.run()
    before = world.slots_of("raycluster.ray")
    left = world.ran_on("ray-g-p")["ray-g-p"]
    world.terminate("ray-g-p")
    world.ray_pod("ray", "ray-g-z", "g")
    assert world.waits("raycluster.ray") == Reason(Why.WAITING_FOR_OLD_POD, 1, detail="ray-g-p")
    world.remove_pod("ray-g-p")
    world.run()
    assert world.ran_on("ray-g-z") == {"ray-g-z": left}
    assert world.slots_of("raycluster.ray") == before


def test_of_an_autoscaled_ray_cluster_what_is_scaled_away_is_given_back() -> None:
    world = Foreign()
    world.add_nodes("a", "b", "c")
    group = {"groupName": "g", "replicas": 3, "minReplicas": 1}
    spec = {"enableInTreeAutoscaling": True, "workerGroupSpecs": [group]}
    world.set_object("raycluster", "ray", spec)
    world.ray_pod("ray", "ray-head-x")
    world.ray_pod("ray", "ray-g-p", "g")
    world.run()
    assert len(world.ran_on()) == 2
    for suffix in ("q", "r"):
        world.ray_pod("ray", f"ray-g-{suffix}", "g")
    world.run()
    assert len(world.ran_on()) == 4
    world.remove_pod("ray-g-p")
    group["replicas"] = 2
    world.set_object("raycluster", "ray", spec)
    world.run()
    assert len(world.slots_of("raycluster.ray")) == 3
    world.add_gang("next", 1)
    world.run()
    assert len(world.nodes_of("next")) == 1

"""Gangs of the same work have the same likeness, however their names are numbered."""

from __future__ import annotations

import pytest

from muster.scheduler.forecast.likeness import Likeness, pattern_of
from muster.scheduler.gangs.priority import JobFacts
from tests.unit.scheduler.world import World


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("train-17", "train"),
        ("llama-7b-sft-20240310-r2", "llama-7b-sft-r"),
        ("llama-70b-sft-20240311-r15", "llama-70b-sft-r"),
        ("eval_bert.3", "eval-bert"),
        ("notebook-x7k2p", "notebook"),
        ("web-6d4cf56db6-x7k2p", "web"),
        ("sweep-9f86d081884c7d65", "sweep"),
        ("0fa1b2c3-9d8e-4f00-8000-123456789abc", "9d8e-4f"),
        ("train", "train"),
        ("12345", ""),
        ("", ""),
    ],
)
def test_pattern_leaves_out_what_differs_between_runs(name: str, pattern: str) -> None:
    assert pattern_of(name) == pattern


def test_likeness_of_a_gang_comes_from_its_pods() -> None:
    world = World()
    container = {"name": "worker", "image": "repo/train:3", "resources": {"limits": {"nvidia.com/gpu": "4"}}}
    world.add_gang("train-1", 2, containers=[container])
    gang = world.gang("train-1")
    assert gang.likeness == Likeness("default", "", "", "train", "repo/train:3", nodes=2, gpus=4)


def test_likeness_of_a_training_job_comes_from_the_job_and_follows_it() -> None:
    world = World()
    world.add_gang("train-1", 2)
    world.set_job("train-1", JobFacts(user="ada", image="repo/train:4"))
    likeness = world.gang("train-1").likeness
    assert likeness is not None
    assert (likeness.user, likeness.image, likeness.gpus) == ("ada", "repo/train:4", 8)
    world.set_job("train-1", JobFacts(user="bob", image="repo/train:4"))
    changed = world.gang("train-1").likeness
    assert changed is not None
    assert changed.user == "bob"


def test_likeness_of_a_single_pod_has_its_label_and_the_name_of_its_owner() -> None:
    world = World()
    owner = {"apiVersion": "example.org/v1", "kind": "Notebook", "name": "lab-ada", "uid": "u", "controller": True}
    pod = world.add_pod("lab-ada-x7k2p", labels={"muster.dev/user": "ada"}, owners=[owner])
    gang = next(gang for gang in world.state.snapshot().gangs.values() if pod.uid in gang.pods)
    assert gang.likeness is not None
    assert (gang.likeness.user, gang.likeness.pattern, gang.likeness.nodes) == ("ada", "lab-ada", 1)

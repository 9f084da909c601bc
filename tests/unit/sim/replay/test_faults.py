"""Faults of nodes under a user's care: what is saved, who comes back when, and the same faults for all."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

import msgspec
import pytest

from muster.sim.replay.faults import CAUSES, CORDON_AND_EVICT, MUSTER, NO_CARE, NOTICE_MINUTES, Care, Cause, Faults
from muster.sim.replay.job import job_of_gpus, uniform_nodes
from muster.sim.replay.replay import Conditions, Outcome, Replay
from muster.sim.replay.run import Run

DAY_S = 86400.0


class Recorded:
    """One node with one job that continues at once wherever it is stopped; what happens to it is written down."""

    def __init__(self, care: Care, kind: str, days: float) -> None:
        self.now = 0.0
        self.reported: list[tuple[float, str]] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._run = Run(job_of_gpus("job", 0.0, 1e9, 8, 8))
        cause = msgspec.convert({"name": kind, "count": 1, "kind": kind}, Cause)
        self._faults = Faults(self, ["node"], 1, mtbf_hours=24.0, care=care, causes=[cause])
        self._faults.begin()
        self._go()
        while self._events and self._events[0][0] < days * DAY_S:
            self.now, _, what = heapq.heappop(self._events)
            what()

    def _go(self) -> None:
        self._run.nodes = {"pod": "node"}
        self._faults.going(self._run, self.now)

    def at(self, when_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when_s, next(self._numbers), what))

    def lose_node(self, name: str, saved: bool) -> None:
        self._run.attempt += 1
        self._run.nodes = {}
        self.reported.append((self.now, "saved" if saved else "lost"))

    def return_node(self, name: str) -> None:
        self.reported.append((self.now, "back"))
        self._go()

    def stop_work(self, name: str) -> None:
        self._run.attempt += 1
        self.reported.append((self.now, "stopped"))
        if self._run.nodes:
            self._go()

    @property
    def words(self) -> list[str]:
        return [word for _, word in self.reported]


@pytest.mark.parametrize(
    ("care", "kind", "words"),
    [
        (MUSTER, "announced", ["saved", "back"]),
        (CORDON_AND_EVICT, "announced", ["lost", "back"]),
        (MUSTER, "wearing", ["saved", "back"]),
        (MUSTER, "said", ["stopped", "lost", "back"]),
        (MUSTER, "crash", ["lost", "back"]),
        (MUSTER, "program", ["stopped", "stopped"]),
        (NO_CARE, "crash", ["lost", "back"]),
    ],
)
def test_effects_on_the_job_follow_the_fault(care: Care, kind: str, words: list[str]) -> None:
    assert Recorded(care, kind, days=30).words[: len(words)] == words


def test_a_notice_gives_the_time_it_says() -> None:
    (unheard, _), (heard, _) = (Recorded(care, "announced", days=30).reported[0] for care in (NO_CARE, MUSTER))
    assert unheard == pytest.approx(heard + NOTICE_MINUTES * 60 - MUSTER.acts_after_s)


def test_job_on_an_untreated_broken_node_dies_repeatedly() -> None:
    slow = msgspec.structs.replace(NO_CARE, person_hours=1e6)
    words = Recorded(slow, "said", days=30).words
    assert set(words) == {"stopped"}
    assert len(words) > 100


def test_without_tests_a_broken_node_comes_back_and_breaks_its_next_job() -> None:
    unmended = msgspec.structs.replace(CORDON_AND_EVICT, reboot_mends=0.0)
    words = Recorded(unmended, "said", days=30).words
    assert words[:6] == ["stopped", "lost", "back", "stopped", "lost", "back"]


def test_with_tests_no_broken_node_comes_back() -> None:
    unmended = msgspec.structs.replace(MUSTER, reboot_mends=0.0)
    reported = Recorded(unmended, "said", days=300).reported
    lost = [when for when, word in reported if word == "lost"]
    back = [when for when, word in reported if word == "back"]
    assert len(back) > 20
    away = sum(end - begin for begin, end in zip(lost, back, strict=False)) / len(back)
    assert away > 6 * 3600, "each waits for its repair"


def replayed(care: Care, seed: int) -> Outcome:
    jobs = [job_of_gpus(f"job-{number}", 0.0, 1e9, 24 * 8, 8) for number in range(2)]
    conditions = Conditions(seed=seed, days=30.0, mtbf_hours=500.0, checkpoint_minutes=30.0, care=care)
    return Replay(uniform_nodes(54, 8), jobs, conditions).run()


@pytest.mark.slow
def test_care_is_worth_more_the_more_there_is_of_it() -> None:
    off, evicted, ours = (
        sum(
            run.work_s(outcome.end_s) for seed in range(4) for outcome in [replayed(care, seed)] for run in outcome.runs
        )
        for care in (NO_CARE, CORDON_AND_EVICT, MUSTER)
    )
    assert off < evicted < ours


@pytest.mark.slow
def test_the_same_seed_gives_the_same_month() -> None:
    assert replayed(MUSTER, 3).placements_hash == replayed(MUSTER, 3).placements_hash


def test_the_published_causes_are_all_of_them() -> None:
    assert sum(cause.count for cause in CAUSES) == 419

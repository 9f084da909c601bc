"""Records the cluster's state at each change, and computes mean values over intervals."""

from __future__ import annotations

from array import array

FIELDS = (
    "busy", "down", "split", "idle", "waiting_gpus", "waiting_jobs", "stopped", "idle_while_waiting",
    "idle_while_restartable_fits",
)  # fmt: skip


class Series:
    """A list of (time, values). The values apply until the next time in the list."""

    def __init__(self) -> None:
        self.times = array("d")
        self.columns: tuple[array[int], ...] = tuple(array("q") for _ in FIELDS)

    def add(
        self,
        now: float,
        busy: int,
        down: int,
        split: int,
        idle: int,
        waiting_gpus: int,
        waiting_jobs: int,
        stopped: int,
        restartable_fits: bool,
    ) -> None:
        """Record values that apply from `now` on.

        `waiting_jobs` is a number of jobs; all others are numbers of GPUs. `Room` describes `busy`, `down`, `split` and
        `idle`. `waiting_gpus` are requested by the jobs in the queue. `stopped` are allocated to jobs that cannot run
        because a member is missing. `restartable_fits`: a restartable job in the queue fits on the idle GPUs.
        """
        self.times.append(now)
        values = (
            busy, down, split, idle, waiting_gpus, waiting_jobs, stopped,
            idle if waiting_jobs else 0,
            idle if restartable_fits else 0,
        )  # fmt: skip
        for column, value in zip(self.columns, values, strict=True):
            column.append(value)

    def means(self, end_s: float, intervals: int) -> list[dict[str, float]]:
        """Return the mean of each field in a number of equal intervals from 0 to `end_s`. Later times do not count."""
        width = end_s / intervals if end_s else 1.0
        sums = [[0.0] * len(FIELDS) for _ in range(intervals)]
        for index, start in enumerate(self.times):
            stop = min(self.times[index + 1], end_s) if index + 1 < len(self.times) else end_s
            values = [column[index] for column in self.columns]
            while start < stop:
                at = min(int(start / width), intervals - 1)
                upto = min(stop, (at + 1) * width) if at + 1 < intervals else stop
                if upto <= start:  # because of rounding, the computed end of this interval is not after `start`
                    at, upto = min(at + 1, intervals - 1), min(stop, (at + 2) * width)
                for number, value in enumerate(values):
                    sums[at][number] += value * (upto - start)
                start = upto
        return [{name: total / width for name, total in zip(FIELDS, row, strict=True)} for row in sums]

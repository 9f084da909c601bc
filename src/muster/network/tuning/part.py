"""The part `tuning` of the network agent: sets sizes of kernel tables, and restores them when it is removed."""

from __future__ import annotations

import logging
import time
from typing import Final

import msgspec

from muster.kube.smallfiles import number_of
from muster.network.agent.part import Part, PartSetup
from muster.network.agent.periods import each_period
from muster.network.tuning.changes import Foreign, applied, decide
from muster.network.tuning.config import TuningConfig, wanted
from muster.network.tuning.metrics import TuningMetrics
from muster.network.tuning.record import Record, read_record, write_record

log = logging.getLogger(__name__)

PAGE: Final = "tuning"
FILE: Final = "tuning/former.json"
_LOOP: Final = "tuning"
_LATE_FACTOR: Final = 5
_ONLY_ON_HOST: Final = "ipv4/neigh/default/gc_thresh1"
"""The kernel shows this file only in the first network namespace of the machine."""


class Setting(msgspec.Struct, frozen=True):
    """A setting of the page: its former value, what the agent wrote, and its value now."""

    name: str
    former: int
    value: int
    now: int


class TuningPage(msgspec.Struct, frozen=True):
    """The page `/v1/tuning`.

    Attributes:
        node: name of the node.
        taken_s: when the settings were read, Unix seconds.
        settings: those that the agent changed.
        foreign: those that another program changed afterwards, as sentences.
        problems: why settings could not be written.
    """

    node: str
    taken_s: float = 0.0
    settings: tuple[Setting, ...] = ()
    foreign: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def make_part(setup: PartSetup, config: TuningConfig) -> Part:
    """Make the part."""
    return TuningPart(setup, config)


class TuningPart:
    """Sets the values of the configuration.

    Args:
        setup: of the agent.
        config: its section.
    """

    def __init__(self, setup: PartSetup, config: TuningConfig) -> None:
        self._setup = setup
        self._config = config
        self._folder = setup.paths.proc / "sys/net"
        self._file = setup.paths.state / FILE
        self._said: tuple[str, ...] = ()
        self.page = TuningPage(setup.node)
        """What the last pass found."""
        setup.publish(PAGE, lambda: msgspec.json.encode(self.page))
        setup.registry.register(
            TuningMetrics(lambda: (len(self.page.settings), len(self.page.problems) + len(self.page.foreign)))
        )

    async def run(self) -> None:
        """Set the values, and look for changes once a period, until cancelled."""
        await each_period(self._setup.progress, _LOOP, self._config.period_s, self.set)

    def set(self) -> None:
        """Write what is not set yet. Errors become problems of the page."""
        try:
            self._pass(wanted(self._config))
        except OSError as error:
            self.page = msgspec.structs.replace(self.page, taken_s=time.time(), problems=(str(error),))
        said = (*self.page.problems, *self.page.foreign)
        for each in said:
            if each not in self._said:
                log.warning("%s", each)
        self._said = said

    def remove(self) -> None:
        """Restore the former values, except those that another program has changed since.

        Raises:
            OSError: a value could not be restored. A second call tries again.
        """
        if not self._file.exists():
            return  # it never wrote a value
        self._pass({})
        if self.page.problems:
            raise OSError("; ".join(self.page.problems))

    def _pass(self, values: dict[str, int]) -> None:
        if number_of(self._folder / _ONLY_ON_HOST) is None:
            raise OSError(
                "the agent is not in the host's network namespace, the only one where the kernel takes sizes of its "
                f"tables ({self._folder / _ONLY_ON_HOST} is missing); run it with hostNetwork: true"
            )
        boot = (self._setup.paths.proc / "sys/kernel/random/boot_id").read_text().strip()
        record = read_record(self._file)
        names = {*values, *record.entries}
        current = {name: value for name in names if (value := number_of(self._folder / name)) is not None}
        plan = decide(values, current, record, boot)
        problems = []
        kept = plan.record
        if kept != record:
            write_record(self._file, kept)
        for name, value in plan.writes:
            try:
                (self._folder / name).write_text(f"{value}\n")
            except OSError as error:
                problems.append(f"{name} could not be set to {value}: {error}")
                continue
            taken = number_of(self._folder / name)
            kept = applied(kept, name, value if taken is None else taken)
            write_record(self._file, kept)
            log.info("%s is %s, was %d", name, taken, current[name])
        problems += [f"{name} does not exist yet" for name in sorted(values.keys() - current.keys())]
        self._show(kept, plan.foreign, problems)

    def _show(self, record: Record, foreign: tuple[Foreign, ...], problems: list[str]) -> None:
        settings = [
            Setting(name, entry.former, entry.value, number_of(self._folder / name) or 0)
            for name, entry in sorted(record.entries.items())
        ]
        self.page = TuningPage(
            self._setup.node, time.time(), tuple(settings), tuple(map(_sentence, foreign)), tuple(problems)
        )


def _sentence(change: Foreign) -> str:
    text = f"{change.name} is {change.value}: another program changed it after the agent set {change.ours}"
    if change.value >= change.wanted:
        return f"{text}; it is large enough for the plan"
    return f"{text}; find that program (kube-proxy sets conntrack values at its start), or change the configuration"

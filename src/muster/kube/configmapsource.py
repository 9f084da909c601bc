"""A controller's configuration in a ConfigMap. If the text is not valid, the configuration in use stays."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, TypeVar

from muster.kube.errors import BadConfig
from muster.kube.events import WARNING, EventRecorder
from muster.kube.informers import Informers, SharedInformer
from muster.kube.objects.core import ConfigMap

C = TypeVar("C")

log = logging.getLogger(__name__)


def config_map_informer(informers: Informers, namespace: str, name: str) -> SharedInformer[ConfigMap]:
    """Return an informer of one ConfigMap."""
    return informers.of(ConfigMap, namespace=namespace, field_selector=f"metadata.name={name}")


def text_of(found: ConfigMap | None, key: str) -> str:
    """Return the text under `key`, "" without a ConfigMap. Raises BadConfig if it has only other keys."""
    if found is None:
        return ""
    if found.data and key not in found.data:
        raise BadConfig(f"there is no key {key}; the data has {', '.join(sorted(found.data))}: rename it")
    return found.data.get(key, "")


class ConfigMapSource(Generic[C]):
    """The newest valid configuration in a ConfigMap. Each new problem is logged and gets one Event.

    Args:
        informer: of the ConfigMap, see `config_map_informer`; its owner runs it.
        read: returns the configuration; its argument is the ConfigMap, or None without one. Raises BadConfig.
        value: the configuration before the first valid one is read.
        events: receives the Events; None: problems are only logged.
        meanwhile: what the controller does while the text is not valid, for the Event: `balloons stay as they are`.
        changed: called after each change of the ConfigMap.
        reason: of the Events.
    """

    def __init__(
        self,
        informer: SharedInformer[ConfigMap],
        read: Callable[[ConfigMap | None], C],
        value: C,
        *,
        events: EventRecorder | None,
        meanwhile: str,
        changed: Callable[[], object],
        reason: str = "BadConfig",
    ) -> None:
        self.informer = informer
        self.value = value
        """The newest valid configuration."""
        self.problem = ""
        """The errors of the newest text; "" if it is in use."""
        self.found: ConfigMap | None = None
        """The ConfigMap, if there is one."""
        self._read = read
        self._events = events
        self._meanwhile = meanwhile
        self._changed = changed
        self._reason = reason
        informer.add_handler(self._config_map_changed)

    def settle(self) -> None:
        """Handle a missing ConfigMap. Call it once the informer is complete: no event reports a missing object."""
        if self.found is None:
            self.value = self._read(None)

    def _config_map_changed(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        self.found = new
        problem = ""
        try:
            self.value = self._read(new)
        except BadConfig as error:
            problem = str(error)
        if new is not None and problem and problem != self.problem:
            message = f"{self._meanwhile}: {problem}"
            log.warning("ConfigMap %s: %s", new.key, message)
            if self._events is not None:
                self._events.event(new, WARNING, self._reason, message)
        self.problem = problem
        self._changed()

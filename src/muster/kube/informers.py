"""The informers of a process: one watch per kind and selection, however many controllers follow it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from muster.kube.cache import Handler
from muster.kube.client import Client
from muster.kube.health import Progress
from muster.kube.index import IndexFunction
from muster.kube.informer import Informer, no_list
from muster.kube.objects.meta import KubeObject

T = TypeVar("T", bound=KubeObject)


@dataclass(frozen=True)
class Form(Generic[T]):
    """The form in which this process keeps the objects of a kind; see `Informer` for both functions."""

    transform: Callable[[T], T] | None = None
    stored: Callable[[T], T] | None = None


Forms = Mapping[type[KubeObject], Form[Any]]


@dataclass(frozen=True)
class Selection:
    """What one watch delivers."""

    kind: type[KubeObject]
    namespace: str | None
    label_selector: str
    field_selector: str

    @property
    def of_all(self) -> bool:
        """Whether it delivers every object of the kind."""
        return self.namespace is None and not self.label_selector and not self.field_selector


class Informers:
    """Starts an informer when the first controller follows its selection, and stops it when the last one leaves.

    Args:
        client: the API server.
        forms: by kind, the form in which objects are kept; other kinds are kept whole. `stored` holds for all objects
            of a kind: those of a selection are few.
        progress: marked by each informer.
        rng: source of jitter.
    """

    def __init__(
        self,
        client: Client,
        forms: Forms,
        *,
        progress: Progress | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._client = client
        self._forms = forms
        self._progress = progress
        self._rng = rng
        self._informers: dict[Selection, Informer[Any]] = {}
        self._tasks: dict[Selection, asyncio.Task[None]] = {}
        self._users = Counter[Selection]()

    def of(
        self,
        kind: type[T],
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        indexes: Mapping[str, IndexFunction[T]] | None = None,
    ) -> SharedInformer[T]:
        """Return a part in the informer of these objects. Nothing is requested before its `run`.

        Args:
            kind: what to follow.
            namespace: one namespace, or None for all.
            label_selector: as in the API.
            field_selector: as in the API.
            indexes: name -> function from a stored object to the values it is found under.
        """
        return SharedInformer(self, Selection(kind, namespace, label_selector, field_selector), indexes or {})

    @asynccontextmanager
    async def running(self, selection: Selection) -> AsyncIterator[tuple[Informer[Any], asyncio.Task[None]]]:
        """Context in which the selection's informer runs, in the task that is returned with it."""
        if selection not in self._informers:
            informer = self._informers[selection] = self._make(selection)
            self._tasks[selection] = asyncio.create_task(informer.run(), name=informer.name)
        self._users[selection] += 1
        task = self._tasks[selection]
        try:
            yield self._informers[selection], task
        finally:
            self._users[selection] -= 1
            if not self._users[selection]:
                # Removed first: a controller that comes while this informer ends gets a new one.
                del self._informers[selection], self._tasks[selection], self._users[selection]
                task.cancel()
                await asyncio.wait([task])

    def _make(self, selection: Selection) -> Informer[Any]:
        form: Form[Any] = self._forms.get(selection.kind, Form())
        return Informer(
            self._client,
            selection.kind,
            namespace=selection.namespace,
            label_selector=selection.label_selector,
            field_selector=selection.field_selector,
            transform=form.transform,
            stored=form.stored if selection.of_all else None,
            progress=self._progress,
            rng=self._rng,
        )


class SharedInformer(Generic[T]):
    """One controller's part in an informer that other controllers of the process follow too.

    Made by `Informers.of`. Its handlers and indexes take part while `run` runs.
    """

    def __init__(self, informers: Informers, selection: Selection, indexes: Mapping[str, IndexFunction[T]]) -> None:
        self.kind: type[KubeObject] = selection.kind
        self._informers = informers
        self._selection = selection
        self._functions = dict(indexes)
        self._handlers: list[Handler[T]] = []
        self._informer: Informer[T] | None = None
        self._synced = asyncio.Event()

    @property
    def store(self) -> Mapping[str, T]:
        """All objects by key, a read-only view; it is complete once `has_synced`."""
        return self._informer.store if self._informer is not None else {}

    @property
    def has_synced(self) -> bool:
        """Returns whether the handlers were called for every object of a complete list."""
        return self._synced.is_set()

    def get(self, key: str) -> T | None:
        """Return the object with this key, if there is one."""
        return self.store.get(key)

    def by_index(self, name: str, value: str) -> Mapping[str, T]:
        """Return the objects found under `value`, by key. Raises KeyError for an unknown index."""
        if name not in self._functions:
            raise KeyError(name)
        return self._informer.by_index(self._own(name), value) if self._informer is not None else {}

    def add_index(self, name: str, function: IndexFunction[T]) -> None:
        """Add an index, before `run`."""
        self._functions[name] = function

    def add_handler(self, handler: Handler[T]) -> None:
        """Call `handler` for every object and each change while `run` runs; to be added before that."""
        self._handlers.append(handler)

    async def wait_synced(self, timeout_s: float) -> None:
        """Wait until the handlers were called for every object. Raises TimeoutError with the cause of the delay."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._synced.wait()
        except TimeoutError:
            raise no_list(
                self.kind, timeout_s, self._informer.last_error if self._informer is not None else None
            ) from None

    async def listed_since(self, at_s: float) -> None:
        """Wait, while `run` runs, for a complete list that began at this time of the event loop or later."""
        await self._synced.wait()
        assert self._informer is not None
        await self._informer.listed_since(at_s)

    async def run(self, since: float = float("-inf")) -> None:
        """Follow the objects until cancelled.

        Args:
            since: the event loop's time. Handlers are first called for all objects of a list that began then or later.
        """
        async with self._informers.running(self._selection) as (informer, running):
            self._informer = informer
            for name, function in self._functions.items():
                informer.add_index(self._own(name), function)
            joined = asyncio.create_task(informer.join(self._handlers, since), name=f"{informer.name}/join")
            try:
                await asyncio.wait([joined, running], return_when=asyncio.FIRST_COMPLETED)
                if joined.done():
                    joined.result()
                    self._synced.set()
                await asyncio.wait([running])
                running.result()
            finally:
                joined.cancel()
                self._synced.clear()
                informer.leave(self._handlers)
                for name in self._functions:
                    informer.remove_index(self._own(name))
                self._informer = None

    def _own(self, index: str) -> str:
        """Return the index's name in the informer, where others may have one of the same name."""
        return f"{index}/{id(self)}"

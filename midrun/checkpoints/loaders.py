"""Loaders: what training data is drawn with, and how a loader is brought to the batch where training is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypedDict

from torch.utils.data import IterableDataset
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from midrun.checkpoints import generators

_PARTS = ("", "sampler", "batch_sampler", "batch_sampler.sampler", "dataset", "dataset.dataset")
"""Where a loader may have generators and seeds."""
_MANY = 64
"""Attributes of one part that are looked at."""


class Marks(TypedDict):
    """What a loader has of its own that its order depends on, by the paths of its attributes."""

    generators: dict[str, Any]
    """The states of generators, as `generators.state_of` tells them."""
    seeds: dict[str, int]


def marks_of(loader: object) -> Marks:
    """Return what a loader has of its own, as plain values."""
    found = Marks(generators={}, seeds={})
    for path, part, name in _places(loader):
        value = vars(part)[name]
        if isinstance(value, generators.KINDS):
            found["generators"][path] = generators.state_of(value)
        elif name == "seed" and type(value) is int:
            found["seeds"][path] = value
    return found


def give(loader: object, marks: Marks) -> list[str]:
    """Give a loader what `marks_of` has told, and return what of it there is no place for."""
    here, missing = {path: (part, name) for path, part, name in _places(loader)}, []
    for path, state in marks["generators"].items():
        try:
            part, name = here[path]
            generators.give(getattr(part, name), state)
        except Exception:  # noqa: BLE001 - another loader than it was: anything may be there
            missing.append(path)
    for path, seed in marks["seeds"].items():
        with suppress(KeyError):
            part, name = here[path]
            setattr(part, name, seed)
    return missing


def _places(loader: object) -> Iterator[tuple[str, Any, str]]:
    """Iterate over the attributes of all parts of a loader: the path, what has it, and its name."""
    for place in _PARTS:
        part = _part(loader, place)
        for name in list(getattr(part, "__dict__", {}))[:_MANY]:
            yield ".".join(filter(None, (place, name))), part, name


class Begun(NamedTuple):
    """Where a loader has begun again within an epoch, as a shorter one of several does."""

    loader: int
    rng: dict[str, Any]
    marks: Marks


class Cycle:
    """Loaders of which shorter ones begin again, by Lightning's `CombinedLoader`, and what was drawn then.

    Lightning makes the new iterator in the midst of an epoch, and tells nobody.

    Parameters
    ----------
    combined
        Lightning's loader, which is listened to until `end`.
    """

    def __init__(self, combined: Any) -> None:  # noqa: ANN401 - Lightning's own
        self.begun: list[Begun] = []
        """In the present epoch, in their order."""
        self.told: list[Begun] = []
        """Where loaders are to begin as they have in another process."""
        self._combined, self._class = combined, type(combined)
        cycle = self

        class Listened(self._class):  # type: ignore[misc,name-defined]  # whatever class it is
            def __iter__(self) -> Any:  # noqa: ANN401 - as Lightning has it
                made = super().__iter__()
                cycle.listen()
                return made

        combined.__class__ = Listened
        self.listen()

    def listen(self) -> None:
        """Listen to the iterators that there are now."""
        self.begun = []
        mode = self._combined._iterator  # noqa: SLF001 - Lightning shows it nowhere
        if mode is not None:
            mode.iterables = [
                _Again(loader, partial(self._begin, number)) for number, loader in enumerate(mode.iterables)
            ]

    def _begin(self, number: int, loader: object) -> None:
        if self.told:
            told = self.told.pop(0)
            generators.restore(told.rng)
            give(loader, told.marks)
        self.begun.append(Begun(number, generators.states().plain(), marks_of(loader)))

    def is_of(self, combined: object) -> bool:
        """Whether that is the loader that is listened to."""
        return self._combined is combined

    def end(self) -> None:
        """Leave the loader as it was."""
        self._combined.__class__ = self._class
        mode = self._combined._iterator  # noqa: SLF001 - Lightning shows it nowhere
        if mode is not None:
            mode.iterables = [one.loader if isinstance(one, _Again) else one for one in mode.iterables]


class _Again:
    """A loader that tells when it begins again."""

    def __init__(self, loader: Any, tell: Callable[[object], None]) -> None:  # noqa: ANN401 - anybody's loader
        self.loader, self._tell = loader, tell

    def __iter__(self) -> Iterator[Any]:
        self._tell(self.loader)
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)


def cycle_of(combined: Any) -> Cycle | None:  # noqa: ANN401 - as above
    """Return what listens to loaders of which some may begin again; None where none does."""
    begins = len(combined.flattened) > 1 and combined._mode == "max_size_cycle"  # noqa: SLF001 - Lightning shows it nowhere
    return Cycle(combined) if begins else None


class Loaders:
    """The loaders of a fit, by Lightning's `CombinedLoader`.

    Parameters
    ----------
    combined
        Lightning's loader; None before there is one.
    """

    def __init__(self, combined: Any) -> None:  # noqa: ANN401 - Lightning's own
        self._combined = combined
        self.all: list[Any] = [] if combined is None else list(combined.flattened)

    def marks(self) -> list[Marks]:
        """Return what each loader has of its own."""
        return [marks_of(loader) for loader in self.all]

    def restore(self, marks: Sequence[Marks]) -> list[str]:
        """Give the loaders what `marks` has told, and return what of it there is no place for."""
        return [missing for loader, told in zip(self.all, marks, strict=False) for missing in give(loader, told)]

    def advance(self, fetcher: Any, count: int) -> None:  # noqa: ANN401 - Lightning's own
        """Have so many batches behind it. What need not be loaded for that is not."""
        if fetcher.length is None:
            fetcher.fetched -= count
        iterators = getattr(getattr(self._combined, "_iterator", None), "iterators", [])
        own = iterators[0] if len(iterators) == 1 else None
        if type(own) is _SingleProcessDataLoaderIter and self._draws_by_index(self.all[0]):
            for _ in range(count):
                next(own._sampler_iter)  # noqa: SLF001 - torch offers no way to skip
            own._num_yielded += count  # noqa: SLF001 - as above
            self._combined._iterator._idx += count  # noqa: SLF001 - as above
            return
        self._load(fetcher, count)

    @staticmethod
    def _load(fetcher: Any, count: int) -> None:  # noqa: ANN401 - as above
        for _ in range(count):
            # A fetcher that does not know the length has one batch more in its hands.
            next(fetcher if fetcher.length is None else fetcher.iterator)

    @staticmethod
    def _draws_by_index(loader: Any) -> bool:  # noqa: ANN401 - anybody's loader
        """Whether a batch depends on nothing but its indices and the generators that everybody draws from."""
        dataset = getattr(loader, "dataset", None)
        if dataset is None or isinstance(dataset, IterableDataset):
            return False
        own = (_part(loader, "dataset"), _part(loader, "dataset.dataset"))
        return not any(isinstance(value, generators.KINDS) for part in own for value in _values(part))

    def doubts(self, epoch: int) -> list[str]:
        """Return why the batches to come may be others than they would have been, a sentence for each reason.

        Parameters
        ----------
        epoch
            The epoch that is gone back to, counted from 0.
        """
        found = []
        for loader in self.all:
            sampler, dataset = getattr(loader, "sampler", None), getattr(loader, "dataset", None)
            if isinstance(dataset, IterableDataset):
                found.append(
                    f"{type(dataset).__name__} is an iterable dataset: it is read again from its beginning, and has "
                    "what it had only if its order depends on nothing but the generators"
                )
            elif sampler is not None and not _is_known(sampler):
                found.append(
                    f"the order of {type(sampler).__name__} is the same only if it depends on nothing but the "
                    "generators, its own ones included"
                )
            if getattr(loader, "persistent_workers", False) and epoch > 0:
                found.append("what workers that persist have drawn in earlier epochs is lost")
        return found


def _part(loader: Any, path: str) -> Any:  # noqa: ANN401 - anybody's loader
    part = loader
    for name in filter(None, path.split(".")):
        try:
            part = getattr(part, name, None)
        except Exception:  # noqa: BLE001 - anybody's property
            return None
    return part


def _values(part: Any) -> list[Any]:  # noqa: ANN401 - as above
    return list(getattr(part, "__dict__", {}).values())[:_MANY]


def _is_known(sampler: object) -> bool:
    return type(sampler).__module__.split(".")[0] in {"torch", "lightning", "pytorch_lightning", "torchdata"}


def in_use(trainer: Any) -> Loaders:  # noqa: ANN401 - either package's Trainer
    """Return the loaders that a Trainer trains with."""
    return Loaders(trainer.fit_loop._combined_loader)  # noqa: SLF001 - Lightning shows only what the user gave


def is_stateful(loader: object) -> bool:
    """Whether a loader tells and takes its own position, as torchdata's `StatefulDataLoader` does."""
    return all(callable(getattr(loader, name, None)) for name in ("state_dict", "load_state_dict"))

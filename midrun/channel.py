"""The channel: what the ranks of one run tell each other, through the store by which they found each other.

None of it is a collective operation: ranks may differ in what they do, one of them may not use midrun at all, and none
waits for another but where it says so. A connection of its own keeps the process group's free: a store's client does
one thing at a time, and midrun may wait for hours.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from torch import distributed
from torch.distributed import distributed_c10d as c10d

_FOR_EVER = timedelta(days=3650)
"""How long a connection waits for a key: a store that gives up says so on the terminal, each time."""


class Gone(ConnectionError):  # noqa: N818 - it reads as what has become of the store
    """The store does not answer any more: the process that has it, which is rank zero's most often, has ended."""


class Channel:
    """A connection to the store of a run. Threads may share it, but while one waits for a key all of them do.

    Parameters
    ----------
    store
        The connection.
    prefix
        What the keys of this run begin with: a process may have several runs, one after the other.

    Its methods raise Gone where the store does not answer.
    """

    def __init__(self, store: Any, prefix: str) -> None:  # noqa: ANN401 - a c10d store
        self._store = c10d.PrefixStore(prefix, store)

    def within(self, prefix: str) -> Channel:
        """Return the channel of what begins so, over the same connection."""
        return Channel(self._store, prefix)

    def put(self, key: str, value: Any) -> None:  # noqa: ANN401 - any JSON value
        """Have all ranks see a value."""
        with _gone():
            self._store.set(key, json.dumps(value))

    def get(self, key: str) -> Any:  # noqa: ANN401 - as above
        """Return a value, or None where there is none yet."""
        with _gone():
            return self.wait(key) if self._store.check([key]) else None

    def wait(self, key: str) -> Any:  # noqa: ANN401 - as above
        """Return a value once there is one, however long that takes."""
        with _gone():
            return json.loads(self._store.get(key))

    def decide(self, key: str, value: str) -> str:
        """Return what was decided: `value`, unless somebody has decided before."""
        with _gone():
            decided: Any = self._store.compare_set(key, "", json.dumps(value))
        return str(json.loads(decided))

    def forget(self, *keys: str) -> None:
        """Free the memory that values take, where there are any."""
        with _gone():
            for key in keys:
                self._store.delete_key(key)


def is_open() -> bool:
    """Whether this process is in a process group that has a store."""
    return distributed.is_available() and distributed.is_initialized() and isinstance(_own_store(), _TCP)


def connect(prefix: str) -> Channel:
    """Return a connection of its own to the store of the process group. Raises Gone where that does not answer."""
    with _gone():
        return Channel(_connection(), prefix)


def announce(prefix: str, key: str, text: str) -> None:
    """Have whoever else uses the store see a text: as it is, where a channel's values are JSON."""
    with _gone():
        c10d.PrefixStore(prefix, _connection()).set(key, text)


def _connection() -> Any:  # noqa: ANN401 - a c10d store
    store = _own_store()
    return _TCP(store.host, store.port, None, False, _FOR_EVER, wait_for_workers=False)


def _own_store() -> Any:  # noqa: ANN401 - as above
    """Return the store behind the prefixes that the process group puts before its keys."""
    store: Any = c10d._get_default_store()  # noqa: SLF001 - the group has it, and no other way in
    while isinstance(store, c10d.PrefixStore):
        store = store.underlying_store
    return store


_TCP: Any = getattr(distributed, "TCPStore", ())
"""The kind of store that a process group has which is found by an address: a client can be added to it."""


@contextmanager
def _gone() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # torch's own kinds of it are not in all its versions
        raise Gone(str(error).partition("\n")[0]) from error

"""Services: what a run offers, whether each works, and if not, why."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Literal, TypedDict

from midrun.log import RunLog

_PAUSE = 0.02
"""Seconds between two looks whether all are ready."""

State = Literal["off", "starting", "running", "failed"]


class ServiceRecord(TypedDict):
    """A service as `state/services.json` shows it."""

    state: State
    reason: str | None
    """Why it is off or failed, or is being started again."""
    since: float
    """When it came to this state. Seconds since 1970."""


class Service:
    """One service of a run. Its state is replaced whole, so that any thread may read it."""

    def __init__(self, name: str, log: RunLog, changed: Callable[[], object] = lambda: None) -> None:
        self.name = name
        self._log = log
        self._changed = changed
        self._record = ServiceRecord(state="off", reason=None, since=time.time())

    @property
    def state(self) -> State:
        """`off`, `starting`, `running` or `failed`."""
        return self._record["state"]

    @property
    def reason(self) -> str | None:
        """Why it is off or failed."""
        return self._record["reason"]

    @property
    def record(self) -> ServiceRecord:
        """The service as `state/services.json` shows it."""
        return self._record

    @property
    def is_up(self) -> bool:
        """Whether it works, or may work in a moment."""
        return self.state in {"starting", "running"}

    def announce(self) -> None:
        """Have what depends on the service told anew."""
        self._changed()

    def warn(self, reason: str) -> None:
        """Say what a user should know of a service that works."""
        self._log.alert(f"{self.name}: {reason}")

    def start(self, reason: str | None = None) -> None:
        """Say that it is being started; a `reason` means again, and goes to the log."""
        if reason is not None:
            self.warn(reason)
        self._become("starting", reason)

    def run(self) -> None:
        """Say that it works."""
        self._become("running", None)

    def fail(self, reason: str) -> None:
        """Say that it does not work: why, and what to do. Training goes on."""
        self._log.alert(f"{self.name} does not run: {reason}")
        self._become("failed", reason)

    def turn_off(self, reason: str) -> None:
        """Say that it is off, and who turned it off."""
        self._become("off", reason)

    def _become(self, state: State, reason: str | None) -> None:
        if (state, reason) == (self.state, self.reason) and state != "off":
            return
        self._record = ServiceRecord(state=state, reason=reason, since=time.time())
        self._changed()


def wait_until_ready(services: Collection[Service], patience: float) -> None:
    """Wait, for `patience` seconds at most, until every service runs or has failed.

    Raises RuntimeError with the reasons of those that failed.
    """
    deadline = time.monotonic() + patience
    while any(service.state == "starting" for service in services) and time.monotonic() < deadline:
        time.sleep(_PAUSE)
    late = f"not ready in {patience:g} s"
    failed = [
        f"{service.name}: {service.reason if service.state == 'failed' else late}"
        for service in services
        if service.state in {"failed", "starting"}
    ]
    if failed:
        raise RuntimeError(f"inspection_strict=True, and {'; '.join(failed)}")

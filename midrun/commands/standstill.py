"""Holding, letting go, stopping, and taking commands back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from midrun.command import EVALUATION, STEP, Command
from midrun.commands.kind import Arguments, Here, Kind, Shared
from midrun.fs.faults import Conflict, NotFound
from midrun.hold import is_hold
from midrun.table import unknown

if TYPE_CHECKING:
    from midrun.run import Run

_ACTIVE = "it is an active hold"
_Id = Annotated[str, Field(min_length=1, max_length=128, description="The command's id.")]


class Reason(Arguments):
    """Why a run is held."""

    reason: Annotated[str, Field(max_length=1000)] | None = Field(default=None, description="Why, for the record.")


class CommandId(Arguments):
    """Which command is meant."""

    id: _Id


class Hold(Kind):
    """Hold training at the next safe point: before an optimizer step, unless `when` says otherwise."""

    name = "hold"
    Arguments = Reason
    bare = "reason"
    points = (STEP, EVALUATION)
    on_every_rank = True

    def admit(self, run: Run, args: Reason) -> None:
        """Refuse a hold of what has been stopped."""
        super().admit(run, args)
        if run.holds.exception is not None:
            raise Conflict(
                "an exception holds the run, which ends with it when it is released: there is nothing to hold"
            )
        if run.holds.stopped:
            raise Conflict(
                "a stop has run: there is nothing to hold until the next fit, validate, test or predict begins"
            )

    def do(self, run: Run, args: Reason, command: Command) -> dict[str, Any]:
        """Stand still until somebody lets go."""
        return run.points.hold(command)


class Pause(Hold):
    """Hold training before the next optimizer step. `continue` lets it go, or cancels it while it is not active yet."""

    name = "pause"
    ignores_limit = True


class Continue(Kind):
    """Let a held run go on, and cancel a pause that is not active yet."""

    name = "continue"
    at_once = True

    def do(self, run: Run, args: Arguments, command: Command) -> dict[str, Any]:
        """Let go."""
        source = command.record["source"]
        pauses = [hold for hold in run.holds.pending() if hold.record["kind"] == "pause"]
        done = {"cancelled_holds": run.queue.cancel(pauses, source), "released": run.holds.release(source)}
        if run.holds.exception is not None:
            done["notes"] = ["an exception holds the run: release_exception, or stop, lets it end"]
        elif not any(done.values()):
            done["notes"] = ["nothing was held"]
        return done


class Release(Kind):
    """Let the active hold go, named by its own id or by that of a hold that has joined it."""

    name = "release"
    Arguments = CommandId
    bare = "id"
    at_once = True

    def admit(self, run: Run, args: CommandId) -> None:
        """Refuse what is no active hold."""
        if not run.holds.covers(args.id):
            raise _no_such(run, args.id) or Conflict(f"the hold {args.id!r} is not active: {_status(run, args.id)}")

    def do(self, run: Run, args: CommandId, command: Command) -> dict[str, Any]:
        """Let go."""
        return {"released": run.holds.release(command.record["source"]), "cancelled_holds": []}


class ReleaseException(Kind):
    """Let the exception go that holds the run since `backward()` raised it: it is raised again, and the run ends."""

    name = "release_exception"
    confirm = "Release the exception? It is raised again, and the run ends with it."
    at_once = True

    def admit(self, run: Run, args: Arguments) -> None:
        """Refuse where no exception holds the run."""
        caught = run.holds.exception
        if caught is None:
            raise Conflict("no exception holds the run")
        if caught.released_by is not None:
            raise Conflict(f"the exception has been released by {caught.released_by}")

    def do(self, run: Run, args: Arguments, command: Command) -> dict[str, Any]:
        """Let go, unless it was just done."""
        released = run.holds.release_exception(command.record["source"])
        if released is None:
            raise Conflict("no exception holds the run any more")
        return {"exception": released}


class Cancel(Kind):
    """Take back a command that has not begun, a hold that is not active yet included."""

    name = "cancel"
    Arguments = CommandId
    bare = "id"
    at_once = True

    def admit(self, run: Run, args: CommandId) -> None:
        """Refuse what is not waiting."""
        record = run.queue.table.record(args.id)
        if record is None or record["status"] != "queued":
            raise _no_such(run, args.id) or _not_waiting(run, args.id)

    def do(self, run: Run, args: CommandId, command: Command) -> dict[str, Any]:
        """Cancel it, unless training has just begun to do it."""
        id_ = args.id
        cancelled = run.queue.cancel([c for c in run.queue.table.queued if c.id == id_], command.record["source"])
        if not cancelled:
            raise _not_waiting(run, id_)
        return {"cancelled": id_}


class Stop(Shared):
    """Stop training cleanly: the batch is finished, Lightning validates and tears down as at any end.

    A run that an exception holds ends with that exception.
    """

    name = "stop"
    confirm = (
        "Stop training? The batch is finished, and then the run ends as it would at its last step. "
        "To go on later, save a checkpoint first. A run that an exception holds ends with that exception."
    )
    ignores_limit = True
    while_held = True

    def do_here(self, here: Here, args: Arguments) -> None:
        """Stop on this rank."""
        here.loop.stop()

    def do(self, run: Run, args: Arguments, command: Command) -> dict[str, Any]:
        """Stop, and hold no more."""
        run.holds.stopped = True
        self.do_here(run, args)
        run.session["stopped_by"] = command.record["source"]
        run.log.say(f"stopped by {command.record['source']} at step {run.loop.step}")
        cancelled = run.queue.cancel(run.holds.pending(), "stop")
        return {"cancelled_holds": cancelled, "released": run.holds.end("stop")}


def _no_such(run: Run, id_: str) -> NotFound | None:
    return None if id_ in run.queue.table else NotFound(unknown(id_))


def _not_waiting(run: Run, id_: str) -> Conflict:
    status = _status(run, id_)
    instead = "; release it instead" if status == _ACTIVE else ""
    return Conflict(f"only what waits can be cancelled, and {id_!r} does not: {status}{instead}")


def _status(run: Run, id_: str) -> str:
    record = run.queue.table.record(id_)
    if record is None:
        return "it is unknown"
    if is_hold(record["kind"]) and record["status"] == "executing":
        return _ACTIVE if run.holds.covers(id_) else "it has been released"
    return f"it is {record['status']}"

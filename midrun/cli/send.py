"""Send: a command is a file that is put into a run's spool, and what becomes of it is read from there.

See `midrun.fs.spool` for the directories. Nothing here asks the run itself, so it works from any host that shares the
disk with it.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from midrun.cli import output
from midrun.cli.output import Trouble, one_line, shown, to_stderr, to_stdout
from midrun.cli.runs import Run, document, read, restored
from midrun.command import OVER, new_id
from midrun.fs.disk import write_whole
from midrun.fs.render import render
from midrun.fs.spool import STATES
from midrun.fs.write import LEGAL_ID, LEGAL_ID_WORDS, LONGEST_WRITE
from midrun.hold import is_hold

TAKEN_HERE, TAKEN_ELSEWHERE = 10.0, 90.0
"""Seconds in which a run takes a command: network file systems show another host's files late, up to a minute."""
OUT_OF_TIME, INTERRUPTED = 124, 130
"""Exit codes, as those of `timeout` and of a shell."""

_ANOTHER_TIME = {409, 410, 503, 504}
"""Statuses of refusals of what may be taken another time, as it is written: see `midrun.fs.faults`."""
_SOON, _SELDOM = 0.02, 0.25
"""Seconds between two looks: at first, and in the end."""
_CROSSING = 0.5
"""Seconds in which a command shows that was being taken while it was withdrawn."""
_LAST_WORDS = 3.0
"""Seconds after its end in which a run has said what became of the commands."""


class Delivery(NamedTuple):
    """How to send a command, and what to tell of it."""

    waits: bool
    timeout: float | None
    as_json: bool
    is_for_next: bool
    """Whether it may wait for the run's next session."""


# ---- what is sent


def from_words(words: list[str]) -> dict[str, Any]:
    """Return the command that a kind and its `name=value` say, or a JSON object, or `-` for one on standard input."""
    first, *more = words
    if first == "-" or first.lstrip().startswith("{"):
        if more:
            raise Trouble(f"{more[0]!r} is too much: a JSON object is the whole command", 2)
        return _from_json(first)
    args: dict[str, Any] = {}
    for word in more:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise Trouble(f"{word!r} is no argument: write name=value, as in value=5e-4 ({_hint(first)})", 2)
        if name in args:
            raise Trouble(f"{word!r}: {name} is given twice", 2)
        args[name] = _value(value)
    return {"kind": first, "args": args}


def _hint(first: str) -> str:
    return f"{first!r} is taken for the kind: no run is in a directory of that name"


def _from_json(text: str) -> dict[str, Any]:
    source = "standard input" if text == "-" else "the command"
    try:
        data = sys.stdin.buffer.read(LONGEST_WRITE + 1) if text == "-" else text.encode(errors="surrogateescape")
        if len(data) > LONGEST_WRITE:
            raise Trouble(f"{source} is over {LONGEST_WRITE} bytes: no command is that long", 2)
        command = json.loads(data.decode(), object_pairs_hook=_members, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise Trouble(f"{source} is no JSON: {error}: {text!r:.200}", 2) from None
    if not isinstance(command, dict):
        raise Trouble(f'{source} is no JSON object: write {{"kind": …, "args": {{…}}}}, not {text!r:.200}', 2)
    return command


def _value(text: str) -> Any:  # noqa: ANN401 - JSON is of many types
    """Return what a word means: JSON where it reads as that, else itself."""
    try:
        return json.loads(text, object_pairs_hook=_members, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text


def _members(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) < len(members):
        raise ValueError(f"a member is given twice among {', '.join(name for name, _ in members)}")
    return found


def _refuse(word: str) -> Any:  # noqa: ANN401 - as json wants it
    raise ValueError(f"{word} is no JSON number")


def request(command: dict[str, Any], when: dict[str, Any], id_: str | None, how: Delivery) -> tuple[str, bytes]:
    """Return a command's id, and the file that asks for it."""
    if when and command.get("execution"):
        raise Trouble("when to run it is given twice: in the JSON's execution, and by --at, --epoch or --step", 2)
    if id_ is not None and command.get("id", id_) != id_:
        raise Trouble(f"the id is {command['id']!r} in the JSON and {id_!r} by --id: leave one out", 2)
    named = id_ if id_ is not None else command.get("id", new_id())
    if not isinstance(named, str) or not LEGAL_ID.fullmatch(named):
        raise Trouble(f"{named!r:.200} can't be an id: {LEGAL_ID_WORDS}", 2)
    asked = {"source": "hook" if "MIDRUN_CALLBACK" in os.environ else "command line", **command}
    if when:
        asked["execution"] = {"when": when}
    if how.is_for_next:
        asked["session"] = "next"
    try:
        return named, f"{json.dumps(asked, allow_nan=False)}\n".encode()
    except ValueError:
        raise Trouble("a number is too large for JSON: write it as text, if it has to be", 2) from None


# ---- sending it


def send(run: Run, command: dict[str, Any], when: dict[str, Any], id_: str | None, how: Delivery) -> int:
    """Send a command, tell of it, and return the exit code. Raises `Trouble` when it is not sent, or refused."""
    named, data = request(command, when, id_, how)
    if not run.is_live and not how.is_for_next:
        raise Trouble(
            f"the run in {run.directory} is {run.life} ({run.why}), and nobody would take the command: "
            "--next leaves it for the run's next session"
        )
    sent = Sent(run, named, json.loads(data))
    try:
        sent.put(data)
        return _follow(sent, how)
    except KeyboardInterrupt:
        to_stderr(f"{named} {sent.give_up()}")
        return INTERRUPTED


def _follow(sent: Sent, how: Delivery) -> int:
    """Wait as long as the user wants to, and tell what is known then."""
    begun = time.monotonic()
    if sent.run.is_live:
        patience = TAKEN_HERE if sent.run.is_here else TAKEN_ELSEWHERE
        sent.await_taken(patience if how.timeout is None else min(patience, how.timeout))
    elif not how.waits:
        _print(sent.id, json.dumps(sent.asked) if how.as_json else sent.id)
        return 0
    if how.waits:
        deadline = None if how.timeout is None else begun + how.timeout
        if not sent.await_outcome(deadline):
            to_stderr(f"{sent.id} is {sent.state} after {how.timeout:g} s, and stays sent")
            return OUT_OF_TIME
    record = sent.record
    if how.as_json:
        _print(sent.id, render("command.json", record).decode().rstrip("\n"))
    else:
        _print(sent.id, "\n".join(sent.outcome()) if how.waits else sent.id)
        for note in [] if how.waits else (record.get("result") or {}).get("notes", []):
            to_stderr(f"{sent.id}: {one_line(str(note))}")  # It was done at once, and there is more to it than that.
    if record.get("status") in OVER and record["status"] != "succeeded":
        to_stderr(sent.failure())
        return 1
    return 0


def _print(id_: str, text: str) -> None:
    try:
        to_stdout(text)
    except OSError as error:
        raise Trouble(f"{id_} is sent, but that can't be printed: {error.strerror or error}") from None


class Sent:
    """A command on its way through a spool.

    Parameters
    ----------
    asked
        What its file says.
    """

    def __init__(self, run: Run, id_: str, asked: dict[str, Any]) -> None:
        self.run = run
        self.id = id_
        self.asked = asked
        self.state = "new"
        """The directory that it was last seen in, or `nowhere`."""
        self.record: dict[str, Any] = {}
        """Its record there."""
        self.hold: dict[str, Any] = {}
        """The hold that it is, while that is active."""
        self._spool = run.path / "spool"
        self._file = f"{id_}.json"
        self._reasons: set[str] = set()

    def put(self, data: bytes) -> None:
        """Put its file into the spool. Raises `Trouble` when that does not work, or its id is used."""
        try:
            for state in ("new", *STATES):
                if self._is_in(state):
                    raise Trouble(
                        f"the id {self.id!r} is used: {state}/{self._file} is there; leave the id out for a new one", 2
                    )
            self._reasons = set(self._refusals())
            write_whole(self._spool / "new" / self._file, data, sync_name=True)
        except FileNotFoundError as error:
            raise Trouble(
                f"{self.run.directory!r} takes no commands: {error.filename!r}, which a run makes when it starts, is "
                "missing; midrun.log in the run's directory may say why"
            ) from None
        except OSError as error:
            raise Trouble(
                f"the command can't be written to {self._spool / 'new'}: {error.strerror or error}; nothing was sent"
            ) from None

    def withdraw(self) -> bool:
        """Take its file back; return False if the run has it."""
        try:
            (self._spool / "new" / self._file).unlink()
        except FileNotFoundError:
            return False
        deadline = time.monotonic() + _CROSSING
        while time.monotonic() < deadline:
            self.look()
            if self.state in STATES:
                return False
            time.sleep(_SOON)
        return True

    def give_up(self) -> str:
        """Withdraw it if that is still possible, and return what becomes of it."""
        if self.withdraw():
            return "was withdrawn"
        self.look()
        return "was not sent" if self.state == "nowhere" else f"stays sent: to undo it, send cancel id={self.id}"

    def look(self) -> None:
        """Look where it is. It only ever moves on, and so does the look. Raises `Trouble` where it was rejected."""
        for state in ("new", *STATES):
            if self._is_in(state):
                record = {} if state == "new" else document(self._spool / state / self._file)
                if record is not None:
                    self.state, self.record = state, restored(record)
                    return
        for name in self._refusals():
            if name not in self._reasons:
                reason = document(self._spool / "rejected" / name) or {}
                code = 1 if reason.get("status") in _ANOTHER_TIME else 2
                raise Trouble(f"{self._kind} is refused: {self._refusal(reason.get('detail'))}", code)
        self.state = "nowhere"

    def await_taken(self, patience: float) -> None:
        """Wait until the run has it. Raises `Trouble` when that does not come, and withdraws it then."""
        begun, lost, pause = time.monotonic(), None, _SOON
        while True:
            self.look()
            if self.state in STATES:
                return
            now = time.monotonic()
            lost = (lost or now) if self.state == "nowhere" else None
            if lost and now - lost > _CROSSING:
                raise Trouble(
                    f"{self.id} has left the spool without a trace: midrun.log in {self.run.directory} may tell"
                )
            if now - begun > patience and self.withdraw():
                raise Trouble(f"the run did not take {self.id} in {patience:g} s, and it was withdrawn{self._excuse()}")
            time.sleep(pause)
            pause = min(pause * 1.3, _SELDOM)

    def await_outcome(self, deadline: float | None) -> bool:
        """Wait until it is done, or is a hold that is active; return False when the deadline has come before."""
        over_since, pause, next_ask = None, _SOON, 0.0
        while True:
            self.look()
            if self.state == "done" or self._holds():
                return True
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                return False
            if self.run.is_live and now >= next_ask:
                next_ask = now + 1
                known = read(self.run.directory)
                over_since = None if known is not None and known.is_live else over_since or now
                if over_since is not None and now - over_since > _LAST_WORDS:
                    raise Trouble(
                        f"the run is {known.life if known else 'gone'} and {self.id} is {self.state} for good: "
                        f"the run's next session writes what became of it to {self._spool / 'done' / self._file}"
                    )
            time.sleep(pause if deadline is None else max(0.0, min(pause, deadline - now)))
            pause = min(pause * 1.3, _SELDOM)

    def outcome(self) -> list[str]:
        """Return what came of it, in lines."""
        where = output.place(self.record.get("place") or self.hold.get("place"))
        if self.state != "done":
            return [f"{self.id} holds the run at {where}"]
        lines = [f"{self.id} {self.record.get('status')} at {where}"]
        result = self.record.get("result") or {}
        lines += output.changes(result.get("changes") or [], most=20)
        lines += [f"{name}: {_brief(value)}" for name, value in result.items() if name != "changes" and _says(value)]
        return [lines[0], *(f"  {line}" for line in lines[1:])]

    def failure(self) -> str:
        """Return why it came to nothing."""
        error = self.record.get("error") or {}
        return (
            f"{self._kind} {self.record['status']}: {error.get('message') or error.get('type') or 'no reason is known'}"
        )

    # ---- inside

    @property
    def _kind(self) -> str:
        return str(self.asked.get("kind", self.id))

    def _is_in(self, state: str) -> bool:
        # Listed, not looked up: a network file system asks anew for a list, but keeps that a name is not there.
        return self._file in os.listdir(self._spool / state)  # noqa: PTH208 - only the names

    def _refusals(self) -> list[str]:
        legal = re.compile(rf"{re.escape(self.id)}(\.\d+)?\.error\.json")
        return [name for name in os.listdir(self._spool / "rejected") if legal.fullmatch(name)]  # noqa: PTH208 - as above

    def _holds(self) -> bool:
        if self.state != "executing" or not is_hold(str(self.record.get("kind"))):
            return False
        hold: dict[str, Any] = {}
        with suppress(OSError):
            hold = document(Path(self._spool, "holds", self._file)) or {}
        self.hold = hold if hold.get("status") == "active" else {}
        return bool(self.hold)

    def _refusal(self, detail: object) -> str:
        """Return a refusal as one line, with what was given."""
        if not isinstance(detail, list):
            return one_line(str(detail or "the run gives no reason"))
        told = []
        for error in detail:
            steps = [step for step in error.get("loc", ()) if step != "body"]
            name = ".".join(str(step) for step in (steps[1:] if steps[:1] == ["args"] and len(steps) > 1 else steps))
            given = _at(self.asked, steps)
            # What reads as JSON is sent as that.
            how = f""": write {name}='{json.dumps(str(given[1:]))}'""" if error.get("type") == "string_type" else ""
            told.append(f"{name}{given}: {error.get('msg')}{how}" if name else str(error.get("msg")))
        return one_line("; ".join(told))

    def _excuse(self) -> str:
        spool = (self.run.last.get("services") or {}).get("spool") or {}
        if spool.get("state") == "failed":
            return f": {spool.get('reason')}"
        return ": its process is stopped, or very busy; send it again when the run goes on" if self.run.is_here else ""


def _at(asked: Any, steps: list[Any]) -> str:  # noqa: ANN401 - JSON is of many types
    """Return `=value` of what a request has at a place, or nothing where it has none."""
    for step in steps:
        if not isinstance(asked, dict | list):
            return ""
        try:
            asked = asked[step]
        except (LookupError, TypeError):
            return ""
    if not steps or isinstance(asked, dict):
        return ""
    # As it was sent: 7.0 is not 7 where a whole number is wanted.
    return f"={asked if isinstance(asked, str) else json.dumps(asked):.200}"


def _says(value: Any) -> bool:  # noqa: ANN401 - any JSON value
    """Whether a member of a result says anything: 0 and false do."""
    return not (value is None or value in ("", [], {}))


def _brief(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """Return a member of a result as a person reads it: of a file, where it is."""
    return str(value["path"]) if isinstance(value, dict) and "path" in value else shown(value)

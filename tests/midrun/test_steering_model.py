"""Commands and holds against a model: whatever is sent to a live `Trainer.fit`, it does what docs/commands.md says.

`Reference` is what the documents say, in plain Python: a fit is a generator that goes from one standstill to the next.
`Fit` is a real one, whose `training_step` waits to be let go, so that nothing depends on time. `Steering`, a machine of
hypothesis, does the same to both and compares all that can be seen. What a document leaves open is said where
`Reference` decides it.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from midrun.command import Command
from midrun.commands import KINDS
from midrun.fs.faults import Fault
from midrun.fs.later import Later
from midrun.fs.write import Writer
from midrun.run import Run
from tests.midrun.models import Staged, batches, only_directory, run_of, settled, trainer
from tests.midrun.steering_reference import (
    AT_ONCE,
    BATCH,
    BATCHES,
    END,
    EPOCH,
    HOLDS,
    INVALID,
    PATIENCE,
    STEP,
    UNKNOWN,
    VALIDATION,
    Asked,
    Line,
    Place,
    Reference,
)

# ---- the real thing


class Stepwise(Staged):
    """A model whose training step waits until it is let go."""

    midrun_tunable_hparams = {"gain": {"min": 0.0, "max": 4.0}}

    def __init__(self) -> None:
        super().__init__()
        self.gain = 1.0
        self.seen: list[tuple[float, float]] = []
        self.gate: SimpleQueue[None] = SimpleQueue()
        self.is_free = False

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.125, momentum=0.5)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> Any:
        self.seen.append((self.trainer.optimizers[0].param_groups[0]["lr"], self.gain))
        if not self.is_free:
            self.gate.get()
        return self.gain * super().training_step(batch, batch_idx)


class Fit:
    """A `Trainer.fit` in a thread of its own."""

    def __init__(self, root: Path, model: Stepwise, max_epochs: int) -> None:
        self.model = model
        model.seen, model.gate = [], SimpleQueue()
        self._trainer = trainer(root, max_epochs=max_epochs, accumulate_grad_batches=2, num_sanity_val_steps=1)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._train, name="fit", daemon=True)
        self._thread.start()
        until(lambda: model.midrun.run is not None or not self._thread.is_alive(), "the run")
        self.run: Run = run_of(model)

    def _train(self) -> None:
        try:
            self._trainer.fit(self.model, batches(BATCHES), batches(1))
        except BaseException as error:  # noqa: BLE001 - it is raised where the fit is waited for
            self._error = error

    @property
    def position(self) -> object:
        """Where training stands still, as far as can be seen."""
        if not self._thread.is_alive():
            if self._error is not None:
                raise self._error
            return "over"
        active = json.loads(there(self.run.tree.read("holds/index.json")))["active"]
        if active is not None and active["released_by"] is None:
            return "held", active["id"]
        return "batch", len(self.model.seen)

    def end(self) -> None:
        """End it, whatever has become of it."""
        self.model.is_free = self._trainer.should_stop = True
        self.model.gate.put(None)

        def has_ended() -> bool:
            if isinstance(self.position, tuple) and self.position[0] == "held":
                there(self.run.tree.write("control/continue", b""))
            return not self._thread.is_alive()

        until(has_ended, "the end")


def there(value: Any) -> Any:
    """Return a value, once it is there."""
    return settled(value) if isinstance(value, Later) else value


def until(look: Callable[[], bool], what: str) -> None:
    """Wait for something."""
    deadline = time.monotonic() + PATIENCE
    while not look():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.0005)


# ---- the machine

NUMBER = st.integers(0, 99)
POINT = st.sampled_from([STEP, BATCH, VALIDATION, EPOCH, END])
WHEN = st.one_of(
    st.none(),
    st.fixed_dictionaries({"safe_point": POINT}),
    st.fixed_dictionaries({"epoch": st.integers(-1, 1)}, optional={"safe_point": POINT}),
    st.fixed_dictionaries({"global_step": st.integers(-1, 3)}, optional={"safe_point": POINT}),
)
"""When: an epoch or a step is told by its distance from the present one."""
HOLD = st.tuples(st.sampled_from(HOLDS), st.sampled_from([{}, {"reason": "look"}]))
OTHER = st.sampled_from(
    [
        *(("set_learning_rate", {"value": value}) for value in (0.25, 0.5, 0.0625)),
        ("set_learning_rate", {"value": 0.5, "optimizer": 3}),
        *(("set_hparam", {"name": "gain", "value": value}) for value in (0.5, 2, 3.0, 5.0)),
        ("checkpoint", {}),
        ("checkpoint", {"label": "kept"}),
        ("snapshot", {}),
        ("reset_momentum", {}),
        ("stop", {}),
    ]
)
NONSENSE = st.sampled_from(
    [
        {"kind": "hold", "execution": {"when": {"epoch": 1, "global_step": 3}}},
        {"kind": "hold", "execution": {"when": {}}},
        {"kind": "hold", "execution": {"when": {"safe_point": "on_train_start"}}},
        {"kind": "checkpoint", "execution": {"when": {"epoch": 1.0}}},
        {"kind": "set_learning_rate", "args": {"value": "0.5"}},
        {"kind": "set_hparam", "args": {"name": "hold", "value": 1.0}},
        {"kind": "explode"},
    ]
)
WAY = st.sampled_from(["file", "any", "spool"])
ABOUT = st.sampled_from(["file", "any", "spool", "its own", "its own"])

Ask = tuple[str, dict[str, Any]]


class Steering(RuleBasedStateMachine):
    """Does the same to a reference and to a fit."""

    root: Path

    def __init__(self) -> None:
        super().__init__()
        self.reference, self.model = Reference(), Stepwise()
        self.fits: list[Fit] = []
        self.late: list[tuple[Asked, bytes, bool]] = []
        """Files that were put into the spool while nothing ran, and whether they are for the next session."""
        self.numbers = itertools.count()
        self.is_sure = False
        """What was seen last is as it should be."""

    @property
    def is_live(self) -> bool:
        return self.reference.position != "over"

    @property
    def trains(self) -> bool:
        return self.reference.position == ("batch", len(self.reference.seen))

    @property
    def holds(self) -> list[str]:
        return [asked.id for asked in self.reference.commands.values() if asked.kind in HOLDS]

    @property
    def run(self) -> Run:
        return self.fits[-1].run

    @property
    def spool(self) -> Path:
        return self.run.directory / "spool"

    # ---- what can be done

    @initialize(max_epochs=st.sampled_from([2, 3, 1000]))
    def begin_first(self, max_epochs: int) -> None:
        self.begin(max_epochs)

    @precondition(lambda self: not self.is_live)
    @rule(max_epochs=st.sampled_from([2, 3, 1000]))
    def begin(self, max_epochs: int) -> None:
        self.is_sure = False
        self.fits.append(Fit(self.root, self.model, max_epochs))
        self.reference.begin(max_epochs)
        for asked, data, is_next in self.late:
            if asked.id in self.reference.commands or (is_next and self.reference.refuses(asked)):
                self._reject(asked.id, data)
            elif is_next:
                self.reference.take(asked)
            else:
                self.reference.expire(asked)
        self.late = []
        self._settle()

    @precondition(lambda self: not self.is_live)
    @rule(ask=st.one_of(HOLD, OTHER), when=WHEN, is_next=st.booleans(), number=NUMBER)
    def drop_between(self, ask: Ask, when: dict[str, Any] | None, is_next: bool, number: int) -> None:
        """Put a file into the spool while nothing runs, one in four under an id that is used for another kind.

        For what is the same see test_a_file_that_is_repeated_between_two_fits_is_told_so.
        """
        kind, args = ask
        used = [id_ for id_, asked in self.reference.commands.items() if asked.kind != kind]
        id_ = used[number % len(used)] if used and number % 4 == 0 else f"l-{next(self.numbers)}"
        when = when and {key: value if key == "safe_point" else max(0, value) for key, value in when.items()}
        body = {"kind": kind, "args": args, **({"session": "next"} if is_next else {})}
        if when is not None:
            body["execution"] = {"when": when}
        self.late = [(asked, data, later) for asked, data, later in self.late if asked.id != id_]
        self.late.append((Asked(id_, kind, args, when, "spool", "spool"), self._drop(id_, body), is_next))

    @precondition(lambda self: self.trains)
    @rule(count=st.integers(1, 6))
    def let_go(self, count: int) -> None:
        """Let batches go."""
        for _ in range(count):
            if self.trains:
                self.model.gate.put(None)
                self.reference.go()
                self._settle()

    @precondition(lambda self: self.is_live)
    @rule(ask=HOLD, when=WHEN, way=WAY, is_named=st.booleans(), count=st.integers(0, 4))
    def hold(self, ask: Ask, when: dict[str, Any] | None, way: str, is_named: bool, count: int) -> None:
        self._send(*ask, when=self._from_here(when), way=way, is_named=is_named)
        self.let_go(count)

    @precondition(lambda self: self.is_live)
    @rule(ask=OTHER, when=WHEN, way=WAY, is_named=st.booleans(), count=st.integers(0, 2))
    def send(self, ask: Ask, when: dict[str, Any] | None, way: str, is_named: bool, count: int) -> None:
        self._send(*ask, when=self._from_here(when), way=way, is_named=is_named)
        self.let_go(count)

    @precondition(lambda self: self.is_live and self.holds)
    @rule(way=WAY)
    def let_run(self, way: str) -> None:
        self._send("continue", {}, way=way)

    @precondition(lambda self: self.is_live and self.holds)
    @rule(way=ABOUT, number=NUMBER)
    def release(self, way: str, number: int) -> None:
        """Release a hold: one that is active or has joined it, or any, or none."""
        active = self.reference.active
        ids = [active.hold.id, *active.joined] if active and number % 3 else [*self.holds, "unknown"]
        self._about("release", ids[number % len(ids)], way)

    @precondition(lambda self: self.is_live and self.reference.commands)
    @rule(way=ABOUT, number=NUMBER)
    def cancel(self, way: str, number: int) -> None:
        """Cancel a command: one that waits, or any, or none."""
        known = self.reference.commands
        waiting = [asked.id for asked in known.values() if asked.status == "queued"]
        ids = waiting if waiting and number % 3 else [*known, "unknown"]
        self._about("cancel", ids[number % len(ids)], way)

    @precondition(lambda self: self.is_live and self.reference.commands)
    @rule(way=WAY, is_same=st.booleans(), number=NUMBER)
    def repeat(self, way: str, is_same: bool, number: int) -> None:
        """Send again what was sent, or something else under its id."""
        known = list(self.reference.commands.values())
        asked = known[number % len(known)]
        if is_same:
            self._send(asked.kind, asked.args, when=asked.when, way=way, id_=asked.id)
        else:
            self._send("snapshot", {"label": "another"}, way=way, id_=asked.id)

    @precondition(lambda self: self.is_live and len(self.reference.rejected) < 3)
    @rule(body=NONSENSE, way=st.sampled_from(["any", "spool"]))
    def send_nonsense(self, body: dict[str, Any], way: str) -> None:
        id_ = f"n-{next(self.numbers)}"
        if way == "any":
            self._expect(INVALID, "control/commands", body, id_)
        else:
            self._reject(id_, self._drop(id_, body))
        self._settle()

    # ---- what is compared

    @invariant()
    def it_is_as_documented(self) -> None:
        self.is_sure = False
        if self.is_live:
            # By what it refuses, the thread of the spool tells that it has done all that it was handed before.
            nothing = Command(KINDS["cancel"], KINDS["cancel"].Arguments.model_validate({"id": "nothing"}))
            with pytest.raises(Fault):
                settled(self.run.queue.submit(nothing))
        assert self.fits[-1].position == self.reference.position
        self._compare_commands()
        self._compare_files()
        self._compare_holds()
        self._compare_log()
        assert self.model.seen == self.reference.seen
        self.is_sure = True

    def teardown(self) -> None:
        try:
            if self.is_sure and self.is_live:
                self._send("stop", {}, way="file")
                while self.is_live:
                    self.let_go(1)
                self.it_is_as_documented()
        finally:
            for fit in self.fits:
                fit.end()

    def _compare_commands(self) -> None:
        known = self.reference.commands
        index = self._read("commands/index.json")["commands"]
        assert {record["id"] for record in index} == set(known)
        for record in index:
            asked = known[record["id"]]
            assert self._read(f"commands/{asked.id}/command.json") == record
            assert self.run.tree.read(f"commands/{asked.id}/status") == f"{asked.status}\n".encode(), record
            assert record["durable"]
            assert record["args"] == {**record["args"], **asked.args}
            assert record["execution"] == ({} if asked.when is None else {"when": asked.when})
            told = tuple(record[key] for key in ("status", "kind", "source", "via"))
            assert told == (asked.status, asked.kind, asked.source, asked.via), record
            is_done, is_over = asked.status in {"succeeded", "failed"}, asked.status not in {"queued", "executing"}
            assert (record["place"] and Place(**record["place"])) == (asked.place if is_done else None), record
            assert (record["started"] is not None) == (is_done or asked.status == "executing")
            assert (record["finished"] is not None) == is_over
            assert (record["error"] is not None) == (is_over and asked.status != "succeeded")
            result = record["result"]
            assert result == ({**result, **asked.result} if asked.status == "succeeded" else None)

    def _compare_files(self) -> None:
        assert self._on_disk() == self._states()
        for state in ("queued", "executing", "done"):
            for path in (self.spool / state).iterdir():
                assert json.loads(path.read_bytes()) == self._read(f"commands/{path.stem}/command.json")
        rejected = sorted((self.spool / "rejected").iterdir())
        files = [path for path in rejected if not path.name.endswith(".error.json")]
        assert sorted(path.read_bytes() for path in files) == sorted(self.reference.rejected)
        assert [path.with_suffix(".error.json") for path in files] == sorted(set(rejected) - set(files))

    def _compare_holds(self) -> None:
        index, active = self._read("holds/index.json"), self.reference.active
        known = self.reference.commands.values()
        queued = [asked for asked in known if asked.status == "queued"]
        assert index["stopped"] == self.reference.stopped
        assert index["exception"] is None
        assert [hold["id"] for hold in index["pending"]] == [a.id for a in queued if a.kind in HOLDS]
        waiting = [asked.id for asked in queued if asked.kind not in HOLDS]
        assert [record["id"] for record in index["waiting"]] == (waiting if active else [])
        assert self._read("state/hold.json") == (index["active"] or {})
        assert (index["active"] is not None) == (active is not None)
        if active is not None:
            told = index["active"]
            assert Place(**told["place"]) == active.place
            assert (told["id"], told["status"], told["joined_ids"]) == (active.hold.id, "active", active.joined)
            assert (told["is_pause"], told["released_by"]) == (active.hold.kind == "pause", None)
        for asked in known:
            if asked.kind in HOLDS:
                record = self._read(f"holds/{asked.id}/hold.json")
                words = {"queued": "pending", "executing": "active", "succeeded": "released"}
                status = "joined" if "active_hold_id" in asked.result else words.get(asked.status, asked.status)
                assert (record["status"], record["reason"]) == (status, asked.args.get("reason"))
                if not asked.is_late:  # see test_a_hold_that_comes_too_late_has_a_file
                    assert json.loads((self.spool / "holds" / f"{asked.id}.json").read_bytes()) == record
        status = "held" if active else "running" if self.is_live else "finished"
        assert self.run.tree.read("state/status") == f"{status}\n".encode()

    def _compare_log(self) -> None:
        path = self.run.directory / "control-log.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        told = [Line(**{**{key: line[key] for key in Line._fields}, "place": Place(**line["place"])}) for line in lines]
        assert told == self.reference.lines  # For changes that are none see test_a_value_that_stays_is_no_change.
        assert [line["revision"] for line in lines] == list(range(1, len(lines) + 1))
        log = self._read("state/control-log.json")
        assert (log["revision"], log["entries"]) == (len(lines), lines[-100:])
        assert [entry["path"] for entry in self._read("control/errors.json")["errors"]] == self.reference.refused[::-1]

    # ---- how it is done

    def _from_here(self, when: dict[str, Any] | None) -> dict[str, Any] | None:
        if when is None:
            return None
        present = {"epoch": self.reference.epoch, "global_step": self.reference.step}
        return {**when, **{key: max(0, when[key] + value) for key, value in present.items() if key in when}}

    def _about(self, kind: str, id_: str, way: str) -> None:
        """Release or cancel."""
        if way != "its own":
            self._send(kind, {"id": id_}, way=way)
            return
        known = self.reference.commands.get(id_)
        directory = "holds" if known is not None and known.kind in HOLDS else "commands"
        asked = Asked(f"a-{next(self.numbers)}", kind, {"id": id_})
        if directory == "commands" and (kind == "release" or known is None):
            self._expect(UNKNOWN, f"{directory}/{id_}/{kind}", {}, asked.id)
        else:
            self._write(asked, f"{directory}/{id_}/{kind}", b"", asked.id)
        self._settle()

    def _send(
        self,
        kind: str,
        args: dict[str, Any],
        *,
        when: dict[str, Any] | None = None,
        way: str,
        id_: str | None = None,
        is_named: bool = True,
    ) -> None:
        """Send a command, and wait for what comes of it."""
        number = next(self.numbers)
        token = id_ or (f"{way}-{number}" if is_named or way == "spool" else None)
        body: dict[str, Any] = {"kind": kind, "args": args}
        if when is not None:
            body["execution"] = {"when": when}
        if way == "spool":
            assert token is not None
            asked = Asked(token, kind, args, when, "script" if number % 2 else "spool", "spool")
            if number % 2:
                body["source"] = "script"
            data = self._drop(token, body)
            if self.reference.refuses(asked) is None:
                self.reference.take(asked)
            else:
                self._reject(token, data)
        else:
            face = "rest" if number % 2 else "fuse"
            asked = Asked(token or "", kind, args, when, face, face)
            if way == "file" and when is None:
                bare = KINDS[kind].bare
                is_bare = number % 3 == 0 and list(args) == [bare]
                text = str(args[bare]) if is_bare and bare is not None else json.dumps(args)
                self._write(asked, f"control/{kind}", text.encode(), token)
            else:
                self._write(asked, "control/commands", json.dumps(body).encode(), token)
        self._settle()

    def _write(self, asked: Asked, path: str, data: bytes, token: str | None) -> None:
        """Write to a control file what is a command, and compare what the writer is told."""
        self.is_sure = False
        known = self.reference.commands.get(asked.id)
        is_repeated = known is not None and known.content == asked.content
        status = None if is_repeated else self.reference.refuses(asked)
        try:
            answer = self._answer(path, data, Writer(asked.via, token))
        except Fault as fault:
            assert fault.status == status, fault  # noqa: PT017 - that it is not refused is right as well
            self.reference.refused.append(path)
            return
        assert status is None, f"it was not refused with {status}"
        assert answer["kind"] == asked.kind
        if is_repeated:
            assert known is not None
            assert (answer["id"], answer["status"]) == (known.id, known.status)
            told = known
        else:
            asked.id = answer["id"]
            assert token in {None, asked.id}
            self.reference.take(asked)
            told = asked
        if asked.kind in AT_ONCE:
            assert answer == {**answer, **told.result, "status": "succeeded"}

    def _expect(self, status: int, path: str, body: dict[str, Any], token: str) -> None:
        """Write what is no command."""
        self.is_sure = False
        with pytest.raises(Fault) as raised:
            self._answer(path, json.dumps(body).encode(), Writer("rest", token))
        assert raised.value.status == status
        self.reference.refused.append(path)

    def _answer(self, path: str, data: bytes, writer: Writer) -> Any:
        return there(self.run.tree.write(path, data, writer=writer))

    def _drop(self, id_: str, body: dict[str, Any]) -> bytes:
        """Put a file into `new/`, as docs/spool.md says."""
        self.is_sure = False
        data = json.dumps(body).encode()
        aside = self.spool / "new" / f".{id_}"
        aside.write_bytes(data)
        aside.rename(self.spool / "new" / f"{id_}.json")
        return data

    def _reject(self, id_: str, data: bytes) -> None:
        self.reference.rejected.append(data)
        self.reference.refused.append(f"spool/new/{id_}.json")

    def _states(self) -> dict[str, str]:
        """Return in which directory each command is to be."""
        return {
            id_: asked.status if asked.status in {"queued", "executing"} else "done"
            for id_, asked in self.reference.commands.items()
        }

    def _settle(self) -> None:
        """Wait until training stands where it should and the disk shows what it should."""
        run, reference = self.run, self.reference

        def is_settled() -> bool:
            return (
                self.fits[-1].position == reference.position
                and not (self.is_live and list(self.spool.glob("new/*.json")))
                and self._on_disk() == self._states()
                and run.queue.control_log.revision == len(reference.lines)
                and self._is_held_as_it_should()
                and len(run.control_errors.newest()) == len(reference.refused)
            )

        try:
            until(is_settled, "what the reference has")
        finally:
            if not is_settled():
                self.it_is_as_documented()  # It says what differs.

    def _is_held_as_it_should(self) -> bool:
        """Whether a hold is seen, and on the disk: its line in the control log comes before both."""
        standing, active = self.reference.active, self.run.holds.active
        if standing is None or active is None:
            return standing is None and active is None
        written = self.spool / "holds" / f"{standing.hold.id}.json"
        return written.exists() and json.loads(written.read_bytes())["status"] == "active"

    def _on_disk(self) -> dict[str, str]:
        """Return in which directory each command is, also one that is in two."""
        places = [path for state in ("queued", "executing", "done") for path in self.spool.glob(f"{state}/[!.]*")]
        return {path.stem: "/".join(p.parent.name for p in places if p.stem == path.stem) for path in places}

    def _read(self, path: str) -> Any:
        return json.loads(there(self.run.tree.read(path)))


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in (1, 2, 3))])
def test_whatever_is_sent_does_what_is_documented(
    part: int, tmp_path: Path, times: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A disk that is slow for a second, as one of many tests' may be, would have a command done a safe point later.
    monkeypatch.setattr("midrun.queue._WRITE_PATIENCE", PATIENCE)
    monkeypatch.setattr("midrun.queue._POLL", 0.005)
    machine = seed(part)(type("Steering", (Steering,), {"root": tmp_path}))
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=1 + max(8, times(22)),  # The first is always the simplest that there is.
            stateful_step_count=25,
            deadline=None,
            database=None,
            phases=[Phase.generate],  # To make a failure smaller takes minutes: add Phase.shrink then.
            suppress_health_check=[HealthCheck.too_slow],  # An example trains, and waits for the disk at each command.
        ),
    )


# ---- where midrun does otherwise


def _fit(root: Path, model: Staged) -> Path:
    trainer(root).fit(model, batches(), batches(1))
    return only_directory(root) / "spool"


def _content(path: Path) -> Any:
    return json.loads(path.read_bytes())


def test_a_hold_that_comes_too_late_has_a_file(tmp_path: Path) -> None:
    # docs/spool.md: "holds/  each hold, pending, active or over".
    model = Staged()
    spool = _fit(tmp_path, model)
    (spool / "new" / "late.json").write_text('{"kind": "hold"}')
    _fit(tmp_path, model)
    assert _content(spool / "done" / "late.json")["status"] == "expired"
    assert (spool / "holds" / "late.json").exists()


def test_a_file_that_is_repeated_between_two_fits_is_told_so(tmp_path: Path) -> None:
    # docs/spool.md: "A script that is repeated with the same id […] is told so in `rejected/`", and "Nothing that you
    # put in is deleted".
    model = Staged()
    spool = _fit(tmp_path, model)
    for _ in range(2):
        (spool / "new" / "again.json").write_text('{"kind": "snapshot"}')
        _fit(tmp_path, model)
    assert _content(spool / "done" / "again.json")["status"] == "expired"
    assert (spool / "rejected" / "again.error.json").exists()


def test_a_value_that_stays_is_no_change(tmp_path: Path) -> None:
    # The control log's schema: "Each value that is another one now". set_learning_rate does as it says.
    fit = Fit(tmp_path, Stepwise(), 1)
    settled(fit.run.tree.write("control/set_hparam", b'{"name": "gain", "value": 1.0}'))
    fit.end()
    (line,) = (fit.run.directory / "control-log.jsonl").read_text().splitlines()
    assert json.loads(line)["changes"] == []

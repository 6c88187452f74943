"""The spool keeps records whole and in one place, takes what is put in, and loses nothing whatever lies in its way."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from midrun.fs import disk
from midrun.fs import spool as module
from midrun.fs.disk import append_whole, write_whole
from midrun.fs.lock import Owned
from midrun.fs.spool import MOST_RECORDS, STATES, Drop, Spool
from midrun.fs.write import LEGAL_ID

REPOSITORY = Path(__file__).resolve().parent.parent.parent

# Owns the spool, says so or why not, and stays until its standard input ends.
OWNER = """
import sys
from pathlib import Path
from midrun.fs.spool import Spool
try:
    Spool(Path(sys.argv[1])).open()
    print("owned", flush=True)
except OSError as error:
    print(error.strerror, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool(tmp_path / "spool", notes=("holds",))
    spool.open()
    yield spool
    spool.close()


@contextlib.contextmanager
def another_process(directory: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Have another process try to own a spool; gives it, and what it says."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, directory],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    ) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()


def what_another_process_hears(directory: Path) -> str:
    with another_process(directory) as (_, said):
        return said


def record(id_: str, **more: Any) -> dict[str, Any]:
    return {"id": id_, "kind": "stop", "args": {}, "status": "queued", **more}


def drop_in(spool: Spool, name: str, data: bytes = b'{"kind": "stop"}') -> Path:
    """Put a file in as a script does."""
    aside = spool.directory / "new" / ".aside"
    aside.write_bytes(data)
    return aside.rename(spool.directory / "new" / name)


def tick() -> None:
    """Wait until the clock of the file systems has gone on: what comes in one tick has no certain order."""
    coarse = 5  # CLOCK_REALTIME_COARSE
    before = time.clock_gettime_ns(coarse)
    while time.clock_gettime_ns(coarse) == before:
        time.sleep(0.0005)


def listing(spool: Spool, state: str) -> list[str]:
    return sorted(path.name for path in (spool.directory / state).iterdir())


def where(spool: Spool, id_: str) -> list[str]:
    """Return the states in which there is a file of that name."""
    return [state for state in STATES if (spool.directory / state / f"{id_}.json").exists()]


def next_session(spool: Spool) -> Spool:
    """Have the spool read in anew, as the next owner does."""
    spool.close()
    after = Spool(spool.directory, notes=("holds",))
    after.open()
    return after


def settled(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> list[Drop]:
    """Return the drops that have settled, without the wait."""
    list(spool.drops())
    monkeypatch.setattr(module, "_SETTLED", 0.0)
    found = [drop for drop in spool.drops() if drop.settled]
    monkeypatch.undo()
    return found


# ---- records


def test_a_records_directory_is_its_status(spool: Spool) -> None:
    for state in STATES:
        spool.put(state, record("a", status=state))
        assert where(spool, "a") == [state]
        assert json.loads((spool.directory / state / "a.json").read_bytes())["status"] == state


def test_a_record_may_leave_out_states(spool: Spool) -> None:
    spool.put("queued", record("a"))
    spool.put("done", record("a", status="cancelled"))
    assert where(spool, "a") == ["done"]


def test_a_record_is_on_the_disk_under_its_name_before_put_returns(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from midrun.fs.spool import Spool; spool = Spool(Path(sys.argv[1]))\n"
        "spool.open(); spool.put('queued', {'id': 'a'}); spool.put('executing', {'id': 'a'})"
    )
    trace = tmp_path / "trace"
    subprocess.run(
        [
            *("strace", "-y", "-o", trace, "-e", "trace=write,fsync,fdatasync,rename,renameat,unlink"),
            *(sys.executable, "-c", program, tmp_path / "spool"),
        ],
        check=True,
        cwd=REPOSITORY,
    )
    lines = [line for line in trace.read_text().splitlines() if "/spool/" in line]
    done = [(line.partition("(")[0], "queued" in line.partition(",")[0], "executing" in line) for line in lines]
    assert done == [
        *[("write", True, False), ("fsync", True, False), ("rename", True, False), ("fsync", True, False)],
        *[("write", False, True), ("fsync", False, True), ("rename", False, True), ("fsync", False, True)],
        ("unlink", True, False),
    ], lines


@pytest.mark.parametrize("id_", ["a", "a.b", "a.json", "x" * 128, "0-_.", "c-20260101-000000-0123abcd", "a.error"])
def test_an_id_is_the_name_of_a_file_and_comes_back_from_it(spool: Spool, id_: str) -> None:
    assert LEGAL_ID.fullmatch(id_)
    spool.put("executing", record(id_))
    drop_in(spool, f"{id_}.json")
    assert [drop.id for drop in spool.drops()] == [id_]
    after = next_session(spool)
    assert [found["id"] for found in after.left("executing")] == [id_]
    assert after.used == {id_}
    after.close()


@pytest.mark.parametrize("id_", ["", ".a", "-a", "_a", "a/b", "../a", "a\n", "a b", "ä", "x" * 129, "a\0"])
def test_what_is_no_name_of_a_file_is_no_id(id_: str) -> None:
    assert LEGAL_ID.fullmatch(id_) is None


def test_done_keeps_the_last_1000_and_the_ids_of_all_stay_used(spool: Spool) -> None:
    spool.note("holds", "h0", record("h0"))
    for number in range(MOST_RECORDS + 5):
        spool.put("done", record(f"h{number}"))
        assert len(listing(spool, "done")) <= MOST_RECORDS
    assert listing(spool, "done") == sorted(f"h{number}.json" for number in range(5, MOST_RECORDS + 5))
    assert listing(spool, "holds") == []
    assert spool.used == {f"h{number}" for number in range(MOST_RECORDS + 5)}
    after = next_session(spool)
    assert after.used == spool.used
    assert [found["id"] for found in after.left("done")] == [f"h{number}" for number in range(5, MOST_RECORDS + 5)]
    after.put("done", record("last"))
    assert "h5.json" not in listing(after, "done")
    assert next_session(after).used == {*spool.used, "last"}


@pytest.mark.parametrize("torn", [b"old1\nol", b"\nold1\nol", b"\xff\xfe\0\nold1\n", b"old1"])
def test_a_list_of_used_ids_that_was_cut_short_costs_no_other_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: bytes
) -> None:
    monkeypatch.setattr(module, "MOST_RECORDS", 1)
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool/ids").write_bytes(torn)
    spool = Spool(tmp_path / "spool", notes=("holds",))
    spool.open()
    for id_ in ("a", "b", "c"):
        spool.put("done", record(id_))
    after = next_session(spool)
    assert {"old1", "a", "b", "c"} <= after.used
    after.close()


def test_what_a_killed_writer_left_half_written_is_swept_and_files_of_others_stay(spool: Spool) -> None:
    for state in (*STATES, "rejected", "holds"):
        (spool.directory / state / ".a.json.123").write_text('{"id"')
        (spool.directory / state / ".mine").write_text("mine")
        (spool.directory / state / ".b.json.4").mkdir()
    (spool.directory / "new/.a.json.123").write_text('{"kind"')
    after = next_session(spool)
    for state in (*STATES, "rejected", "holds"):
        assert listing(after, state) == [".b.json.4", ".mine"]
    assert listing(after, "new") == [".a.json.123"]
    after.close()


def test_whoever_tidies_the_spool_away_finds_it_working_all_the_same(spool: Spool) -> None:
    for state in ("new", *STATES, "rejected", "holds"):
        (spool.directory / state).rmdir()
    assert list(spool.drops()) == []
    for state in ("queued", "rejected"):
        (spool.directory / state).rmdir()
    spool.put("queued", record("a"))
    path = drop_in(spool, "b.json", b"no")
    [drop] = spool.drops()
    (spool.directory / "rejected").rmdir()
    spool.reject(drop, {"detail": "no"})
    assert where(spool, "a") == ["queued"]
    assert not path.exists()
    assert listing(spool, "rejected") == ["b.error.json", "b.json"]


# ---- when the disk does not take something


def test_a_record_that_is_over_and_could_not_be_written_is_written_when_that_works(spool: Spool) -> None:
    in_the_way = spool.directory / "done/a.json"
    spool.put("executing", record("a"))
    in_the_way.mkdir()
    with pytest.raises(OSError, match="directory"):
        spool.put("done", record("a", status="succeeded"))
    assert json.loads((spool.directory / "executing/a.json").read_bytes())["status"] == "queued"
    in_the_way.rmdir()
    list(spool.drops())
    assert where(spool, "a") == ["done"]
    assert json.loads(in_the_way.read_bytes())["status"] == "succeeded"


@pytest.mark.parametrize("then", ["put", "close"])
def test_a_record_that_is_owed_is_written_with_the_next_one_and_at_the_end(spool: Spool, then: str) -> None:
    in_the_way = spool.directory / "done/a.json"
    in_the_way.mkdir()
    with pytest.raises(OSError, match="directory"):
        spool.put("done", record("a", status="succeeded"))
    in_the_way.rmdir()
    if then == "put":
        spool.put("queued", record("b"))
    else:
        spool.close()
    assert json.loads(in_the_way.read_bytes())["status"] == "succeeded"


def test_a_command_whose_beginning_could_not_be_written_is_known_after_a_crash_to_have_begun(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool.put("queued", record("a"))
    # A name that can't be written aside: the file itself can be moved.
    monkeypatch.setattr(disk, "_numbers", itertools.repeat(7))
    asides = [spool.directory / f"executing/.a.json.{name}{os.getpid()}" for name in ("", "7.")]
    for aside in asides:
        aside.mkdir()
    with pytest.raises(OSError, match="directory"):
        spool.put("executing", record("a"))
    assert where(spool, "a") == ["executing"]
    for aside in asides:
        aside.rmdir()
    after = next_session(spool)
    assert [found["id"] for found in after.left("executing")] == ["a"]
    assert after.left("queued") == []
    after.close()


def test_what_is_appended_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    append_whole(path, b"one\n")
    program = (
        "import resource, signal, sys; from pathlib import Path; from midrun.fs.disk import append_whole\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (6, 6))\n"
        "append_whole(Path(sys.argv[1]), b'two\\n')"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", program, path], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert "File too large" in outcome.stderr
    assert path.read_bytes() == b"one\n"
    append_whole(path, b"two\n")
    assert path.read_bytes() == b"one\ntwo\n"


def test_a_file_that_can_not_be_replaced_leaves_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_whole(tmp_path / "file", b"new")
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


# ---- what is put in


def test_files_come_in_the_order_in_which_they_came_to_be_there(spool: Spool) -> None:
    names = [f"{number * 7919 % 300}.json" for number in range(300)]
    for name in names:
        tick()
        drop_in(spool, name)
    assert [drop.name for drop in spool.drops()] == names


def test_a_file_that_is_moved_in_comes_after_those_that_were_there_however_old_it_is(spool: Spool) -> None:
    drop_in(spool, "first.json")
    old = spool.directory / "old"
    old.write_text("{}")
    os.utime(old, (1, 1))
    old.rename(spool.directory / "new/second.json")
    assert [drop.name for drop in spool.drops()] == ["first.json", "second.json"]


def test_a_file_comes_once_again_when_it_has_changed_and_again_when_it_has_settled(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = drop_in(spool, "a.json", b'{"ki')
    assert [(drop.data, drop.settled) for drop in spool.drops()] == [(b'{"ki', False)]
    assert list(spool.drops()) == []
    path.write_bytes(b'{"kind": "stop"}')
    assert [(drop.data, drop.settled) for drop in spool.drops()] == [(b'{"kind": "stop"}', False)]
    assert list(spool.drops()) == []
    [drop] = settled(spool, monkeypatch)
    assert (drop.data, drop.settled) == (b'{"kind": "stop"}', True)
    assert list(spool.drops()) == [], "one that stays is not read at each look"
    [drop] = settled(spool, monkeypatch)
    assert drop.settled, "but it is looked at again"


def test_names_with_a_leading_dot_are_somebodys_who_is_still_writing(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (".a.json", ".a.json.tmp"):
        (spool.directory / "new" / name).write_text('{"kind": "stop"}')
    assert list(spool.drops()) == []
    assert settled(spool, monkeypatch) == []


def test_a_file_that_is_taken_is_gone_and_one_that_can_not_be_removed_does_not_come_again(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop_in(spool, "a.json")
    path = drop_in(spool, "b.json")
    first, second = spool.drops()
    path.unlink()
    path.mkdir()
    os.utime(path, (1, 1))
    [changed] = spool.drops()
    spool.take(first)
    spool.take(changed)
    assert listing(spool, "new") == ["b.json"]
    assert settled(spool, monkeypatch) == []
    path.rmdir()
    assert list(spool.drops()) == []
    drop_in(spool, "b.json", second.data)
    assert [drop.name for drop in spool.drops()] == ["b.json"], "a new file of that name is another one"


def test_what_is_no_regular_file_is_not_read_and_says_so(spool: Spool) -> None:
    new = spool.directory / "new"
    (new / "directory.json").mkdir()
    os.mkfifo(new / "fifo.json")
    (spool.directory / "outside").write_text('{"kind": "stop"}')
    (new / "link.json").symlink_to(spool.directory / "outside")
    (new / "dangling.json").symlink_to("nowhere")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(new / "socket.json"))
        drops = {drop.name: drop for drop in spool.drops()}
    assert len(drops) == 5
    for name, drop in drops.items():
        assert (drop.data, drop.problem) == (b"", f"'{name}' can't be read: it is no regular file")
        spool.reject(drop, {"detail": drop.problem})
    assert listing(spool, "new") == []
    assert (spool.directory / "outside").exists()
    assert (spool.directory / "rejected/link.json").is_symlink()
    assert len(listing(spool, "rejected")) == 10


def test_looking_at_a_pipe_does_not_let_go_of_whoever_writes_to_it(spool: Spool) -> None:
    fifo = spool.directory / "new/fifo.json"
    os.mkfifo(fifo)
    with subprocess.Popen(["dd", f"of={fifo}", "status=none"], stdin=subprocess.DEVNULL) as writer:
        deadline = time.monotonic() + 10
        while "fifo.json" not in Path(f"/proc/{writer.pid}/cmdline").read_text() or not _sleeps(writer.pid):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        list(spool.drops())
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(0.2)
        fifo.read_bytes()


def _sleeps(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_a_file_that_nobody_may_read_says_so(tmp_path: Path) -> None:
    # Root may read everything, so somebody else has to try; who can't reach the repository has imported from it before.
    program = (
        "import os, sys; from pathlib import Path; from midrun.fs.spool import Spool\n"
        "if os.geteuid() == 0: os.setresuid(65534, 65534, 65534)\n"
        "spool = Spool(Path(sys.argv[1])); spool.open(); file = spool.directory / 'new/a.json'\n"
        "file.write_text('{}'); file.chmod(0); [drop] = spool.drops(); print(drop.problem)\n"
        "spool.reject(drop, {'detail': drop.problem}); print(*sorted(os.listdir(spool.directory / 'rejected')))"
    )
    with tempfile.TemporaryDirectory() as root:
        Path(root).chmod(0o777)
        outcome = subprocess.run(
            [sys.executable, "-c", program, f"{root}/spool"],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
        )
    assert outcome.stdout == "'a.json' can't be read: Permission denied\na.error.json a.json\n", outcome


def test_no_more_is_read_than_a_command_may_have(spool: Spool) -> None:
    drop_in(spool, "large.json", b" " * (3 << 20))
    [drop] = spool.drops()
    assert len(drop.data) == (1 << 20) + 1


def test_a_file_that_is_gone_before_it_is_read_stops_nothing(spool: Spool) -> None:
    for name in ("a.json", "b.json", "c.json"):
        drop_in(spool, name)
    found = []
    for drop in spool.drops():
        if drop.name == "a.json":
            (spool.directory / "new/b.json").unlink()
        found.append((drop.name, drop.problem))
    assert found == [
        ("a.json", None),
        ("b.json", "'b.json' can't be read: No such file or directory"),
        ("c.json", None),
    ]


# Puts files in for a while, one with each tick of the file systems' clock.
HURRY = """
import os, sys, time
new, end = sys.argv[1], time.monotonic() + 2
number = 0
while time.monotonic() < end:
    before = time.clock_gettime_ns(5)
    while time.clock_gettime_ns(5) == before:
        pass
    open(f"{new}/.aside", "w").close()
    os.rename(f"{new}/.aside", f"{new}/{number * 7919 % 100003}-{number}.json")
    number += 1
print(number)
"""


def test_files_that_come_during_a_look_come_in_order_too(spool: Spool) -> None:
    for number in range(5000):  # A look takes a while.
        (spool.directory / f"new/.{number}").touch()
    seen: list[int] = []
    with subprocess.Popen(
        [sys.executable, "-c", HURRY, spool.directory / "new"], stdout=subprocess.PIPE, text=True
    ) as writer:
        while writer.poll() is None:
            seen += [int(drop.id.partition("-")[2]) for drop in spool.drops() if not drop.settled]
        assert writer.stdout is not None
        count = int(writer.stdout.read())
    seen += [int(drop.id.partition("-")[2]) for drop in spool.drops() if not drop.settled]
    assert seen == list(range(count))


# ---- what is rejected


def test_a_rejected_file_lies_beside_its_reason_and_nothing_is_overwritten(spool: Spool) -> None:
    for number in range(3):
        for name in ("a.json", "a.error.json", "a.2.json", "noext"):
            drop_in(spool, name, f"{name} {number}".encode())
            [drop] = spool.drops()
            spool.reject(drop, {"detail": f"why {name} {number}"})
    rejected = {path.name: path.read_text() for path in (spool.directory / "rejected").iterdir()}
    assert len(rejected) == 24
    originals = {name: text for name, text in rejected.items() if not text.startswith("{")}
    assert sorted(originals.values()) == sorted(
        f"{name} {number}" for name in ("a.json", "a.error.json", "a.2.json", "noext") for number in range(3)
    )
    for name, text in originals.items():
        reason = json.loads(rejected[f"{name.removesuffix('.json')}.error.json"])
        assert reason["detail"] == f"why {text}"


@pytest.mark.parametrize(
    "name",
    [b"x" * 255, b"x" * 250 + b".json", "\u00e4".encode() * 125 + b".json", b"\xff\xfe\n\x80.json", b"a\nb", b"-rf"],
)
def test_any_name_that_a_file_can_have_is_rejected_beside_its_reason(spool: Spool, name: bytes) -> None:
    for _ in range(2):
        (spool.directory / "new" / os.fsdecode(name)).write_bytes(name)
        [drop] = spool.drops()
        spool.reject(drop, {"detail": "no"})
    assert listing(spool, "new") == []
    found = [path.read_bytes() for path in (spool.directory / "rejected").iterdir()]
    assert found.count(name) == 2
    assert len(found) == 4


def test_a_file_that_somebody_takes_back_meanwhile_is_not_rejected(spool: Spool) -> None:
    path = drop_in(spool, "a.json", b"no")
    [drop] = spool.drops()
    path.unlink()
    spool.reject(drop, {"detail": "no"})
    assert listing(spool, "rejected") == []


def test_a_file_that_can_not_be_rejected_leaves_no_reason_behind_at_each_attempt(spool: Spool) -> None:
    # A directory can't be moved into itself.
    (spool.directory / "rejected").rmdir()
    new = spool.directory / "new"
    (new / "d.json").mkdir()
    (spool.directory / "rejected").symlink_to(new / "d.json")
    drop = Drop("d.json", b"", None, came=0.0, settled=True)
    for _ in range(3):
        with pytest.raises(OSError, match="Invalid argument"):
            spool.reject(drop, {"detail": "no"})
    assert listing(spool, "rejected") == []


def test_rejected_keeps_the_newest_and_a_directory_among_them_stops_nothing(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_RECORDS", 5)
    monkeypatch.setattr(module, "_SLACK", 0)
    (spool.directory / "new/0.json").mkdir()
    for number in range(1, 12):
        os.utime(drop_in(spool, f"{number}.json", b"no"), (1, 1))  # The time of its writing says nothing.
    for drop in spool.drops():
        spool.reject(drop, {"detail": "no"})
    kept = listing(spool, "rejected")
    assert kept == sorted(["0.json", *(f"{n}{end}.json" for n in range(7, 12) for end in ("", ".error"))])


# ---- one owner


def test_a_spool_has_one_owner_in_another_process_or_in_the_same(spool: Spool) -> None:
    second = Spool(spool.directory)
    with pytest.raises(Owned) as refused:
        second.open()
    assert refused.value.strerror == "another run of this process has it"
    # A process loses its lock with any descriptor of the file that it closes.
    assert what_another_process_hears(spool.directory) == f"process {os.getpid()} has it"
    spool.close()
    second.open()
    spool.close()
    assert what_another_process_hears(spool.directory) == f"process {os.getpid()} has it"
    second.close()
    assert what_another_process_hears(spool.directory) == "owned"


def test_a_spool_has_one_owner_by_whichever_path(spool: Spool, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(spool.directory)
    with pytest.raises(Owned):
        Spool(tmp_path / "link").open()
    assert what_another_process_hears(tmp_path / "link") == f"process {os.getpid()} has it"


def test_to_open_it_again_changes_nothing(spool: Spool) -> None:
    spool.put("queued", record("a"))
    spool.open()
    assert [found["id"] for found in spool.left("queued")] == ["a"]
    assert what_another_process_hears(spool.directory) == f"process {os.getpid()} has it"


def test_the_lock_goes_with_its_owner_even_by_kill(tmp_path: Path) -> None:
    with another_process(tmp_path / "spool") as (owner, said):
        assert said == "owned"
        with pytest.raises(Owned) as refused:
            Spool(tmp_path / "spool").open()
        assert refused.value.strerror == f"process {owner.pid} has it"
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        spool = Spool(tmp_path / "spool", notes=("holds",))
        spool.open()
        spool.close()


# Owns the spool, forks a child that stays, and is killed.
PARENT = """
import os, signal, sys
from pathlib import Path
from midrun.fs.lock import Owned
from midrun.fs.spool import Spool
spool = Spool(Path(sys.argv[1]))
spool.open()
ready, told = os.pipe()
if os.fork() == 0:
    try:
        Spool(Path(sys.argv[1])).open()
    except Owned as error:
        print("child:", error.strerror, flush=True)
    os.write(told, b"1")
    sys.stdin.readline()
    Spool(Path(sys.argv[1])).open()
    print("child: owned", flush=True)
    os._exit(0)
os.read(ready, 1)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_child_that_was_forked_keeps_no_lock_and_may_own_it_after_its_parent(tmp_path: Path) -> None:
    directory = tmp_path / "spool"
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, directory],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdin is not None
        assert parent.stdout.readline() == f"child: process {parent.pid} has it\n"
        parent.wait()
        assert what_another_process_hears(directory) == "owned"  # The child still lives.
        parent.stdin.write("go\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == "child: owned\n"


def test_a_spool_that_can_not_be_used_is_not_kept_from_others(tmp_path: Path) -> None:
    directory = tmp_path / "spool"
    (directory / "ids").mkdir(parents=True)
    spool = Spool(directory)
    with pytest.raises(IsADirectoryError):
        spool.open()
    (directory / "ids").rmdir()
    assert what_another_process_hears(directory) == "owned"
    second = Spool(directory)
    second.open()
    second.close()


# ---- what a crash leaves


def test_records_of_a_session_that_was_killed_are_found_the_oldest_first(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", notes=("holds",))
    spool.open()
    for number in (3, 1, 2):
        spool.put("queued", record(f"q{number}"))
        spool.put("executing", record(f"e{number}"))
    after = next_session(spool)
    assert [found["id"] for found in after.left("queued")] == ["q3", "q1", "q2"]
    assert [found["id"] for found in after.left("executing")] == ["e3", "e1", "e2"]
    assert after.used == {"q1", "q2", "q3", "e1", "e2", "e3"}
    after.close()


@pytest.mark.parametrize(("before", "further"), [("queued", "executing"), ("executing", "done"), ("queued", "done")])
def test_of_a_record_that_a_crash_left_in_two_states_the_further_one_counts(
    spool: Spool, before: str, further: str
) -> None:
    for state in (before, further):
        (spool.directory / state / "a.json").write_text(json.dumps(record("a", status=state)))
    after = next_session(spool)
    assert where(after, "a") == [further]
    assert [found["status"] for found in after.left(further)] == [further]
    assert after.left(before) == []
    after.close()


def test_a_record_that_came_further_counts_only_if_it_can_be_read(spool: Spool) -> None:
    (spool.directory / "executing/a.json").write_text(json.dumps(record("a")))
    (spool.directory / "done/a.json").write_text('{"id": "a", "st')
    after = next_session(spool)
    assert after.left("done") == []
    assert [found["id"] for found in after.left("executing")] == ["a"]
    assert listing(after, "rejected") == ["a.error.json", "a.json"]
    after.close()


def test_torn_and_foreign_files_among_the_records_are_put_aside_and_stop_nothing(spool: Spool) -> None:
    foreign = {
        "torn.json": b'{"id": "torn", "ki',
        "empty.json": b"",
        "binary.json": bytes(range(256)),
        "list.json": b"[1]",
        "other.json": json.dumps(record("another")).encode(),
        "deep.json": b"[" * 100_000,
        "number.json": b"9" * 5000,
        "noid.json": b"{}",
        "name": json.dumps(record("name")).encode(),
        "README.txt": b"hello",
    }
    for state in STATES:
        folder = spool.directory / state
        spool.put(state, record(f"good-{state}"))
        for name, data in foreign.items():
            (folder / name).write_bytes(data)
        (folder / "directory.json").mkdir()
        (folder / "directory.json/inside").touch()
        os.mkfifo(folder / "fifo.json")
        (folder / "dangling.json").symlink_to("nowhere")
        (folder / "link.json").symlink_to(folder / f"good-{state}.json")
    after = next_session(spool)
    for state in STATES:
        assert [found["id"] for found in after.left(state)] == [f"good-{state}"]
        assert listing(after, state) == [f"good-{state}.json"]
    rejected = listing(after, "rejected")
    assert len(rejected) == 3 * 2 * (len(foreign) + 4)
    assert {(after.directory / "rejected" / name).read_bytes() for name in rejected if name.startswith("torn")} >= {
        foreign["torn.json"]
    }
    assert (after.directory / "rejected/directory.json/inside").exists()
    reason = json.loads((after.directory / "rejected/deep.error.json").read_bytes())
    assert reason == {"detail": "queued/deep.json is no record of a command"}
    for number in range(3):
        after.put("done", record(f"more{number}"))
    after.close()


def test_a_directory_that_lies_among_old_records_stops_no_new_one(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_RECORDS", 2)
    (spool.directory / "done/a.json").mkdir()
    after = next_session(spool)
    for id_ in ("b", "c", "d"):
        after.put("done", record(id_))
    assert listing(after, "done") == ["a.json", "c.json", "d.json"]
    after.close()

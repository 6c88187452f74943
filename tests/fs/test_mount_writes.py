"""Control files take what shells and programs write, once and whole; all the rest of a mount is read-only."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from tests.fs.mounting import Mounted, mounting, python, shell
from tests.processes import output, sh, start

pytestmark = pytest.mark.mount


@pytest.fixture
def tree(module_tree: Mounted) -> Mounted:
    module_tree.do("applied")
    return module_tree


PYTHON_BYTES = """
import os, sys
f = os.open(sys.argv[1], os.O_WRONLY)
os.write(f, sys.argv[2].encode())
os.close(f)
"""


def a_copy(command: str) -> tuple[str, str]:
    return "dash", f't=$(mktemp) && echo "$2" > "$t" && {command} "$t" "$1"; s=$?; rm "$t"; exit $s'


def a_python(script: str) -> tuple[str, str]:
    return "dash", f'exec "{sys.executable}" -I -c {shlex.quote(script)} "$@"'


def an_open(mode: str) -> tuple[str, str]:
    return a_python(f"import sys\nwith open(sys.argv[1], {mode!r}) as f: f.write(sys.argv[2])")


# Each writes $2 to the file $1.
WRITERS = {
    "bash echo": ("bash", 'echo "$2" > "$1"'),
    "bash echo -n": ("bash", 'echo -n "$2" > "$1"'),
    "bash printf": ("bash", 'printf %s "$2" > "$1"'),
    "bash >|": ("bash", 'set -C; echo "$2" >| "$1"'),
    "bash append": ("bash", 'echo "$2" >> "$1"'),
    "bash here string": ("bash", 'cat > "$1" <<< "$2"'),
    "bash descriptor": ("bash", 'exec 3> "$1"; echo "$2" >&3; s=$?; exec 3>&-; exit $s'),
    "bash subshell": ("bash", '(echo "$2") > "$1"'),
    "dash echo": ("dash", 'echo "$2" > "$1"'),
    "dash append": ("dash", 'printf "%s\\n" "$2" >> "$1"'),
    "/bin/echo": ("dash", '/bin/echo "$2" > "$1"'),
    "tee": ("dash", 'echo "$2" | tee "$1"'),
    "tee -a": ("dash", 'echo "$2" | tee -a "$1"'),
    "cp": a_copy("cp"),
    "cp -p": a_copy("cp -p"),
    "rsync": a_copy("rsync --inplace"),
    "dd": ("dash", 'echo "$2" | dd of="$1" status=none'),
    "dd notrunc": ("dash", 'echo "$2" | dd of="$1" conv=notrunc,fsync status=none'),
    "python w": an_open("w"),
    "python a": an_open("a"),
    "python r+": an_open("r+"),
    "python bytes": a_python(PYTHON_BYTES),
}
JSON_DUMP = """
import json, sys
with open(sys.argv[2]) as f: document = json.load(f)
with open(sys.argv[1], "w") as f: json.dump(document, f)
"""
LONG_WRITERS = {
    "cat": 'cat "$2" > "$1"',
    "dd bs=512": 'dd if="$2" of="$1" bs=512 status=none',
    "dd bs=64k": 'dd if="$2" of="$1" bs=64k status=none',
    "bash printf": 'printf "%s\\n" "$(<"$2")" > "$1"',
    "python": a_python(JSON_DUMP)[1],
}


@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_written_is_done_once(tree: Mounted, writer: str) -> None:
    program, script = WRITERS[writer]
    for value in ("0.25", '{"value": 0.5}'):
        done = shell(script, tree.path("control/rate"), value, program=program)
        assert (done.returncode, done.stderr) == (0, ""), done
    assert tree.do("applied") == [0.25, 0.5]


@pytest.mark.parametrize("writer", WRITERS)
def test_a_mistake_is_told_to_who_makes_it_and_nothing_is_done(tree: Mounted, writer: str) -> None:
    program, script = WRITERS[writer]
    for value in ("fast", "-1", '{"value": 1, "other": 2}', '{"value": "1"}'):
        done = shell(script, tree.path("control/rate"), value, program=program)
        # dash only says that there was an error.
        assert done.returncode != 0, done
        assert "Invalid argument" in done.stderr or "I/O error" in done.stderr, done
    assert tree.do("applied") == []


@pytest.mark.parametrize("program", ["bash", "dash"])
def test_emptying_a_control_file_does_nothing(tree: Mounted, program: str) -> None:
    file = tree.path("control/rate")
    for script in (': > "$1"', ': >> "$1"', 'truncate -s 0 "$1"', 'printf "" > "$1"', "true > $1", 'touch "$1"'):
        done = shell(script, file, program=program)
        assert (done.returncode, done.stderr) == (0, ""), (script, done)
    output("chmod", "600", file)
    output("dd", "if=/dev/null", f"of={file}", "status=none")
    assert tree.do("applied") == []
    assert "Set the learning rate" in tree.cat("control/rate")


def test_an_empty_line_means_no_arguments(tree: Mounted) -> None:
    assert shell('echo > "$1"', tree.path("control/note")).returncode == 0
    assert tree.do("applied") == [""]


def test_commands_over_one_descriptor_are_done_one_by_one(tree: Mounted) -> None:
    done = shell('exec 3> "$1"; echo 1 >&3; echo 2 >&3; echo bad >&3; echo 3 >&3; exec 3>&-', tree.path("control/rate"))
    assert "Invalid argument" in done.stderr
    assert tree.do("applied") == [1.0, 2.0, 3.0]


def test_lines_of_one_command_are_one_command(tree: Mounted) -> None:
    script = 'cat > "$1" <<\'END\'\n{\n  "value":\n    7\n}\nEND'
    assert shell(script, tree.path("control/rate")).returncode == 0
    assert tree.do("applied") == [7.0]


@pytest.mark.parametrize("length", [511, 4096, 8191, 131_072, 300_000, 1_000_000])
@pytest.mark.parametrize("writer", LONG_WRITERS)
def test_long_texts_are_taken_whole(tree: Mounted, tmp_path: Path, length: int, writer: str) -> None:
    (tmp_path / "text").write_text(json.dumps({"text": "x" * length}))
    done = shell(LONG_WRITERS[writer], tree.path("control/note"), tmp_path / "text")
    assert (done.returncode, done.stderr) == (0, ""), done
    assert tree.do("applied") == ["x" * length]


def test_a_long_mistake_is_told_when_the_file_is_closed(tree: Mounted, tmp_path: Path) -> None:
    (tmp_path / "text").write_text('{"text": "' + "x" * 262_144)
    done = shell('cat "$2" > "$1"', tree.path("control/note"), tmp_path / "text")
    assert "Invalid argument" in done.stderr
    assert tree.do("applied") == []


def test_what_is_too_long_is_refused(tree: Mounted, tmp_path: Path) -> None:
    (tmp_path / "text").write_text(json.dumps({"text": "x" * (2 << 20)}))
    assert "File too large" in shell('cat "$2" > "$1"', tree.path("control/note"), tmp_path / "text").stderr
    assert tree.do("applied") == []


def test_a_text_with_holes_is_refused(tree: Mounted) -> None:
    script = """
import os, sys
f = os.open(sys.argv[1], os.O_WRONLY)
os.pwrite(f, b'1', 0)
os.pwrite(f, b'2', 100)
"""
    assert "Invalid argument" in sh("python3", "-c", script, tree.path("control/rate")).stderr
    assert tree.do("applied") == []


def test_a_refusal_of_the_run_is_told_with_its_own_words(tree: Mounted) -> None:
    for name, words in (("busy", "Device or resource busy"), ("never", "Operation not permitted")):
        assert words in sh("dd", f"of={tree.path('control') / name}", "status=none", text="{}").stderr
    assert tree.do("applied") == []


def test_what_is_open_twice_is_done_twice(tree: Mounted) -> None:
    assert shell('echo 1 > "$1" & echo 2 > "$1" & wait', tree.path("control/rate")).returncode == 0
    assert sorted(tree.do("applied")) == [1.0, 2.0]


def test_a_writer_that_is_killed_before_it_is_done_does_nothing(tree: Mounted) -> None:
    script = 'exec > "$1"; printf "%s" \'{"text": "\'$(printf %05000d 1); kill -9 $$'
    start("bash", "-c", script, "-", tree.path("control/note")).communicate()
    assert tree.do("applied") == []


REFUSED = """
import errno, os, sys
os.chdir(sys.argv[1])
attempts = {
    "write": lambda: os.open("values/text", os.O_WRONLY),
    "update": lambda: os.open("values/text", os.O_RDWR),
    "truncate": lambda: os.truncate("values/text", 0),
    "empty": lambda: os.open("values/text", os.O_RDONLY | os.O_TRUNC),
    "append": lambda: os.open("values/text", os.O_WRONLY | os.O_APPEND),
    "create": lambda: os.open("values/new", os.O_WRONLY | os.O_CREAT),
    "create in control": lambda: os.open("control/new", os.O_WRONLY | os.O_CREAT),
    "create at the top": lambda: os.open("new", os.O_WRONLY | os.O_CREAT),
    "unlink": lambda: os.unlink("values/text"),
    "unlink control": lambda: os.unlink("control/rate"),
    "unlink link": lambda: os.unlink("link"),
    "mkdir": lambda: os.mkdir("values/new"),
    "rmdir": lambda: os.rmdir("values"),
    "rename": lambda: os.rename("values/text", "values/new"),
    "rename control": lambda: os.rename("control/rate", "control/new"),
    "chmod": lambda: os.chmod("values/text", 0o600),
    "chmod folder": lambda: os.chmod("values", 0o700),
    "chown": lambda: os.chown("values/text", 1, 1),
    "utime": lambda: os.utime("values/text"),
    "symlink": lambda: os.symlink("x", "values/new"),
    "link": lambda: os.link("values/text", "values/new"),
    "mknod": lambda: os.mknod("values/new"),
    "fifo": lambda: os.mkfifo("values/new"),
    "setxattr": lambda: os.setxattr("values/text", "user.x", b"y"),
    "removexattr": lambda: os.removexattr("values/text", "user.x"),
    "live": lambda: os.open("live/counted", os.O_WRONLY),
}
for name, attempt in attempts.items():
    try:
        attempt()
        print(name, "worked")
    except OSError as error:
        if error.errno != errno.EROFS:
            print(name, error)
print("write", os.access("values/text", os.W_OK), os.access("control/rate", os.W_OK))
print("execute", os.access("values/text", os.X_OK), os.access("values", os.X_OK))
"""


def test_everything_but_control_files_answers_read_only_file_system(tree: Mounted) -> None:
    assert python(REFUSED, tree.mountpoint).splitlines() == ["write False True", "execute False True"]
    assert "Read-only file system" in shell('echo 1 > "$1"', tree.path("values/text")).stderr
    assert "Read-only file system" in sh("touch", tree.path("values/text")).stderr
    assert "Read-only file system" in sh("rm", "-rf", tree.path("values")).stderr
    assert "Read-only file system" in sh("mv", tree.path("values/text"), tree.path("still/text")).stderr


def test_a_mount_without_control_is_read_only_throughout() -> None:
    with mounting({"writable": False}) as tree:
        tree.ready()
        assert python(REFUSED, tree.mountpoint).splitlines() == ["write False False", "execute False True"]
        assert "Read-only file system" in shell('echo 1 > "$1"', tree.path("control/rate")).stderr
        assert tree.do("applied") == []
        assert "Set the learning rate" in tree.cat("control/rate")

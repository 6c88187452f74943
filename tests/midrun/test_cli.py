"""The command line: what may be written, how it complains, and that it starts fast."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import midrun as package
from midrun.cli import main
from midrun.command import POINTS
from tests.midrun.commandline import complaint, made_up, midrun

COMMANDS = ("status", "ls", "send", "pause", "continue", "stop", "history", "tail")


def test_it_imports_neither_torch_nor_lightning_nor_pydantic(tmp_path: Path) -> None:
    made_up(tmp_path / "run")
    program = (
        "import sys; from midrun.cli import main\n"
        "codes = [main(['status', 'run']), main(['ls']), main(['tail', 'run', '--no-follow']), main(['send', 'x']),\n"
        "         main(['history', 'run'])]\n"
        "heavy = {'torch', 'lightning', 'pydantic', 'numpy', 'trio', 'falcon'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {heavy}' if heavy else str(codes) if codes != [0, 0, 0, 1, 0] else 0)"
    )
    # The command is withdrawn at once: nobody takes it.
    program = program.replace("'send', 'x'", "'send', 'x', '--timeout', '0'")
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_it_says_its_version() -> None:
    assert midrun("--version") == (0, f"midrun {package.__version__}\n", "")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"usage: midrun {command}" in capsys.readouterr().out


def test_the_help_names_the_safe_points_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["send", "--help"])
    told = capsys.readouterr().out
    assert [point for point in POINTS if point not in told] == []


@pytest.mark.parametrize(
    ("words", "quoted"),
    [
        ([], "COMMAND"),
        (["frobnicate"], "'frobnicate'"),
        (["status", "--frobnicate"], "'--frobnicate'"),
        (["status", "one", "two"], "'two'"),
        (["status", "no\nsuch"], "no\\nsuch"),
        (["status", ""], "''"),
        (["ls", "a", "b"], "'b'"),
        (["pause", "--timeout", "soon"], "'soon'"),
        (["pause", "--timeout", "-1"], "'-1'"),
        (["pause", "--timeout", "nan"], "'nan'"),
        (["stop", "--epoch", "1.5"], "'1.5'"),
        (["stop", "--epoch", "1", "--step", "1"], "--epoch"),
        (["tail", "-n", "few"], "'few'"),
        (["continue", "--at", "fit_end"], "'--at'"),
        (["send"], "KIND"),
        (["send", "."], "'.'"),
        (["send", "./nowhere", "pause"], "'./nowhere'"),
        (["send", "nowhere", "pause"], "'pause'"),
        (["send", "x", "a=1", "a=2"], "'a=2'"),
        (["send", "x", "=1"], "'=1'"),
        (["send", "{"], "'{'"),
        (["send", '{"kind": "x", "kind": "y"}'], "kind"),
        (["send", '{"kind": NaN}'], "NaN"),
        (["send", "{}", "more"], "'more'"),
        (["send", "-", "more"], "'more'"),
    ],
)
def test_what_is_written_wrongly_is_quoted_in_one_line(
    words: list[str], quoted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        code: object = main(words)
    except SystemExit as ended:
        code = ended.code
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("midrun")
    assert quoted in err


@pytest.mark.parametrize("data", ["", "[]", "7", "nonsense", '{"kind": 1e999}', '{"id": "not an id"}'])
def test_what_is_no_command_on_standard_input_is_refused(data: str, tmp_path: Path) -> None:
    made_up(tmp_path / "run")
    complaint("send", "-", code=2, cwd=tmp_path, text=data)
    assert list((tmp_path / "run/spool/new").iterdir()) == []


def test_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    for number in range(3):
        made_up(tmp_path / f"run{number}")
    for words in ("ls", "status run0", "ls --json", "--help", "tail run0 --no-follow"):
        (tmp_path / "run0/midrun.log").write_text("line\n" * 10)
        program = f"{sys.executable} -m midrun {words} | true; echo ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == ("0\n", ""), words


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    made_up(tmp_path / "run")
    program = f"{sys.executable} -m midrun status run > /dev/full"
    done = subprocess.run(["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "No space left" in done.stderr


def test_what_files_say_does_nothing_to_a_terminal(tmp_path: Path) -> None:
    run = made_up(tmp_path / "naïve ☃", metrics={"\x1b[2Jloss": 1.0}, exception={"type": "E", "message": "a\nb\x07"})
    (run / "midrun.log").write_text("2026-01-01 00:00:00 INFO \x1b]0;title\x07 ünïcode\n")
    code, out, _ = midrun("status", run)
    assert code == 0
    assert out.isprintable() or set(filter(lambda char: not char.isprintable(), out)) == {"\n"}
    assert "naïve ☃" in out
    assert midrun("tail", run, "--no-follow")[1] == "2026-01-01 00:00:00 INFO \\x1b]0;title\\x07 ünïcode\n"

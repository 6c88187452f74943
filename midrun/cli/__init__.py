"""The command line: `midrun`, which shows and steers runs from their directories.

It needs no port and no mount, and neither torch nor pydantic: it works wherever the run's directory is seen. `status`
asks the run's REST API too, and does without where that does not answer.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

from midrun import __version__
from midrun.cli import history, output, resume, runs, send, status, tail
from midrun.cli.output import Trouble, one_line, to_stderr
from midrun.command import POINTS

_DESCRIPTION = """\
See and steer the runs of midrun from their directories: on the machine that trains, or on any other that shares the
disk with it. Only status asks the run's REST API too, where that answers."""
_EPILOG = """\
RUN is a run's directory, which has run.json in it. Without it the one live run in or below the current directory is
meant. Directories whose names begin with . or __ are not searched, nor those more than 8 levels down, nor more than
10,000 of them.

  midrun status                                      the run's state
  midrun send set_learning_rate value=5e-4           change the learning rate at the next optimizer step
  midrun pause --wait --reason 'look at the batch'   hold the run, and return when it stands still
  midrun continue                                    let it go on
  midrun tail logs/version_3                         see what happens
  midrun history train/loss -n 20                    how the loss got here
  midrun resume logs/version_3                       what the run can go on from

exit codes:
  0    done
  1    it did not work: the run is not live, the command failed, or the run refuses it as it stands now
  2    usage error: no such run, several of them, or a command that the run refuses at any time
  124  --timeout ran out
  130  Ctrl-C"""
_SEND = """\
Send a command: a kind, and its arguments as name=value. Values are JSON where they read as JSON, else text. A JSON
object may be sent instead, or - for one on standard input. When the run has taken the command, its id is printed."""
_SEND_USAGE = """\
midrun send [options] [RUN] KIND [name=value ...]
       midrun send [options] [RUN] JSON
       midrun send [options] [RUN] -"""
_SEND_EPILOG = """\
The first word is RUN if it is a path (it has a slash, or is a dot), or a run's directory.

  midrun send checkpoint
  midrun send set_hparam name=hparams.l2 value=0.01 --at train_epoch_end
  midrun send logs/version_3 stop --epoch 10
  midrun send '{"kind": "set_learning_rate", "args": {"value": 5e-4}}'
  midrun send set_hparam name=hparams.label 'value="7"'     text that reads as a number

An unknown kind or argument is refused, and the run says what it takes. The files of procfs/control/ in its
directory, and /docs at its address, describe each kind."""
_FREE = ("send", "history")
"""Commands that take words after options."""
_RUN_AND_NAME = 2
"""Words that `midrun history` takes at most."""
_POINTS = f"{', '.join(POINTS[:-1])} or {POINTS[-1]}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit code."""
    output.prepare()
    try:
        return _run(_parsed(argv))
    except runs.NoSingleRun as several:
        if several.runs and sys.stderr is not None:
            sys.stderr.write("\n".join([*status.table(several.runs), ""]))
        to_stderr(str(several))
        return several.code
    except Trouble as trouble:
        to_stderr(str(trouble))
        return trouble.code
    except KeyboardInterrupt:
        return send.INTERRUPTED
    except BrokenPipeError:
        return 0
    except OSError as error:
        to_stderr(f"{error.filename!r}: {error.strerror}" if error.filename else str(error))
        return 1
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        # Somebody's editor may have written it, or another version of midrun.
        why = one_line(f"{type(error).__name__}: {error}")
        to_stderr(f"what is written in the run's directory is not understood ({why}); the files there can be read")
        return 1
    finally:
        _flush()


def _run(options: argparse.Namespace) -> int:
    if options.command == "ls":
        found, note = runs.below(options.dir)
        return status.listed(found, options.dir, note, as_json=options.json)
    if options.command == "send":
        return _send(options, options.words)
    if options.command == "history":
        return _history(options, options.words)
    run = runs.chosen(options.run)
    if options.command == "status":
        return status.status(run, as_json=options.json)
    if options.command == "resume":
        chosen = options.choose
        return resume.listed(run, as_json=options.json) if chosen is None else resume.chosen(run, chosen)
    if options.command == "tail":
        return tail.tail(run, options.lines, follows=options.follow)
    args = {} if getattr(options, "reason", None) is None else {"reason": options.reason}
    return _deliver(options, run, {"kind": options.command, "args": args})


def _send(options: argparse.Namespace, words: list[str]) -> int:
    first = words[0]
    names_run = not first.lstrip().startswith("{") and (
        "/" in first or first in {".", ".."} or (first != "-" and runs.is_run(first))
    )
    if names_run and not words[1:]:
        raise Trouble(
            f"{first!r} is taken for a run, and no command follows: write one, as in: midrun send {first} checkpoint",
            2,
        )
    command = send.from_words(words[1:] if names_run else words)
    return _deliver(options, runs.chosen(first if names_run else None), command)


def _history(options: argparse.Namespace, words: list[str]) -> int:
    # A metric may be called train/loss: a word alone is a run only if there is one.
    named, name = (words[0], words[1:]) if len(words) > 1 or (words and runs.is_run(words[0])) else (None, words)
    run = runs.chosen(named)
    if not name:
        return history.listed(run)
    return history.printed(
        run, name[0], first=options.first, last=options.last, count=options.lines, every=options.every
    )


def _deliver(options: argparse.Namespace, run: runs.Run, command: dict[str, Any]) -> int:
    given = (("safe_point", options.at), ("epoch", options.epoch), ("global_step", options.step))
    when = {name: value for name, value in given if value is not None}
    how = send.Delivery(options.wait, options.timeout, options.json, options.next)
    return send.send(run, command, when, options.id, how)


def _flush() -> None:
    """Print what is left, so that Python has nothing to complain of when it ends."""
    if sys.stdout is not None:
        try:
            sys.stdout.flush()
        except (OSError, ValueError):
            output.mute()
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            sys.stderr.flush()


# ---- what may be written


class _Parser(argparse.ArgumentParser):
    """A parser whose complaint is one line."""

    def __init__(self, **more: Any) -> None:  # noqa: ANN401 - as argparse takes it
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **more)

    def error(self, message: str) -> NoReturn:
        """Complain, and end."""
        self.exit(2, f"{self.prog}: {one_line(message)}; {self.prog} --help tells what can be written\n")


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    options, more = parser.parse_known_args(argv)
    # argparse takes no words after an option once it has some.
    words = [word for word in more if word == "-" or not word.startswith("-")]
    if more and (options.command not in _FREE or words != more):
        word = next((word for word in more if word not in words), more[0])
        what = "is no option of" if word.startswith("-") else "is one word too many for"
        parser.error(f"{word!r} {what} midrun {options.command}: leave it out")
    if options.command in _FREE:
        options.words += words
    if options.command == "history" and len(options.words) > _RUN_AND_NAME:
        parser.error(f"{options.words[_RUN_AND_NAME]!r} is one word too many for midrun history: leave it out")
    return options


def _parser() -> _Parser:
    parser = _Parser(prog="midrun", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"midrun {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    def command(name: str, does: str, more: str = "") -> Any:  # noqa: ANN401 - argparse's class is this one only at run time
        text = f"{does[0].upper()}{does[1:]}.{more}"
        return commands.add_parser(name, help=does, description=text)

    _add_json(_add_run(command("status", "show a run's state")), "all that is known of it, for programs")
    ls = command("ls", "list the runs in and below a directory", _LS)
    ls.add_argument("dir", nargs="?", default=".", metavar="DIR", help="the directory (default: the current one)")
    _add_json(ls, "all that is known of them, for programs")
    _add_send(commands)
    pause = command("pause", "hold a run before its next optimizer step", " With --wait, return when it stands still.")
    _add_run(pause).add_argument("--reason", metavar="TEXT", help="why, for the record")
    _add_sending(pause, is_timed=True)
    go_on = command("continue", "let a held run go on, and cancel a pause that has not begun")
    _add_sending(_add_run(go_on), is_timed=False)
    stop = command("stop", "stop a run's training cleanly", " The batch is finished, and Lightning ends as at any end.")
    _add_sending(_add_run(stop), is_timed=True)
    _add_history(command("history", "print what a run has logged, as CSV", _HISTORY))
    _add_resume(_add_run(command("resume", "show what a run can go on from, and choose it", _RESUME)))
    log = command("tail", "show a run's log and what is done to it, as it happens", " Ctrl-C ends it.")
    _add_run(log).add_argument(
        "-n", "--lines", type=_count, default=10, metavar="N", help="begin with the last N lines (10)"
    )
    log.add_argument("--no-follow", dest="follow", action="store_false", help="end after those")
    return parser


_LS = """ Each line says whether it is live, ended (as it should) or
gone (without a word), its step, when it began, its directory and its address. The step may be 30 seconds old."""


def _add_send(commands: Any) -> None:  # noqa: ANN401 - argparse's own class
    parser = commands.add_parser(
        "send",
        help="send a run a command",
        usage=_SEND_USAGE,
        description=_SEND,
        epilog=_SEND_EPILOG,
    )
    parser.add_argument("words", nargs="+", metavar="KIND", help="what is to be done, as above")
    _add_sending(parser, is_timed=True)


_RESUME = """ Each line is a
checkpoint, with the optimizer steps that are done again by whoever goes on from it. A process that begins with
trainer.fit(model, ckpt_path=midrun.checkpoint(RUN, "resume")) goes on from the chosen one, once, else the newest."""


def _add_resume(parser: _Parser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--list", action="store_true", help="list the checkpoints, the newest first (default)")
    which.add_argument(
        "--choose", metavar="NAME", help="choose one by its file name, label or path; latest takes it back"
    )
    _add_json(parser, "them, for programs")


_HISTORY = """ Each line is a point: optimizer
steps, seconds since 1970, value. Without NAME, the names are listed. It works for runs that have ended, too."""


def _add_history(parser: _Parser) -> None:
    parser.usage = "midrun history [options] [RUN] [NAME]"
    parser.add_argument("words", nargs="*", metavar="NAME", help="a metric, or optimizers/0/groups/0/lr")
    parser.add_argument("--from", dest="first", type=_count, default=0, metavar="STEP", help="the first step")
    parser.add_argument("--to", dest="last", type=_count, default=math.inf, metavar="STEP", help="the last step")
    few = "about N lines, with the mean, lowest and highest of a piece each (default: every point)"
    parser.add_argument("-n", "--lines", type=_some, default=math.inf, metavar="N", help=few)
    parser.add_argument("--every", action="store_true", help="also what a later session of the run has made again")


def _add_run(parser: _Parser) -> _Parser:
    parser.add_argument("run", nargs="?", metavar="RUN", help="the run's directory (default: the one live run here)")
    return parser


def _add_json(parser: Any, what: str) -> None:  # noqa: ANN401 - a parser, or a group of one
    parser.add_argument("--json", action="store_true", help=f"print {what}")


def _add_sending(parser: _Parser, *, is_timed: bool) -> None:
    waiting = parser.add_argument_group("how to send it")
    waiting.add_argument("--wait", action="store_true", help="wait for the outcome, print it, and exit by it")
    waiting.add_argument(
        "--timeout",
        type=_seconds,
        metavar="S",
        help=f"give up waiting after S seconds. A command that the run has not taken by then, or in "
        f"{send.TAKEN_HERE:g} s ({send.TAKEN_ELSEWHERE:g} s on another host), is withdrawn",
    )
    waiting.add_argument("--next", action="store_true", help="if the run is not live, leave it for its next session")
    waiting.add_argument("--id", metavar="ID", help="the command's id (default: a new one)")
    _add_json(waiting, "the command's whole record")
    if not is_timed:
        parser.set_defaults(at=None, epoch=None, step=None)
        return
    due = parser.add_argument_group("when it is done", "At the next point where it is safe, unless told otherwise.")
    due.add_argument("--at", metavar="SAFE_POINT", help=f"only there: {_POINTS}")
    begin = due.add_mutually_exclusive_group()
    begin.add_argument("--epoch", type=_count, metavar="N", help="not before this epoch, counted from 0")
    begin.add_argument("--step", type=_count, metavar="N", help="not before so many optimizer steps")


def _count(text: str) -> int:
    count = int(text) if text.isascii() and text.isdigit() else -1
    if count < 0:
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 on, such as 10, not {text!r}")
    return count


def _some(text: str) -> int:
    if not (count := _count(text)):
        raise argparse.ArgumentTypeError("expected a whole number from 1 on, such as 20, not '0'")
    return count


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds >= 0:
        raise argparse.ArgumentTypeError(f"expected a number of seconds from 0 on, such as 2.5, not {text!r}")
    return seconds

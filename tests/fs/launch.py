"""Starts faces as a trainer does."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict
from typing import Any

from midrun.fs.answers import Answers
from midrun.fs.birth import BOOT, Handed
from midrun.fs.frames import Notice
from midrun.fs.page import Page


def launch(
    answers: Answers, page: Page, notice: Notice, *, trainer: int | None = None, **options: Any
) -> subprocess.Popen[str]:
    """Start the face of these tests, with these options, and answer it."""
    ours, theirs = socket.socketpair()
    with theirs:
        handed = Handed(
            module="tests.fs.tiny_face",
            trainer_pid=os.getpid() if trainer is None else trainer,
            wire=theirs.fileno(),
            page=page.fd,
            slot=1,
            options=options,
        )
        path = [os.path.abspath(entry) for entry in sys.path]
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", BOOT, json.dumps(path), json.dumps(asdict(handed))],
            pass_fds=[theirs.fileno(), page.fd],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd="/",
            start_new_session=True,
            text=True,
        )
    answers.connect(ours, notice)
    return process

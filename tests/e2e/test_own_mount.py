"""The training process may touch its own mount, in whatever way, and does not hang."""

from __future__ import annotations

import pytest

from tests.e2e import touches
from tests.e2e.conftest import Report, Start

pytestmark = pytest.mark.mount

TOUCHES = [
    touches.walk,
    touches.scan,
    touches.copy_tree,
    touches.read,
    touches.numpy_fromfile,
    touches.numpy_memmap,
    touches.mapped,
    touches.sqlite,
    touches.pydll_stat,
    touches.pydll_read,
    touches.started_in_it,
    touches.spawned,
    touches.written_to,
]
SECONDS = 20.0


@pytest.mark.parametrize("touch", [touch.__name__ for touch in TOUCHES])
def test_the_training_process_touches_its_own_mount_and_does_not_hang(start: Start, report: Report, touch: str) -> None:
    run = start(touch=touch)
    run.at("touched", SECONDS)
    report(f"seconds for {touch}", run.mark("touched"))
    assert run.ended() == 0, run.told()
    assert run.left() == []
    run.assert_content()

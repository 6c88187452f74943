"""A fit goes on from a checkpoint as if it had never stopped, to the bit.

Whole processes that are killed are in `tests/e2e/test_resume.py`.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from midrun.checkpoints.bundle import part_of
from tests.resuming import CASES, Case, Spot, rest, train

pytestmark = [
    # What Lightning says of any checkpoint in the midst of an epoch, of its own way to go on from it.
    pytest.mark.filterwarnings(
        "ignore:You're resuming from a checkpoint that ended before the epoch ended:UserWarning"
    ),
    # torchdata's own.
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
]


def chosen(case: Case, spots: list[Spot], count: int, seed: str) -> list[Spot]:
    """Choose some of the spots from which training is to go on exactly: of each hook one, and then any."""
    drawn = random.Random(seed)  # noqa: S311 - no secret
    able = [spot for spot in spots if spot[0] not in case.inexact]
    hooks = sorted({spot[0] for spot in able})
    first = [drawn.choice([spot for spot in able if spot[0] == hook]) for hook in drawn.sample(hooks, len(hooks))]
    more = [spot for spot in drawn.sample(able, len(able)) if spot not in first]
    return [*first, *more][:count]


@pytest.mark.parametrize("name", CASES)
def test_training_goes_on_to_the_bit(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    spots = list(train(case, tmp_path).model.spots)
    wanted = {spot: tmp_path / f"{number}.ckpt" for number, spot in enumerate(chosen(case, spots, 4, name))}
    whole = train(case, tmp_path, wanted.get)
    for spot, path in wanted.items():
        part = train(case, tmp_path, checkpoint=path, seed=99)
        assert (part.model.seen, part.rows) == rest(whole, spot), spot


def test_where_one_rank_has_told_nothing_all_go_on_in_the_same_way() -> None:
    # Else they would not come to the same collective operations.
    found = {"world_size": 2, "ranks": [{"where": "on_train_batch_end"}, None]}
    for rank in (0, 1):
        part, why = part_of(found, rank, 2)
        assert part is None
        assert why == "rank 1 had told nothing when the checkpoint was written"
    assert part_of(found, 0, 4) == (None, "the checkpoint was written by 2 ranks, and there are 4 now")

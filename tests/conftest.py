"""What all tests share: how often a test repeats what it repeats, and that its failure is told."""

from collections.abc import Callable, Generator
from typing import Any

import pytest

LONG = 10.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--times", type=float, default=1.0, metavar="N", help="repeat what is repeated N times as often as usual"
    )
    parser.addoption(
        "--long",
        action="store_const",
        const=LONG,
        dest="times",
        help=f"the same as --times {LONG:g}: as often as it takes to believe it",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("times") >= LONG:
        return
    too_long = [item for item in items if item.get_closest_marker("long")]
    config.hook.pytest_deselected(items=too_long)
    items[:] = [item for item in items if item not in too_long]


@pytest.fixture(scope="session")
def times(pytestconfig: pytest.Config) -> Callable[[int], int]:
    """Say how often to repeat: as often as asked under --long, a tenth of that as a rule, more under --times."""
    share = float(pytestconfig.getoption("times")) / LONG
    return lambda full: max(1, int(full * share))


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Let a failure that quotes half of a character be told: xdist sends UTF-8, and would end instead."""
    return _sayable((yield))


def _sayable(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _sayable(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_sayable(value) for value in data]
    return data.encode(errors="backslashreplace").decode() if isinstance(data, str) else data

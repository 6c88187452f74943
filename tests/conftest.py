"""What all tests share: how often a test repeats what it repeats, and that its failure is told."""

from collections.abc import Callable, Generator
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="repeat things as often as it takes to believe them")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long"):
        return
    too_long = [item for item in items if item.get_closest_marker("long")]
    config.hook.pytest_deselected(items=too_long)
    items[:] = [item for item in items if item not in too_long]


@pytest.fixture(scope="session")
def times(pytestconfig: pytest.Config) -> Callable[[int], int]:
    """Say how often to repeat: as often as asked under --long, a tenth of that otherwise."""
    long = bool(pytestconfig.getoption("--long"))
    return lambda full: full if long else max(1, full // 10)


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

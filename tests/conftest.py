"""What all tests share: how often a test repeats what it repeats."""

from collections.abc import Callable

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

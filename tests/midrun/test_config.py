"""The options: each has its default and its description, and what can't be meant is refused at once."""

import inspect
import math
import pickle
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest

from midrun import MidrunConfig, MidrunMixin

DEFAULTS: dict[str, Any] = {
    "midrun_enabled": True,
    "rest_enabled": True,
    "rest_host": "127.0.0.1",
    "rest_port": 8090,
    "rest_port_search": 100,
    "rest_allowed_hosts": (),
    "fuse_enabled": True,
    "fuse_mountpoint": None,
    "fuse_control": True,
    "resume": None,
    "artifact_dir": None,
    "checkpoint_keep_last": None,
    "checkpoint_keep_every": None,
    "torch_debug_enabled": True,
    "torch_debug_port": 25999,
    "torch_debug_port_search": 100,
    "paired_port_search_attempts": 100,
    "hooks_enabled": True,
    "hooks_source_dir": None,
    "hooks_timeout_s": None,
    "hooks_rank_policy": "rank_zero",
    "pipeline_pressure_enabled": True,
    "pipeline_pressure_window": 256,
    "break_on_backward_exception": True,
    "dataloader_finite_check_enabled": False,
    "optimizer_surgery_enabled": True,
    "inspection_strict": False,
}


class Model(MidrunMixin, L.LightningModule):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)


def described() -> dict[str, str]:
    """Return the description of each option in the docstring."""
    _, _, parameters = (inspect.getdoc(MidrunConfig) or "").partition("----------\n")
    parts = re.split(r"^(\w+)\n", parameters, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], (" ".join(text.split()) for text in parts[1::2]), strict=True))


def test_each_option_has_its_default() -> None:
    config = MidrunConfig()
    assert {f.name: getattr(config, f.name) for f in fields(config)} == DEFAULTS


def test_each_option_is_described_in_the_docstring_and_nothing_else_is() -> None:
    assert list(described()) == list(DEFAULTS)
    assert all(len(text) > 20 and text.endswith(".") for text in described().values()), described()


@pytest.mark.parametrize("name", DEFAULTS)
def test_each_option_is_a_keyword_of_the_model_and_its_default_is_allowed(name: str) -> None:
    assert getattr(Model(**{name: DEFAULTS[name]}).midrun.config, name) == DEFAULTS[name]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("midrun_enabled", False),
        ("rest_host", "0.0.0.0"),  # noqa: S104 - nothing listens here
        ("rest_port", 0),
        ("rest_port", 65535),
        ("rest_port_search", 1),
        ("rest_allowed_hosts", ["proxy.example", "other.example"]),
        ("rest_allowed_hosts", ("proxy.example",)),
        ("fuse_mountpoint", "/run/view"),
        ("fuse_mountpoint", Path("/run/view")),
        ("artifact_dir", Path("/data")),
        ("hooks_source_dir", "hooks"),
        ("hooks_timeout_s", 5),
        ("hooks_timeout_s", 0.5),
        ("hooks_rank_policy", "all"),
        ("pipeline_pressure_window", 1),
    ],
)
def test_what_can_be_meant_is_kept_as_it_is(name: str, value: object) -> None:
    assert getattr(Model(**{name: value}).midrun.config, name) == value


WRONG_TYPES: list[tuple[str, object]] = [
    *((name, "yes") for name, default in DEFAULTS.items() if isinstance(default, bool)),
    *((name, 1) for name, default in DEFAULTS.items() if isinstance(default, bool)),
    *((name, None) for name, default in DEFAULTS.items() if isinstance(default, bool)),
    *((name, True) for name, default in DEFAULTS.items() if type(default) is int),
    *((name, 8.0) for name, default in DEFAULTS.items() if type(default) is int),
    *((name, "8090") for name, default in DEFAULTS.items() if type(default) is int),
    ("rest_host", None),
    ("rest_host", 127),
    ("rest_allowed_hosts", "proxy.example"),
    ("rest_allowed_hosts", [b"proxy.example"]),
    ("rest_allowed_hosts", [1]),
    ("rest_allowed_hosts", None),
    ("fuse_mountpoint", 3),
    ("fuse_mountpoint", b"/run/view"),
    ("artifact_dir", False),
    ("hooks_source_dir", ["hooks"]),
    ("hooks_timeout_s", "5"),
    ("hooks_timeout_s", True),
    ("hooks_rank_policy", 0),
    ("hooks_rank_policy", None),
]


@pytest.mark.parametrize(("name", "value"), WRONG_TYPES)
def test_a_value_of_the_wrong_type_is_a_type_error_that_quotes_it(name: str, value: object) -> None:
    with pytest.raises(TypeError) as refused:
        Model(**{name: value})
    assert repr(name) in str(refused.value)
    assert repr(value) in str(refused.value)
    assert f"not {type(value).__name__}" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rest_port", -1),
        ("rest_port", 65536),
        ("torch_debug_port", 65536),
        ("rest_port_search", 0),
        ("torch_debug_port_search", 0),
        ("paired_port_search_attempts", 0),
        ("pipeline_pressure_window", 0),
        ("pipeline_pressure_window", -256),
        ("hooks_timeout_s", 0),
        ("hooks_timeout_s", -1.5),
        ("hooks_timeout_s", math.nan),
        ("hooks_rank_policy", "rank_one"),
    ],
)
def test_a_value_out_of_range_is_a_value_error_that_quotes_it(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(value))) as refused:
        Model(**{name: value})
    assert repr(name) in str(refused.value)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("rest_prot", "rest_port"), ("fuse_mount_point", "fuse_mountpoint"), ("midrun_enable", "midrun_enabled")],
)
def test_an_unknown_option_is_a_type_error_with_a_hint(wrong: str, meant: str) -> None:
    with pytest.raises(TypeError, match=f"^Model: unknown midrun option '{wrong}': did you mean '{meant}'\\?$"):
        Model(**{wrong: 1})


def test_an_unknown_option_that_resembles_none_is_a_type_error_that_lists_all() -> None:
    with pytest.raises(TypeError, match="unknown midrun option 'x'") as refused:
        Model(x=1)
    assert all(name in str(refused.value) for name in DEFAULTS)


def test_the_options_can_not_be_changed_and_survive_a_pickle() -> None:
    config = MidrunConfig(rest_port=9000)
    with pytest.raises(AttributeError):
        config.rest_port = 9001  # type: ignore[misc]  # what is tested
    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301 - our own bytes

"""MidrunMixin: the one class that a model adds to be seen and steered while it trains."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from midrun.attachment import Attachment
from midrun.config import OPTIONS, MidrunConfig, unknown_option
from midrun.hooks import HOOKS, SAFE_POINTS, part_of
from midrun.lightnings import is_lightnings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType

    # For type checkers the mixin is the module that it is mixed into; at run time it stays beside it.
    from lightning.pytorch import LightningModule as _Base
else:
    _Base = object

_MODULE = "LightningModule"


class MidrunMixin(_Base):
    """Makes a LightningModule's run visible as files, by REST and in a browser, while it trains.

    Put it before `LightningModule`, and give its options, the members of `MidrunConfig`, to `super().__init__()`:

        class Model(MidrunMixin, L.LightningModule):
            def __init__(self):
                super().__init__(rest_port=9000)

    It starts in `setup` and stops in `teardown`, also after an exception. An override of a hook that it uses should
    call `super()`; where one does not, midrun says so and works all the same.
    """

    midrun_tunable_hparams: ClassVar[Sequence[str] | Mapping[str, Mapping[str, Any]]] = ()
    """Attributes that may be changed while the run is live: a list of dotted paths, or a dictionary from path to
    limits (`min`, `max`, `label`)."""

    @functools.cached_property
    def _midrun(self) -> Attachment:
        """What the model carries of midrun: with the defaults, where the mixin's `__init__` was passed by."""
        return Attachment(MidrunConfig())

    def __init_subclass__(cls, **kwargs: Any) -> None:  # noqa: ANN401 - passed on
        super().__init_subclass__(**kwargs)
        _check_order(cls)
        # TorchScript compiles every property but these.
        unused: Sequence[str] = getattr(cls, "__jit_unused_properties__", ())
        cls.__jit_unused_properties__ = [*unused, *({"midrun"} - set(unused))]
        for name in HOOKS:
            _guard(cls, name)

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - passed on
        if not any(map(_is_module, type(self).__mro__)):
            name = type(self).__name__
            raise TypeError(f"{name} is no {_MODULE}: write class {name}(MidrunMixin, L.{_MODULE})")
        options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
        config = MidrunConfig(**options)
        if kwargs and _is_module(_next_init(type(self))):
            raise unknown_option(type(self).__name__, next(iter(kwargs)))
        # Before the module's own __init__, which may save hyperparameters; and not by a plain assignment, since the
        # module has yet to be made.
        vars(self)["_midrun"] = Attachment(config, given=tuple(options))
        super().__init__(*args, **kwargs)

    def save_hyperparameters(  # noqa: D102 - as the module's own
        self,
        *args: Any,  # noqa: ANN401 - passed on
        ignore: Sequence[str] | str | None = None,
        frame: FrameType | None = None,
        logger: bool = True,
        **kwargs: Any,  # noqa: ANN401 - passed on
    ) -> None:
        # Options that a model passes through its own __init__ are no hyperparameters of the model.
        given = self._midrun.given
        named = [arg for arg in args if not (isinstance(arg, str) and arg in given)]
        if args and not named:
            return
        ignored = [ignore] if isinstance(ignore, str) else list(ignore or ())
        current = inspect.currentframe()
        super().save_hyperparameters(
            *named,
            ignore=[*ignored, *given],
            frame=frame or (current.f_back if current is not None else None),
            logger=logger,
            **kwargs,
        )

    @property
    def midrun(self) -> Attachment:
        """What midrun knows of this model: the run directory and the address while it runs."""
        return self._midrun


def _hook(name: str) -> Callable[..., Any]:
    """Return the mixin's hook `name`: the module's own part, then midrun's."""
    hook = part_of(name, lambda module: getattr(super(MidrunMixin, module), name, None))
    hook.__name__, hook.__qualname__ = name, f"MidrunMixin.{name}"
    hook.__doc__ = f"Do the module's own part of `{name}`, then midrun's."
    return hook


for _name in HOOKS:
    setattr(MidrunMixin, _name, _hook(_name))


def _check_order(cls: type) -> None:
    """Raise TypeError when the module comes before the mixin: the mixin's hooks would never be called."""
    before = cls.__mro__[: cls.__mro__.index(MidrunMixin)]
    if any(map(_is_module, before)):
        bases = ", ".join(base.__name__ for base in cls.__bases__)
        raise TypeError(f"{cls.__name__}({bases}): MidrunMixin must come before {_MODULE} in the base classes")


def _next_init(cls: type) -> type:
    """Return the class whose `__init__` the mixin's own calls."""
    mro = cls.__mro__
    return next(kind for kind in mro[mro.index(MidrunMixin) + 1 :] if "__init__" in vars(kind))


def _is_module(cls: type) -> bool:
    """Whether a class is Lightning's own, by whichever of its packages."""
    return cls.__name__ == _MODULE and is_lightnings(cls.__module__)


def _guard(cls: type, name: str) -> None:
    """Make sure that midrun's part of a hook runs, also when an override of the hook does not call `super()`."""
    owner = next(kind for kind in cls.__mro__ if name in vars(kind))
    if owner is MidrunMixin or (owner is not cls and issubclass(owner, MidrunMixin)):
        return
    override = vars(owner)[name]
    if override is None:
        return
    part = part_of(name)

    @functools.wraps(override)
    def guarded(self: MidrunMixin, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - passed on
        attachment = self._midrun
        outermost = name not in attachment.under_way
        attachment.under_way.add(name)
        attachment.reached.discard(name)
        try:
            # Whatever it is that the class has there: a function, a static method, a partial.
            bound = override.__get__(self, type(self)) if hasattr(override, "__get__") else override
            result = bound(*args, **kwargs)
        finally:
            if outermost:
                attachment.under_way.discard(name)
        if name not in attachment.reached:
            # Noted before an override of this override asks the same.
            attachment.reached.add(name)
            attachment.missed(f"{owner.__qualname__}.{name}", name)
            part(self, *args, **kwargs)
        elif outermost and name in SAFE_POINTS and attachment.turns is not None:
            # What the override has logged after midrun's part is this batch's too.
            attachment.turns.resample()
        return result

    vars(guarded)["is_midruns"] = True
    setattr(cls, name, guarded)

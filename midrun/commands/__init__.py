"""The kinds of commands, and the one form in which any of them is sent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Union

from pydantic import Field, JsonValue, RootModel, create_model

from midrun.command import Command
from midrun.commands import artifacts, captures, hparam, inspectors, memory, optimizer, profilers, standstill
from midrun.commands.kind import Arguments, Execution, Kind, When, absent
from midrun.fs.form import Form
from midrun.fs.write import LEGAL_ID


def by_name(kinds: Iterable[Kind]) -> dict[str, Kind]:
    """Return kinds by their names, in their order. Raises ValueError where two have one name."""
    found: dict[str, Kind] = {}
    for kind in kinds:
        if kind.name in found:
            raise ValueError(
                f"{type(found[kind.name]).__name__} and {type(kind).__name__} are both named {kind.name!r}"
            )
        found[kind.name] = kind
    return found


KINDS = by_name(
    [
        standstill.Pause(),
        standstill.Hold(),
        standstill.Continue(),
        standstill.Stop(),
        artifacts.Checkpoint(),
        artifacts.LoadCheckpoint(),
        artifacts.ChooseCheckpoint(),
        artifacts.Snapshot(),
        optimizer.SetLearningRate(),
        optimizer.ResetMomentum(),
        optimizer.SetOptimizerOption(),
        optimizer.SetGradientClip(),
        hparam.SetHparam(),
        captures.SetFiniteCheck(),
        captures.SaveBatch(),
        captures.SaveLoss(),
        captures.SaveGradients(),
        captures.SaveOptimizerSummary(),
        inspectors.TorchinfoCapture(),
        inspectors.TorchviewCapture(),
        inspectors.TorchvizCapture(),
        inspectors.TorchlensCapture(),
        profilers.Profile(),
        profilers.SetLightningProfiler(),
        profilers.SetPipelineClock(),
        memory.CudaMemoryHistory(),
        memory.CudaMemorySnapshot(),
        standstill.ReleaseException(),
        standstill.Release(),
        standstill.Cancel(),
    ]
)
"""Every kind, by its name, in the order in which they are shown."""


def _request(kind: Kind) -> type[Arguments]:
    """Return the model of a request for a command of a kind."""
    needs = any(field.is_required() for field in kind.Arguments.model_fields.values())
    args = Field(description="The arguments.") if needs else Field(default_factory=kind.Arguments)
    extra: dict[str, JsonValue] = {} if kind.confirm is None else {"x-confirm": kind.confirm}
    members: dict[str, Any] = {
        "kind": (Literal[kind.name], Field(description=kind.doc, json_schema_extra=extra)),
        "args": (kind.Arguments, args),
        "id": (
            Annotated[str, Field(pattern=f"^{LEGAL_ID.pattern}$")],
            Field(default_factory=absent, description="Its id; by repeating a request with its id nothing is doubled."),
        ),
        "session": (
            Literal["next"],
            Field(default_factory=absent, description="The file may have been in the spool before the session begins."),
        ),
        "source": (
            Literal["command line", "hook", "script"],
            Field(default_factory=absent, description="Who asks, for the record."),
        ),
    }
    if not kind.at_once:
        members["execution"] = (Execution, Field(default_factory=Execution, description="When to run it."))
    title = "".join(word.capitalize() for word in kind.name.split("_"))
    return create_model(title, __base__=Arguments, **members)


class AnyCommand(RootModel[Any]):
    """A command of any kind."""

    root: Annotated[
        Union[tuple(_request(kind) for kind in KINDS.values())],  # type: ignore[valid-type]  # noqa: UP007 - made here
        Field(discriminator="kind"),
    ]


ANY = Form(
    "commands",
    """Send a command of any kind, to be run now or later, for example

    {"kind": "checkpoint", "execution": {"when": {"safe_point": "train_epoch_end", "epoch": 5}}}

`args` and `execution` may be left out; `when` has safe_point, epoch or global_step. What a kind takes is in the file of
its name beside this one, and what was refused, and why, is in errors.json.""",
    AnyCommand,
)


def command_of(request: Any, *, id_: str | None = None, via: str = "python") -> Command:  # noqa: ANN401 - a model made above
    """Return the command that a request asks for."""
    asked = request.root
    kind = KINDS[asked.kind]
    given: When | None = None if kind.at_once else asked.execution.when
    when = given if given is not None and given.model_fields_set else None
    return Command(kind, asked.args, when, id_=asked.id or id_, source=asked.source or via, via=via)

"""Command-line options: those of settings are made from `RunConfig`, the others are listed here."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from idiolect.core.fields import Checked, choices, default_of, hints, members
from idiolect.errors import UserError
from idiolect.runs.config import SECTIONS, SETTINGS, RunConfig

Command = TypeVar("Command", bound=Callable[..., None])


def path(text: str | Path) -> Path:
    """A path as people write it: `~` is their home, and nothing is no path."""
    if not str(text).strip():
        raise UserError("a path is empty; name a file or folder, or leave the option out")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise UserError(f"{text}: there is no such home folder; write the path out") from None


Out = Annotated[Path | None, typer.Option("--out", "-o", parser=path, help="Directory to write.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any setting, e.g. method.lr=0.05 or split.alpha=0.1; repeatable."),
]
File = Annotated[
    Path | None, typer.Option("--config", parser=path, help="YAML file with settings.")
]
AllowCode = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODULE:CLASS",
        help="Own code to run although only a file or a run of someone else names it; repeatable.",
    ),
]
Seeds = Annotated[str | None, typer.Option(help="Seeds, e.g. 0,1,2.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on stdout.")]
FLAGS = {"minimum": ["--min-clients"]}  # where an option has another name than its setting
# Shorter ways to say a setting of a section: split.clients, data.task, data.metric
SHORTER: dict[str, tuple[str, type, str]] = {
    "clients": ("split", int, "Number of clients. Default: 20."),
    "task": (
        "data",
        str,
        "What your own data's label is: classification, multilabel, regression, next-token or "
        "sequence (a class for every step).",
    ),
    "metric": ("data", str, "What clients are judged by, e.g. auc, rmse or perplexity."),
}


def examples(*lines: str) -> str:
    """The end of a --help page."""
    return "\n\n".join(["[bold]Examples[/bold]", *lines])


def with_settings(
    *names: str, kind: Any = RunConfig, told: Mapping[str, str] | None = None
) -> Callable[[Command], Command]:
    """Give a command the options of these settings of `kind`, of all of a run if none is named. The
    command gets them as its `**given`, None where an option was not given; `flags_of` makes a
    config of those of a run. `told` is the help of options whose default is another here."""

    def add(command: Command) -> Command:
        written = list(inspect.signature(command, eval_str=True).parameters.values())
        written = [one for one in written if one.kind is not inspect.Parameter.VAR_KEYWORD]
        made = [_parameter(kind, name, (told or {}).get(name)) for name in names or OPTIONS]
        arguments = [one for one in written if isinstance(_about(one), typer.models.ArgumentInfo)]
        rest = [one for one in written if one not in arguments]
        parameters = [one.replace(kind=KEYWORD) for one in (*arguments, *made, *rest)]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in parameters}
        return command

    return add


def flags_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options as a layer of settings; what was not given is left out."""
    flags: dict[str, Any] = {}
    for name, value in given.items():
        if value is None:
            continue
        if name in SHORTER:
            flags.setdefault(SHORTER[name][0], {})[name] = value
        elif name in SECTIONS:
            flags.setdefault(name, {})["name"] = value
        else:
            flags[name] = value
    return flags


def about(kind: Any, name: str) -> str:
    """A setting in words: what it means, and which words it may be."""
    text = str(kind.__dataclass_fields__[name].metadata["doc"])
    words = choices(hints(kind)[name])
    return f"{text}: {', '.join(words[:-1])} or {words[-1]}" if words else text


def default_text(kind: Any, name: str) -> str:
    """Its default in words; nothing where the setting says itself what happens without it."""
    value = default_of(kind.__dataclass_fields__[name])
    if isinstance(value, dict):
        value = value.get("name")
    return "" if value in (None, ()) else str(value)


def option_type(kind: Any, name: str) -> type | None:
    """What its option takes; None for a setting that only has keys of its own."""
    hint = hints(kind)[name]
    if choices(hint) or hint is dict:
        return str
    for one in members(hint):
        if isinstance(one, type) and issubclass(one, Checked):
            return one.short
        if one in (bool, int, float, str, Path):
            return one
    return None


KEYWORD = inspect.Parameter.KEYWORD_ONLY
OPTIONS = [name for name in SETTINGS if name != "method" and option_type(RunConfig, name)]
for _name, _about_it in SHORTER.items():
    OPTIONS.insert(OPTIONS.index(_about_it[0]) + 1, _name)


def _parameter(kind: Any, name: str, told: str | None = None) -> inspect.Parameter:
    taken: Any
    if kind is RunConfig and name in SHORTER:
        _, taken, text = SHORTER[name]
    else:
        taken, text = option_type(kind, name), about(kind, name)
        default = default_text(kind, name)
        text = f"{text[0].upper()}{text[1:]}." + (f" Default: {default}." if default else "")
    parser = path if taken is Path else None
    annotation = Annotated[
        taken | None, typer.Option(*FLAGS.get(name, ()), parser=parser, help=told or text)
    ]
    return inspect.Parameter(name, KEYWORD, default=None, annotation=annotation)


def _about(parameter: inspect.Parameter) -> Any:
    """Typer's description of a parameter, in its annotation."""
    return next(iter(getattr(parameter.annotation, "__metadata__", ())), None)

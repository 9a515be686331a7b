"""Shared code of the commands: the application, common options, printing, errors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from gxpo.base.terminal import escaped, say


class _Commands(TyperGroup):
    """The commands; an option that one does not have, but a setting, is answered with `--set`."""

    def make_context(self, *args: Any, **more: Any) -> Any:
        try:
            return super().make_context(*args, **more)
        except Exception as error:
            _escape(error)
            raise

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            if type(error).__name__ == "NoSuchOption":  # of click, or of the copy of it that typer has
                _as_setting(error, ctx)
            _escape(error)
            raise


def _escape(error: Exception) -> None:
    """Escape the message of an error of click, which prints it itself: it quotes arguments, and files name them."""
    if hasattr(error, "format_message") and isinstance(message := getattr(error, "message", None), str):
        error.message = escaped(message)  # type: ignore[attr-defined]  # of click, or of the copy of it that typer has


def _as_setting(error: Any, ctx: Any) -> None:
    from gxpo.parts.settings import RUN_KEYS
    from gxpo.training.config import ELSEWHERE

    command = getattr(getattr(error, "ctx", None), "command", None)
    if "--set" not in {option for p in getattr(command, "params", ()) for option in p.opts}:
        return
    word = error.option_name.lstrip("-").replace("-", "_")
    keys = [key for key in RUN_KEYS if key.rpartition(".")[2] == word]
    key = ELSEWHERE.get(word) or (keys[0] if len(keys) == 1 else None)
    if key is not None:
        error.possibilities = []
        error.message = f"No such option: {error.option_name}; settings are given as --set {key}=VALUE"


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

Sets = Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE, over the file; may be given again.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Best = Annotated[bool, typer.Option("--best", help="The checkpoint that trainer.keep_best has kept.")]
Out = Annotated[Path | None, typer.Option("--out", help="Run directory.")]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory, or the beginning of its name.")]


def _allow(names: list[str] | None) -> None:
    if names:
        from gxpo.base.server_keys import allow

        allow(names)


# Works by its callback alone: what may be sent is a matter of the process, not of a setting that a file could state.
AllowKey = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-key",
        metavar="NAME[@HOST]",
        callback=_allow,
        help="Environment variable that a `key_from` of the configuration may send to its server; may be given again.",
    ),
]


def resolved_of(config_file: Path | None, sets: list[str] | None, from_run: Path | None = None) -> Any:
    """The resolved configuration of a file, `--set` and `--from`."""
    from gxpo.base.errors import ConfigError
    from gxpo.training import config

    if config_file is None and from_run is None and not sets:
        raise ConfigError(
            "give a CONFIG file, as examples/arithmetic.yaml, or --set task=data.jsonl --set model=..., or --from RUN; "
            "gxpo demo needs none of them"
        )
    given = config.over(config.read(config_file) if config_file is not None else {}, config.parse_set(sets or []))
    if from_run is not None:
        from gxpo.training.train import keys_from_run

        given = keys_from_run(found_run(from_run), given)
    return config.resolve(given)


def found_run(run: Path) -> Path:
    """The run directory; if only the beginning of its name was given, standard error says which one it is."""
    from gxpo.training.directory import find

    found = find(run)
    if found != run:
        say(f"no {run}: using {found}, the only run whose name begins so", err=True)
    return found


def quiet() -> None:
    """Disable transformers' progress bars."""
    from gxpo.base.errors import need

    need("transformers.utils.logging", "train").disable_progress_bar()


def fail(message: str, code: int = 2) -> NoReturn:
    say(" ".join(f"gxpo: {message}".splitlines()), err=True)
    sys.stdout.flush()
    sys.exit(code)

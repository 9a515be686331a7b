"""Shared code of the commands: the application, common options, printing, errors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from gxpo.base.terminal import escaped, say


class _Commands(TyperGroup):
    """Command group that answers an unknown option which is the name of a setting with the right `--set`."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().make_context(*args, **kwargs)
        except Exception as error:
            _escape(error)
            raise

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            if type(error).__name__ == "NoSuchOption":  # of click, or of the copy of it that typer has
                _as_setting(error, ctx)
            # Messages of click hold what was typed: escaped before they reach a terminal.
            _escape(error)
            raise


def _escape(error: Exception) -> None:
    """Escape the message of a click error, which click prints itself: it quotes arguments that files may name."""
    if hasattr(error, "format_message") and isinstance(message := getattr(error, "message", None), str):
        error.message = escaped(message)  # type: ignore[attr-defined]  # of click, or of the copy of it that typer has


def _as_setting(error: Any, ctx: Any) -> None:
    from gxpo.parts.settings import RUN_KEYS
    from gxpo.training.config import ELSEWHERE

    command = getattr(getattr(error, "ctx", None), "command", None)
    if "--set" not in {option for p in getattr(command, "params", ()) for option in p.opts}:
        return
    # An option that does not exist is often the last word of a setting's key.
    word = error.option_name.lstrip("-").replace("-", "_")
    keys = [key for key in RUN_KEYS if key.rpartition(".")[2] == word]
    # A word that several keys end with gives no hint, rather than the wrong one.
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

Sets = Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE, over the file; repeatable.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Best = Annotated[bool, typer.Option("--best", help="Use the best checkpoint, as kept by trainer.keep_best.")]
Out = Annotated[Path | None, typer.Option("--out", help="Run directory.")]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory, or the beginning of its name.")]


def _allow(names: list[str] | None) -> None:
    if names:
        from gxpo.base.server_keys import allow

        allow(names)


# Works through its callback alone: what may be sent is decided by the user of the process, never by a file's settings.
AllowKey = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-key",
        metavar="NAME[@HOST]",
        callback=_allow,
        help="Environment variable that a `key_from` of the configuration may send to its server; repeatable.",
    ),
]


def resolved_of(config_file: Path | None, sets: list[str] | None, from_run: Path | None = None) -> Any:
    """Resolve the configuration of a file, `--set` and `--from`."""
    from gxpo.base.errors import ConfigError
    from gxpo.training import config

    if config_file is None and from_run is None and not sets:
        raise ConfigError(
            "give a CONFIG file, as examples/arithmetic.yaml, or --set task=data.jsonl --set model=..., or --from RUN; "
            "gxpo demo needs none of them"
        )
    # --set wins over the file.
    values = config.keys_with_sets(config_file, sets or [])
    if from_run is not None:
        from gxpo.training.train import keys_from_run

        # The run's own keys lie below both.
        values = keys_from_run(found_run(from_run), values)
    return config.resolve(values)


def found_run(run: Path) -> Path:
    """Find a run directory; for the beginning of a name, report the match on standard error."""
    from gxpo.training.directory import find

    matched_run = find(run)
    if matched_run != run:
        say(f"no {run}: using {matched_run}, the only run whose name begins so", err=True)
    return matched_run


def quiet() -> None:
    """Disable the progress bars of transformers."""
    from gxpo.base.errors import need

    need("transformers.utils.logging", "train").disable_progress_bar()


def fail(message: str, code: int = 2) -> NoReturn:
    say(" ".join(f"gxpo: {message}".splitlines()), err=True)
    sys.stdout.flush()
    sys.exit(code)

"""Files of a script: its text, and files that it names, searched from the caller's directory and its own folders."""

from __future__ import annotations

from pathlib import Path

from gxpo.adapters.shell.values import Text
from gxpo.base.errors import ConfigError

FOLDERS_ABOVE = 6  # of the script, in which a file is searched


def find_file(script: Path, name: Text, suffixes: tuple[str, ...], directory: Text = "") -> Path | None:
    """Find a file by its name, or by the certain end of it; None without one that has one of these suffixes.

    directory  where the script has gone (`cd`). It may be of another machine, or known at its end alone: the longest
               tail of it below which there is such a file is taken
    """
    name_text, parts = _certain_end(name), Path(_certain_end(directory)).parts
    if not name_text or not name_text.endswith(suffixes):
        return None
    folders = [Path(), script.parent, *list(script.resolve().parents)[:FOLDERS_ABOVE]]
    tails = [Path(*parts[i:]) for i in range(len(parts))]
    candidates = (folder / tail / name_text for tail in (*tails, Path()) for folder in folders)
    return next((path for path in candidates if path.is_file()), None)


def text_of(path: Path) -> str:
    """Read a script. ConfigError if it is no text in UTF-8."""
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"line {line} of {path.name} is not UTF-8: save the script as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path.name}: {error.strerror}") from None


def _certain_end(text: Text) -> str:
    return text if isinstance(text, str) else text.end.lstrip("/")

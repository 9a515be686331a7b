"""The lesson: a recorded run in one page that needs no installation."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent


def page() -> str:
    """Return the page as HTML, complete in itself."""
    script = "".join((HERE / name).read_text(encoding="utf-8") for name in ("advantages.js", "view.js"))
    text = (HERE / "lesson.html").read_text(encoding="utf-8")
    run = (HERE / "run.json").read_text(encoding="utf-8").strip().replace("<", "\\u003c")
    return text.replace("RUN_JSON", run).replace("SCRIPTS", script)

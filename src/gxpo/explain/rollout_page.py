"""`gxpo explain`: one self-contained page of a step's rollouts under one or several methods."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gxpo.base.page import Html, data, folded, key_figures, masthead, page, paragraph, text
from gxpo.explain.group_figures import MOST_ROLLOUTS, MOST_TOKENS, GroupFigures, chosen, figures
from gxpo.explain.outlook import Outlook, look
from gxpo.explain.rollout_columns import columns
from gxpo.explain.rollout_source import Source, read

HERE = Path(__file__).parent
SCRIPTS = ("columns.js", "arithmetic.js", "tree.js", "view.js")


def explain(path: Path | str, methods: Sequence[str] = (), step: int | None = None) -> str:
    """The page of a run directory (its last step, or `step`) or a file of rollouts.

    methods  shown side by side; default: the run's own, else GRPO
    """
    source = read(Path(path), step)
    return written(source, looks_of(source, methods))


def looks_of(source: Source, methods: Sequence[str]) -> list[Outlook]:
    """Each method's view of the rollouts; the run's own method with its settings where its name is asked for."""
    own = source.method
    asked = list(dict.fromkeys(methods)) or [own.name if own is not None else "grpo"]
    out = []
    for name in asked:
        is_own = own is not None and own.name == name
        out.append(look(own if is_own else name, source.forest, horizon=source.horizon, own=is_own))  # type: ignore[arg-type]  # own is not None
    return out


def written(
    source: Source, looks: Sequence[Outlook], *, rollouts: int = MOST_ROLLOUTS, tokens: int = MOST_TOKENS
) -> str:
    """The page as text. Beyond `rollouts` or `tokens` groups are chosen, and the page says what it leaves out."""
    found = figures(source.forest, looks, source.recorded)
    groups = chosen(found, rollouts, tokens)
    body = (
        masthead(source.title, [*source.facts, *_left_out(found, groups)])
        + _lacks(source, looks)
        + key_figures(_key_figures(source, found, looks))
        + _skeleton()
        + data("rollouts", columns(source, looks, found, groups.tolist()))
    )
    script, style = assets()
    return page(source.title, body, f"'use strict';(()=>{{{script}}})();", style)


def assets() -> tuple[str, str]:
    """Script and style of the page, from the files in `script/`."""
    folder = HERE / "script"
    script = "".join((folder / name).read_text(encoding="utf-8") for name in SCRIPTS)
    return script, (folder / "page.css").read_text(encoding="utf-8")


def _left_out(f: GroupFigures, groups: np.ndarray) -> list[str]:
    if len(groups) == len(f.names):
        return []
    shown = np.isin(np.arange(len(f.names)), groups)
    said = (
        f"{len(groups):,} of {len(f.names):,} groups are shown ({f.size[shown].sum():,} of {f.size.sum():,} rollouts)"
    )
    for name, zero_signal in list(f.zero_signal.items())[:1]:
        quiet, others = int((zero_signal & ~shown).sum()), int((~zero_signal & ~shown).sum())
        said += f"; left out: {quiet:,} zero-signal under {name}, {others:,} others"
    return [said]


def _lacks(source: Source, looks: Sequence[Outlook]) -> Html:
    out = Html("")
    if source.lacks:
        out += paragraph(Html("<b>Not in the file:</b> "), "; ".join(source.lacks), soft=True)
    for x in looks:
        if x.missing:
            out += paragraph(Html("<b>"), x.name, Html("</b> "), f"can't be shown: {x.missing}", soft=True)
    notes = list(source.notes)
    notes += [f"{x.name}: {note}" for x in looks for note in x.notes]
    notes += [f"{x.name}: no {what}: {why}" for x in looks for what, why in x.without.items()]
    if notes:
        out += folded("Notes on how it was computed", Html("".join(f"<p>{text(n)}</p>" for n in notes)))
    return out


def _key_figures(source: Source, f: GroupFigures, looks: Sequence[Outlook]) -> list[tuple[str, str, str]]:
    n = len(f.names)
    forest = source.forest
    scored = forest.outcome[forest.scored]
    out = [
        ("rollouts", f"{forest.n_trajectories:,}", f"in {n:,} groups"),
        ("tokens", f"{int(forest.path_trainable.sum()):,}", "trained"),
        ("mean reward", f"{float(scored.mean()):.3f}" if len(scored) else "none", "of scored rollouts"),
    ]
    for x in looks:
        if x.name in f.zero_signal:
            zero_signal = f.zero_signal[x.name]
            top = float(np.nanmax(f.high)) if n and not np.isnan(f.high).all() else 0.0
            right = int((zero_signal & (f.spread == 0) & (f.low == top) & (f.low > 0)).sum())
            wrong = int((zero_signal & (f.spread == 0) & (f.high <= 0)).sum())
            parts = {
                "all at the top": right,
                "all at 0 or less": wrong,
                "all equal between": int(zero_signal.sum()) - right - wrong,
            }
            said = ", ".join(f"{count} {what}" for what, count in parts.items() if count)
            out.append(
                (
                    f"zero-signal under {x.name}",
                    f"{int(zero_signal.sum())} of {n}",
                    said or "groups without an advantage",
                )
            )
    if (count := int((f.residue > 0).sum())) > 0:
        out.append(("residues", str(count), f"equal rewards, recorded advantage up to {f.residue.max():.1e}"))
    return out


def _skeleton() -> Html:
    return Html(
        "<noscript><p>This page draws its rollouts by its own script; allow it to run.</p></noscript>\n"
        '<div id="bar" role="toolbar" aria-label="View"></div>\n'
        '<div id="columns">'
        '<div id="groups" role="listbox" tabindex="0" aria-label="Groups"></div>'
        '<article id="group" aria-label="Rollouts of the group"></article>'
        '<aside id="why" tabindex="-1" aria-label="How the number came about"></aside></div>\n'
        '<p id="said" class="unseen" role="status"></p>\n'
        '<dialog id="help" aria-label="Keys"></dialog>\n'
    )

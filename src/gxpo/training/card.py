"""The model card of an exported checkpoint: what was trained, how, on what evidence, with what result."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gxpo.parts.definition import show
from gxpo.training import config, metrics, statistics
from gxpo.version import __version__

USE = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{name}")
tokenizer = AutoTokenizer.from_pretrained("{name}")
```"""
GXPO = """@misc{gxpo,
  title = {gxpo: group-relative policy optimisation of language models},
  author = {{The gxpo developers}},
  note = {version %s}
}"""


def model_card(resolved: config.RunConfig, run: Path, step: int, *, adapter: bool = False) -> str:
    """README.md of the parameters after `step` of `run`, which is read for evaluations and versions."""
    settings = resolved.settings
    # By name: several phases may have the same method.
    method_by_name = {d.name: (d, method.remains[d.name]) for method in resolved.methods for d in method.definitions}
    trained_part = (
        "LoRA adapter" if adapter else "LoRA, merged" if settings.learner.lora_rank else "every parameter trained"
    )
    if settings.learner.base is not None:  # the numbers under the adapter are others than the model's own
        trained_part += (
            f" trained over linear layers in {settings.learner.base} (double quantisation, bitsandbytes): load it over "
            "those"
            if adapter
            else f" into what its linear layers in {settings.learner.base} compute with"
        )
    model, task = _display_name(settings.model, run), _display_name(settings.task, run)
    parts = [
        _header(settings.model, adapter=adapter),
        f"# {model} after {step} steps of {resolved.label} on {task}",
        f"Base model: `{model}` ({trained_part}). Trained with gxpo {__version__} by reinforcement learning on "
        f"`{task}`, seed {settings.seed}.",
        USE.format(name="."),
        "## Held-out accuracy",
        _evaluation(run, step),
        "## Method",
        *(_method(d, remainder) for d, remainder in method_by_name.values()),
        "## Settings",
        "`gxpo.yaml` holds the same with the origin of each; `gxpo train gxpo.yaml --out runs/again` repeats the run.",
        _settings(resolved),
        "## Versions",
        ", ".join(f"{name} {version}" for name, version in _versions(run).items()),
        "## Citation",
        "\n".join(["```bibtex", *(d.bibtex for d, _ in method_by_name.values()), GXPO % __version__, "```"]),
    ]
    return "\n\n".join(parts) + "\n"


def _display_name(name: str, run: Path) -> str:
    """Display name of a model or task. One that was given as an object lies in the run directory: its architecture, or
    the name of its file."""
    path = Path(name)
    if path.parent != run:
        return name
    config_file = path / "config.json"
    model_config = json.loads(config_file.read_text(encoding="utf-8")) if config_file.is_file() else {}
    return (model_config.get("architectures") or [path.name])[0]


def _header(model: str, *, adapter: bool) -> str:
    """Front matter of the card for the hub. A base model is named only where it is an id of the hub: owner/name."""
    on_the_hub = model.count("/") == 1 and not model.startswith((".", "/", "~")) and not Path(model).exists()
    lines = [
        "---",
        f"library_name: {'peft' if adapter else 'transformers'}",
        "pipeline_tag: text-generation",
        *([f"base_model: {model}"] if on_the_hub else []),
        "tags: [gxpo, reinforcement-learning]",
        "---",
    ]
    return "\n".join(lines)


def _evaluation(run: Path, step: int) -> str:
    """Table of held-out accuracy before and after with intervals, and the paired difference."""
    rows = {r["step"]: r for r in metrics.read(run / "evaluations.jsonl") if r.get("eval_accuracy") is not None}
    # An evaluation before training and one after: without both there is no gain to state.
    last = max((s for s in rows if s <= step), default=0)
    if not last or 0 not in rows:
        return f"Not evaluated up to step {step}."
    lines = ["| step | accuracy | 95% interval | tasks |", "|---|---|---|---|"]
    for s in (0, last):
        row = rows[s]
        low, high = (_number(row.get(f"eval_{end}")) for end in ("low", "high"))
        lines.append(f"| {s} | {_number(row['eval_accuracy'])} | {low} to {high} | {row['eval_tasks']:.0f} |")
    before, after = (_verdicts(run, s) for s in (0, last))
    # Paired by task, which takes out how hard each task is; other tasks after a change of data have no pairs.
    if len(before) > 1 and before.keys() == after.keys():
        gain = sum(after.values()) / len(after) - sum(before.values()) / len(before)
        low, high = statistics.paired_interval([before[t] for t in before], [after[t] for t in before])
        interval = f"95% {low:+.3f} to {high:+.3f}" if low < high else "the same on every task"
        lines += ["", f"Difference, task by task: {gain:+.3f} ({interval})."]
    if last != step:
        lines += ["", f"The exported step {step} itself was not evaluated."]
    return "\n".join(lines)


def _verdicts(run: Path, step: int) -> Mapping[str, float]:
    path = run / "evaluations" / f"step-{step:06d}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _method(definition: Any, remains: str) -> str:
    """Section of one method: idea, formula, evidence; or the keys of it that the run's settings changed."""
    lines = [
        f"**{definition.name}** ({definition.title}"
        + (f", [arXiv {definition.arxiv}](https://arxiv.org/abs/{definition.arxiv})" if definition.arxiv else "")
        + f"): {definition.idea}.",
    ]
    # A part that the run's settings replaced is not credited to the paper.
    if remains:
        return f"{lines[0]}\nNot so in this run: {remains}."
    lines += [
        "\n" + textwrap.indent(definition.formula, "    ") + "\n",
        f"Evidence: {definition.evidence}." + (f" Choices: {definition.choices}." if definition.choices else ""),
    ]
    return "\n".join(lines)


def _settings(resolved: config.RunConfig) -> str:
    rows = [f"| `{key}` | {_cell(setting.value)} |" for key, setting in resolved.keys.items()]
    return "\n".join(["| key | value |", "|---|---|", *rows])


def _cell(value: Any) -> str:
    return f"`{show(value)}`".replace("|", "\\|").replace("\n", "\\n")


def _versions(run: Path) -> dict[str, str]:
    """Versions of software in the run, and of the gxpo that exports."""
    keys = config.read(run / "config.yaml")
    run_versions = keys["versions"].value if "versions" in keys else {}
    return {**{str(k): str(v) for k, v in run_versions.items()}, "exported by gxpo": __version__}


def _number(value: Any) -> str:
    return "unknown" if value is None else f"{value:.3f}"

"""The command `plan`: what a run will do and cost, on this machine or on a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from gxpo.cli.options import AllowKey, Json, Sets, app, quiet, resolved_of, say

CLUSTER = "Cluster (with any cluster.* key or any of these)"


def _of_cluster(text: str, metavar: str | None = None) -> Any:
    return typer.Option(help=text, metavar=metavar, rich_help_panel=CLUSTER, show_default=False)


@app.command()
def plan(
    config_file: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG", help="YAML file; not needed with --from, --set.", show_default=False),
    ] = None,
    sets: Sets = None,
    from_run: Annotated[Path | None, typer.Option("--from", metavar="RUN", help="As in train.")] = None,
    probe: Annotated[bool, typer.Option(help="Measure two real steps; nothing of them stays.")] = True,
    parameters: Annotated[float | None, _of_cluster("Parameters, in place of `model`; with the next five.")] = None,
    layers: Annotated[int | None, _of_cluster("Layers.")] = None,
    hidden: Annotated[int | None, _of_cluster("Size of a hidden state.")] = None,
    kv_heads: Annotated[int | None, _of_cluster("Heads of keys and values in a layer.")] = None,
    head_dim: Annotated[int | None, _of_cluster("Size of a head.")] = None,
    vocabulary: Annotated[int | None, _of_cluster("Ids.")] = None,
    tokens: Annotated[float | None, _of_cluster("Tokens that a step generates; default: the run's at most.")] = None,
    context: Annotated[int | None, _of_cluster("Tokens of the longest trajectory; default: its actions.")] = None,
    gpu: Annotated[str | None, _of_cluster("a100, h20, h100 (default), h200 or b200.", "NAME")] = None,
    mfu: Annotated[float | None, _of_cluster("Share of its peak that an update reaches; default: 0.4.")] = None,
    links: Annotated[int | None, _of_cluster("Links that weights leave the trainers by; default: 1.")] = None,
    link_gbit: Annotated[float | None, _of_cluster("Gbit a second of a link; default: 200.")] = None,
    sample_speed: Annotated[float | None, _of_cluster("Tokens a second of a sampling GPU; default: by size.")] = None,
    allow_key: AllowKey = None,
    as_json: Json = False,
) -> None:
    """Show what a run will do and cost: prompts, rollouts, optimiser steps, reuse; time, memory and disk from a probe.

    With a cluster: placement, memory of a GPU, weight publication and throughput, by formulas; nothing is loaded.

    Example: gxpo plan examples/arithmetic.yaml --set update.epochs=2

    Example: gxpo plan --set model=qwen2.5-7b --set cluster.sample.replicas=16 --context 32768 --tokens 1e6
    """
    sizes = {
        "parameters": parameters, "layers": layers, "hidden": hidden, "kv_heads": kv_heads, "head_dim": head_dim,
        "vocabulary": vocabulary,
    }  # fmt: skip
    load = {"tokens": tokens, "context": context, "gpu": gpu, "mfu": mfu, "links": links, "link_gbit": link_gbit,
            "sample_speed": sample_speed}  # fmt: skip
    stated = any(value is not None for value in (*sizes.values(), *load.values()))
    if stated or any(item.startswith("cluster.") for item in sets or ()) or _names_cluster(config_file):
        _show_cluster(config_file, sets, from_run, sizes, load, as_json)
        return
    if not probe:
        show_unexecuted(config_file, sets, from_run, as_json)
        return
    from gxpo.training.probe import probe as measure

    resolved = resolved_of(config_file, sets, from_run)
    quiet()
    _show_plan(resolved, measure(resolved, notify=lambda line: say(line, err=True)), as_json)


def _names_cluster(config_file: Path | None) -> bool:
    from gxpo.training import config

    return config_file is not None and any(key.startswith("cluster.") for key in config.read(config_file))


def _show_cluster(
    config_file: Path | None,
    sets: list[str] | None,
    from_run: Path | None,
    sizes: dict[str, Any],
    load: dict[str, Any],
    as_json: bool,
) -> None:
    """The plan of a cluster; no file that the configuration names is run, and no model loaded."""
    from gxpo.base.errors import ConfigError
    from gxpo.base.usercode import unexecuted
    from gxpo.explain.cluster_plan import cluster_plan, cluster_text, load_of
    from gxpo.models.shape import shape_of, stated_shape

    if sizes["parameters"] is None and (alone := [k for k, v in sizes.items() if v is not None]):
        raise ConfigError(f"--{alone[0].replace('_', '-')} goes with --parameters, in place of `model`")
    with unexecuted():
        resolved = resolved_of(config_file, sets or ["seed=0"], from_run)
        asked = load_of(resolved, load)
    quiet()
    shape = shape_of(resolved.settings.model) if sizes["parameters"] is None else stated_shape(**sizes)
    found = cluster_plan(shape, resolved.settings.cluster, asked)
    say(json.dumps({"cluster": found}, indent=1) if as_json else cluster_text(found))


def show_unexecuted(config_file: Path | None, sets: list[str] | None, from_run: Path | None, as_json: bool) -> None:
    """The plan without a probe; no file that the configuration names is run."""
    from gxpo.base.usercode import unexecuted

    with unexecuted():
        _show_plan(resolved_of(config_file, sets, from_run), {}, as_json)


def _show_plan(resolved: Any, measured: dict[str, Any], as_json: bool) -> None:
    from gxpo.explain.plan import arithmetic, show_keys, show_plan, show_probe
    from gxpo.training.preflight import rehearse

    if not measured:  # the probe has run it
        rehearse(resolved)
    figures = arithmetic(resolved)
    if as_json:
        keys = {k: {"value": str(s.value), "origin": s.origin} for k, s in resolved.keys.items()}
        told = {"plan": figures, "keys": keys, "without": resolved.method.without}
        say(json.dumps(told | ({"probe": measured} if measured else {}), indent=1))
        return
    show_keys(resolved)
    for line in resolved.method.without:
        say(f"\n{line}")
    show_plan(figures)
    if measured:
        show_probe(measured)

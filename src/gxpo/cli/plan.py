"""`gxpo plan`: forecast what a run will do and cost, on this machine or on a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from gxpo.cli.options import AllowKey, Json, Sets, app, quiet, resolved_of, say

CLUSTER = "GPU or cluster that need not be there (--gpu alone: one GPU; a cluster.* key or any other: a cluster)"


def _of_cluster(text: str, metavar: str | None = None) -> Any:
    return typer.Option(help=text, metavar=metavar, rich_help_panel=CLUSTER, show_default=False)


@app.command()
def plan(
    config_file: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG", help="YAML file; not needed with --from, --set.", show_default=False),
    ] = None,
    sets: Sets = None,
    from_run: Annotated[
        Path | None, typer.Option("--from", metavar="RUN", help="Start from a run, as in `gxpo train --from`.")
    ] = None,
    probe: Annotated[bool, typer.Option(help="Measure two real steps, which leave nothing behind.")] = True,
    parameters: Annotated[
        float | None, _of_cluster("Number of parameters, in place of `model`; needs the next five options.")
    ] = None,
    layers: Annotated[int | None, _of_cluster("Number of layers.")] = None,
    hidden: Annotated[int | None, _of_cluster("Size of a hidden state.")] = None,
    kv_heads: Annotated[int | None, _of_cluster("Number of key and value heads in a layer.")] = None,
    head_dim: Annotated[int | None, _of_cluster("Size of a head.")] = None,
    vocabulary: Annotated[int | None, _of_cluster("Size of the vocabulary.")] = None,
    tokens: Annotated[float | None, _of_cluster("Tokens generated in a step; default: the run's maximum.")] = None,
    context: Annotated[
        int | None, _of_cluster("Tokens of the longest trajectory; default: those of its actions.")
    ] = None,
    gpu: Annotated[
        str | None, _of_cluster("t4, l4, 4090, a100, h20, h100 (a cluster's default), h200 or b200.", "NAME")
    ] = None,
    mfu: Annotated[float | None, _of_cluster("Share of the GPU's peak speed in an update; default: 0.4.")] = None,
    links: Annotated[int | None, _of_cluster("Network links for publishing weights; default: 1.")] = None,
    link_gbit: Annotated[float | None, _of_cluster("Speed of a link in Gbit per second; default: 200.")] = None,
    sample_speed: Annotated[
        float | None, _of_cluster("Tokens per second of a sampling GPU; default: by model size.")
    ] = None,
    allow_key: AllowKey = None,
    as_json: Json = False,
) -> None:
    """Show what a run will do and cost: prompts, rollouts, optimiser steps, reuse; time, memory and disk from a probe.

    With --gpu: whether a run fits that GPU, by which parts, and which settings make it fit. With a cluster: placement,
    memory of a GPU, weight publication and throughput. Both by formulas; nothing is loaded.

    Example: gxpo plan examples/arithmetic.yaml --set update.epochs=2

    Example: gxpo plan --gpu t4 --set model=qwen2.5-0.5b --set task=gsm8k.jsonl

    Example: gxpo plan --set model=qwen2.5-7b --set cluster.sample.replicas=16 --context 32768 --tokens 1e6
    """
    sizes = {
        "parameters": parameters, "layers": layers, "hidden": hidden, "kv_heads": kv_heads, "head_dim": head_dim,
        "vocabulary": vocabulary,
    }  # fmt: skip
    load = {"tokens": tokens, "context": context, "gpu": gpu, "mfu": mfu, "links": links, "link_gbit": link_gbit,
            "sample_speed": sample_speed}  # fmt: skip
    # Any option of the cluster panel, or any cluster.* key, makes it a plan of a cluster: formulas, no probe.
    names_cluster = any(item.startswith("cluster.") for item in sets or ()) or _names_cluster(config_file)
    speeds = [value for name, value in load.items() if name not in ("gpu", "context")]
    # A GPU and no word of a cluster is one device: its memory decides, and there is nothing to place or publish.
    if gpu is not None and not names_cluster and all(value is None for value in speeds):
        _show_device(config_file, sets, from_run, sizes, gpu, context, as_json)
        return
    has_cluster_option = any(value is not None for value in (*sizes.values(), *load.values()))
    if has_cluster_option or names_cluster:
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


def _show_device(
    config_file: Path | None,
    sets: list[str] | None,
    from_run: Path | None,
    sizes: dict[str, Any],
    gpu: str,
    context: int | None,
    as_json: bool,
) -> None:
    """Show the memory plan of a GPU, without running files that the configuration names or loading a model."""
    from gxpo.base.usercode import unexecuted
    from gxpo.explain.device_plan import device_plan, device_text, training_of
    from gxpo.models.shape import source_of

    _check_sizes(sizes)
    # A plan may be of a stranger's configuration: no file that it names is run.
    with unexecuted():
        resolved = resolved_of(config_file, sets or ["seed=0"], from_run)
        training = training_of(resolved, context)
    figures = device_plan(_shape(resolved, sizes), resolved, training, gpu)
    source = source_of(resolved.settings.model) if sizes["parameters"] is None else None
    is_assumed = context is None
    say(json.dumps({"device": figures}, indent=1) if as_json else device_text(figures, source, is_assumed=is_assumed))


def _show_cluster(
    config_file: Path | None,
    sets: list[str] | None,
    from_run: Path | None,
    sizes: dict[str, Any],
    load: dict[str, Any],
    as_json: bool,
) -> None:
    """Show the plan of a cluster, without running files that the configuration names or loading a model."""
    from gxpo.base.usercode import unexecuted
    from gxpo.explain.cluster_plan import cluster_plan, cluster_text, load_of

    _check_sizes(sizes)
    with unexecuted():
        # With --parameters alone no key is stated, which `resolved_of` would refuse.
        resolved = resolved_of(config_file, sets or ["seed=0"], from_run)
        cluster_load = load_of(resolved, load)
    figures = cluster_plan(_shape(resolved, sizes), resolved.settings.cluster, cluster_load)
    say(json.dumps({"cluster": figures}, indent=1) if as_json else cluster_text(figures))


def _check_sizes(sizes: dict[str, Any]) -> None:
    """Raise ConfigError for sizes without --parameters: half of them given would be joined with another model's."""
    from gxpo.base.errors import ConfigError

    if sizes["parameters"] is None and (sizes_given := [k for k, v in sizes.items() if v is not None]):
        raise ConfigError(f"--{sizes_given[0].replace('_', '-')} goes with --parameters, in place of `model`")


def _shape(resolved: Any, sizes: dict[str, Any]) -> Any:
    """Return the sizes of the configuration's model, or those that are stated in its place."""
    from gxpo.models.shape import shape_of, stated_shape

    quiet()
    return shape_of(resolved.settings.model) if sizes["parameters"] is None else stated_shape(**sizes)


def show_unexecuted(config_file: Path | None, sets: list[str] | None, from_run: Path | None, as_json: bool) -> None:
    """Show the plan without a probe, and without running files that the configuration names."""
    from gxpo.base.usercode import unexecuted

    with unexecuted():
        _show_plan(resolved_of(config_file, sets, from_run), {}, as_json)


def _show_plan(resolved: Any, probe_figures: dict[str, Any], as_json: bool) -> None:
    from gxpo.explain.plan import arithmetic, show_keys, show_plan, show_probe
    from gxpo.training.preflight import rehearse

    if not probe_figures:  # the probe has run it
        rehearse(resolved)
    figures = arithmetic(resolved)
    if as_json:
        keys = {k: {"value": str(s.value), "origin": s.origin} for k, s in resolved.keys.items()}
        document = {"plan": figures, "keys": keys, "without": resolved.method.without}
        say(json.dumps(document | ({"probe": probe_figures} if probe_figures else {}), indent=1))
        return
    show_keys(resolved)
    for line in resolved.method.without:
        say(f"\n{line}")
    show_plan(figures)
    if probe_figures:
        show_probe(probe_figures)

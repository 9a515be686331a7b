"""Draw what a flow samples before and after a run: each point in the colour of the direction it was asked for.

    gxpo train examples/flow_grpo.yaml
    python scripts/pages/plot_flow.py runs/flow_grpo            # writes samples.png into the run directory

Needs matplotlib (pip install 'gxpo[plot]'). "Before" is the warm start, "after" the newest checkpoint (--step: another
one that was kept). Both are sampled by the ODE (--noise: by the SDE at that level) from the same initial noise.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from gxpo.base.errors import GxpoError, need
from gxpo.environments.tasks.points import DIRECTIONS, target
from gxpo.parts.protocols import Request, Sampling, StreamKey
from gxpo.sampling.engines.flow import FlowEngine
from gxpo.training import config
from gxpo.training.directory import config_of
from gxpo.training.models import flow
from gxpo.training.start import parameters_of


def samples(model: flow.FlowModel, count: int, noise: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample points [n, 2] of the model; return their directions [n] and the points."""
    directions = torch.arange(count) % DIRECTIONS
    requests = [Request((int(a),), (StreamKey(0, -1, "plot", i),)) for i, a in enumerate(directions)]
    completions = FlowEngine(model).sample(requests, Sampling(temperature=noise))
    return directions, torch.tensor([group[0].extras["latent"][-1].tolist() for group in completions])


def draw(run: Path, step: int | None, count: int, noise: float, out: Path) -> None:
    """Write the picture."""
    pyplot: Any = need("matplotlib.pyplot", "plot")
    settings = config.resolve(config.read(config_of(run))).settings
    if not flow.is_flow(settings.model):
        raise GxpoError(f"{run} trained model {settings.model}, which is no flow: there are no points to draw")
    before, after = (flow.load(settings.model) for _ in range(2))
    parameters = parameters_of(run, step)
    after.load_state_dict({name: x.to(torch.float32) for name, x in parameters.items()})
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 4.6), layout="constrained")
    for name, model, axis in zip(("before", "after"), (before, after), axes, strict=True):
        directions, points = samples(model, count, noise)
        is_near = (points - target(directions)).norm(dim=1) <= settings.tasks.options.get("radius", 0.3)
        axis.scatter(*points.T, c=directions, cmap="hsv", vmin=0, vmax=DIRECTIONS, s=5, linewidths=0)
        ring = target(torch.arange(0, DIRECTIONS, 4))
        axis.scatter(*(1.75 * ring).T, c=torch.arange(0, DIRECTIONS, 4), cmap="hsv", vmin=0, vmax=DIRECTIONS, s=14)
        axis.set(title=f"{name}: {float(is_near.double().mean()):.0%} where they were asked for", aspect="equal")
        axis.set(xlim=(-1.95, 1.95), ylim=(-1.95, 1.95), xticks=[], yticks=[])
    figure.suptitle("colour: the direction asked for (outer ring: the key)", fontsize=9)
    figure.savefig(out, dpi=130)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, help="default: RUN/samples.png")
    parser.add_argument("--step", type=int)
    parser.add_argument("--samples", type=int, default=2880)
    parser.add_argument("--noise", type=float, default=0.0)
    arguments = parser.parse_args()
    out = arguments.out or arguments.run / "samples.png"
    try:
        draw(arguments.run, arguments.step, arguments.samples, arguments.noise, out)
    except GxpoError as error:
        print(f"plot_flow: {error}", file=sys.stderr)
        return 2
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Where points are asked for, what the model before training was shown, and how samples are rated."""

import math

import pytest
import torch
from tests.sampling.rollouts.flow_session import TASKS, FlowSession, grown

from gxpo.base.errors import TaskError
from gxpo.environments.tasks.points import DIRECTIONS, Points, final_latents, mixture, target
from gxpo.forest.forest import Forest
from gxpo.sampling.rollouts.denoise import Denoise, DenoiseTree


def test_directions_are_degrees_from_the_right_against_the_clock():
    # 30 degrees: (sqrt(3) / 2, 1 / 2)
    actual = target(torch.tensor([0, 30, 90, 180, 270])).flatten().tolist()
    assert actual == pytest.approx([1, 0, math.sqrt(3) / 2, 0.5, 0, 1, -1, 0, 0, -1], abs=1e-12)


def test_a_share_of_the_mixture_heeds_what_is_asked():
    random = torch.Generator().manual_seed(0)
    n = 20000
    asked_directions = torch.randint(DIRECTIONS, (n,), generator=random)
    uniform = torch.rand(n, 2, generator=random, dtype=torch.float64)
    normal = torch.randn(n, 2, generator=random, dtype=torch.float64)
    exact = mixture(asked_directions, uniform, normal, heed=0.35, spread=0.0)
    assert torch.allclose(exact.norm(dim=1), torch.ones(n, dtype=torch.float64))
    heeded = (exact - target(asked_directions)).norm(dim=1) < 1e-9
    assert float(heeded.double().mean()) == pytest.approx(0.35, abs=0.01)
    assert float(exact[~heeded].mean(0).norm()) < 0.02  # anywhere on the circle
    noisy = mixture(asked_directions, uniform, normal, spread=0.12)
    assert float((noisy - exact).std()) == pytest.approx(0.12, abs=0.002)


def test_samples_are_rated_where_they_end():
    forest = grown(Denoise(2), TASKS)
    x = torch.zeros(forest.n_trajectories, 2, dtype=torch.float64)
    place = {
        10: (math.cos(math.radians(10)) + 0.3 - 1e-9, math.sin(math.radians(10))),
        200: (0.0, 0.0),
        355: (3.0, 0.0),
    }
    for r in range(6):
        x[r] = torch.tensor(place[int(forest.task[r].split("/")[1])], dtype=torch.float64)
    latent = forest.extras["latent"].clone()
    latent[forest.path_token[[int(forest.path_of(r)[-1]) for r in range(6)]]] = x
    moved = forest.replace(extras=forest.extras | {"latent": latent})
    tasks = {t.id: t for t in TASKS}
    actual = Points().rate(moved, [""] * 6, [tasks[t] for t in moved.task])
    # distances .3, 1 and |(3, 0) - (cos 355, sin 355)| = sqrt(10 - 6 cos 5) = 2.00572
    far = 10 - 6 * math.cos(math.radians(5))
    assert actual["correct"].tolist() == [1, 1, 0, 0, 0, 0]
    assert actual["closeness"].tolist() == pytest.approx(
        [math.exp(-0.18)] * 2 + [math.exp(-2)] * 2 + [math.exp(-far / 0.5)] * 2, abs=1e-8
    )
    assert (
        Points(radius=1.5).rate(moved, [""] * 6, [tasks[t] for t in moved.task])["correct"].tolist()
        == [1] * 4 + [0] * 2
    )


def test_unfinished_samples_are_not_rated_and_text_cannot_be():
    cut = Denoise(1).grow(TASKS, FlowSession(max_new_tokens=3))
    assert all(bool(x.isnan().all()) for x in Points().rate(cut, [""] * 3, TASKS).values())
    text = Forest.from_completions([[1]], [[[2]]])
    with pytest.raises(TaskError, match="model 'flow'"):
        Points().rate(text, ["x"], TASKS[:1])


def test_final_latents_of_branches():
    tree = grown(DenoiseTree(2, 2))
    for r in range(tree.n_trajectories):
        last = int(tree.path_token[tree.path_of(r)[-1]])
        assert final_latents(tree)[r].tolist() == tree.extras["latent"][last].tolist()


def test_directions_are_held_out():
    source = Points(seed=1)
    held_out, training = source.held_out(1000), [t for step in range(40) for t in source.draw(16, step)]
    assert 60 < len(held_out) < 120 and len({t.id for t in held_out}) == len(held_out)
    assert not {t.id for t in held_out} & {t.id for t in training}
    assert all(0 <= int(t.prompt) < DIRECTIONS and t.info["degrees"] == int(t.prompt) for t in training)
    assert source.draw(4, 3) == source.draw(8, 3)[:4] and Points(seed=2).draw(4, 3) != source.draw(4, 3)


def test_options():
    assert Points(radius=1).radius == 1
    for wrong in (0, 2.5, "wide"):
        with pytest.raises(TaskError, match="radius"):
            Points(radius=wrong)

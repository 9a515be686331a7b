"""Groups of denoising samples as forests: what is stored once, what is trained, and what comes back from a file."""

import json

import pytest
import torch
from tests.naive import view
from tests.sampling.rollouts.flow_session import TASKS, FlowSession, grown, renamed, small_flow

from gxpo.algorithms.weighting.token_curves import equal_values
from gxpo.base.errors import ConfigError
from gxpo.environments.tasks.points import final_latents
from gxpo.forest import records
from gxpo.forest.forest import Forest
from gxpo.sampling.rollouts.denoise import Denoise, DenoiseTree

STEPS = 4


def latents(forest, r):
    """[T + 1, 2] along trajectory r."""
    return forest.extras["latent"][forest.path_token[forest.path_of(r)]]


def flags(forest, r):
    return forest.trainable[forest.path_token[forest.path_of(r)]].tolist()


# ---------------------------------------------------------------- independent samples
def test_a_sample_is_one_action_with_a_segment_for_each_step():
    forest = grown(Denoise(3))
    assert forest.n_trajectories == 9 and forest.n_steps == 9 and forest.group[0] == "s3/points/10"
    assert forest.id[:2] == ["s3/points/10/0", "s3/points/10/1"] and forest.task[8] == "points/355"
    assert set(forest.policy_version[forest.last_action].tolist()) == {2}
    for r in range(9):
        tokens = forest.path_token[forest.path_of(r)]
        assert forest.token[tokens].tolist() == [-1] * (STEPS + 1)
        assert forest.segment[tokens].tolist() == list(range(STEPS + 1))
        assert flags(forest, r) == [False, True, True, True, False]
        assert forest.context(int(forest.prompt_node[r])) == [int(forest.task[r].split("/")[1])]
    assert forest.lengths().tolist() == [3] * 9 and not bool(forest.truncated.any())
    assert bool(forest.behaviour_logprob[forest.path_token].isfinite().all())
    assert forest.sampling[0]["temperature"] == 0.7 and forest.prompt_text[0] == "10"
    x, y = final_latents(forest)[0].tolist()
    assert forest.action_text[0] == f"({x:+.2f}, {y:+.2f})"


def test_attempts_depend_on_their_name_alone():
    all_tasks, second_task = grown(Denoise(3)), grown(Denoise(2), [TASKS[1]])
    for r in range(2):
        assert torch.allclose(latents(second_task, r), latents(all_tasks, 3 + r), atol=1e-12)
    twice = grown(Denoise(1), [TASKS[0], TASKS[0]])
    assert twice.group == ["s3/points/10", "s3/points/10#1"]
    assert float((latents(twice, 0) - latents(twice, 1)).abs().min()) > 1e-6


def test_ode_samples_are_untrained_and_unfinished_ones_unscored():
    ode = grown(Denoise(2), session=FlowSession(temperature=0.0))
    assert not bool(ode.trainable.any()) and bool(ode.scored.all())
    cut = grown(Denoise(2), session=FlowSession(max_new_tokens=3))
    assert bool(cut.truncated.all()) and not bool(cut.scored.any())
    assert [flags(cut, r) for r in (0, 5)] == [[False, True, True]] * 2


# ---------------------------------------------------------------- the tree
TREE = grown(DenoiseTree(seeds=2, branches=3))


def test_a_branch_trains_the_step_at_which_it_leaves():
    assert TREE.n_trajectories == 3 * 2 * (STEPS - 1) * 3
    for r, info in enumerate(TREE.info):
        at = info["branched_at"]
        assert flags(TREE, r) == [k == at + 1 for k in range(STEPS + 1)]
        tokens = TREE.path_token[TREE.path_of(r)]
        assert TREE.segment[tokens].tolist() == list(range(STEPS + 1))
        scale = TREE.extras["noise_scale"][tokens].tolist()
        assert [s > 0 for s in scale] == [k in (0, at + 1) for k in range(STEPS + 1)]
        assert TREE.extras["time"][tokens].tolist() == [1, 0.75, 0.5, 0.25, 0]


def test_the_path_is_stored_once():
    # a seed stores the path to where the last branches leave, x_0..x_2, and each branch from its own step on
    per_seed = (STEPS - 1) + 3 * sum(STEPS - at for at in range(STEPS - 1))
    assert int((TREE.token < 0).sum()) == 3 * 2 * per_seed
    shared = torch.bincount(TREE.path_token, minlength=TREE.n_tokens)
    assert int(shared.max()) == 9  # x_0 is on the way of all branches of its seed
    assert int(shared[TREE.trainable].max()) == 1


def test_branches_leave_the_ode_and_go_back_to_it():
    paths = grown(Denoise(2), session=FlowSession(temperature=0.0))
    model = small_flow()
    for r, info in enumerate(TREE.info):
        task = [t.id for t in TASKS].index(TREE.task[r])
        x, path, at = latents(TREE, r), latents(paths, 2 * task + info["seed"]), info["branched_at"]
        assert torch.allclose(x[: at + 1], path[: at + 1], atol=1e-12)
        assert float((x[at + 1] - path[at + 1]).abs().min()) > 1e-6
        asked_degrees = torch.tensor([TASKS[task].info["degrees"]])
        for k in range(at + 1, STEPS):
            with torch.no_grad():
                v = model.network(x[k][None], model.times[k][None], asked_degrees)[0]
            assert torch.allclose(x[k + 1], x[k] - v / STEPS, atol=1e-12)


def test_branches_of_one_step_are_compared_in_one_column():
    column = TREE.ids("segment", axis="P")[TREE.path_trainable]
    assert torch.unique(column, return_counts=True)[1].tolist() == [2 * 3] * (3 * (STEPS - 1))
    by_seed = grown(DenoiseTree(seeds=2, branches=3, by_seed=True))
    assert by_seed.group[0] == "s3/points/10/0" and len(set(by_seed.group)) == 6
    assert torch.equal(by_seed.extras["latent"].nan_to_num(), TREE.extras["latent"].nan_to_num())


def test_a_tree_does_not_depend_on_what_else_is_grown():
    third_task = grown(DenoiseTree(seeds=1, branches=2), [TASKS[2]])
    for r, name in enumerate(third_task.id):
        assert torch.allclose(latents(third_task, r), latents(TREE, TREE.id.index(name)), atol=1e-12)


def test_what_a_tree_costs():
    session = FlowSession()
    DenoiseTree(seeds=2, branches=3).grow(TASKS, session)
    tokens = sum(
        len(c.tokens) for requests, s in session.calls for group in session.engine.sample(requests, s) for c in group
    )
    # a seed: noise and 4 steps of the path; 3 branches each of 4 + 3 + 2 steps
    assert tokens == 3 * 2 * (1 + STEPS + 3 * (4 + 3 + 2))
    assert [s.temperature for _, s in session.calls] == [0.0, 0.7, 0.0]


def test_one_step_from_the_end_of_a_short_schedule():
    forest = grown(DenoiseTree(seeds=1, branches=2), [TASKS[0]], FlowSession(small_flow(2)))
    assert forest.n_trajectories == 2 and [flags(forest, r) for r in range(2)] == [[False, True, False]] * 2


# ---------------------------------------------------------------- files
@pytest.mark.parametrize("rollout", [Denoise(2), DenoiseTree(2, 2)], ids=["independent", "tree"])
def test_rollouts_come_back_from_a_file_as_they_were(rollout, tmp_path):
    forest = grown(rollout)
    forest = forest.replace(
        sampling=[json.loads(json.dumps(x)) for x in forest.sampling]
    )  # a file has lists for tuples
    records.dump(forest, tmp_path / "rollouts.jsonl")
    again = records.load(tmp_path / "rollouts.jsonl")
    assert view(again) == view(forest)
    assert again.n_tokens == forest.n_tokens and torch.equal(again.parent, forest.parent)
    for name, x in forest.extras.items():
        assert torch.equal(again.extras[name].nan_to_num(), x.nan_to_num())
    flat = Forest.from_records(forest.to_records(share=False))
    assert flat.n_entries == forest.n_entries and view(flat) == view(forest)


# ---------------------------------------------------------------- settings
def test_held_out_tasks_are_sampled_without_branches():
    assert DenoiseTree().evaluation(5) == Denoise(8).evaluation(5) == Denoise(5)


def test_settings_that_cannot_be():
    for make in (lambda: Denoise(0), lambda: DenoiseTree(seeds=0), lambda: DenoiseTree(branches=0)):
        with pytest.raises(ConfigError, match="it is 1 or more"):
            make()
    with pytest.raises(ConfigError, match="temperature"):
        DenoiseTree().grow(TASKS, FlowSession(temperature=0.0))
    with pytest.raises(ConfigError, match="max_new_tokens=4 is too few"):
        DenoiseTree().grow(TASKS, FlowSession(max_new_tokens=4))


def test_prompts_may_be_ids():
    session = FlowSession()
    session.encode = lambda task: (task.info["degrees"],)
    forest = Denoise(1).grow([renamed(TASKS[0], prompt=(10,))], session)
    assert forest.prompt_text == [None] and forest.context(int(forest.prompt_node[0])) == [10]


def test_chunks_of_denoising_steps_are_segments() -> None:
    session = FlowSession(small_flow(5))
    forest = grown(Denoise(2, [1, 3]), TASKS[:1], session)
    assert forest.segment[forest.path_token].tolist() == [0, 1, 2, 2, 2, 3] * 2
    weight = equal_values(torch.tensor([1, 2, 2, 2]), torch.zeros(4).long(), torch.ones(4).bool())
    assert weight.tolist() == pytest.approx([2.0, 2 / 3, 2 / 3, 2 / 3])  # two chunks of four steps: 2 = 4 / (2 * 1)
    with pytest.raises(ConfigError, match=r"chunks=\[1, 2\] adds up to 3 denoising steps, and 4 are trained"):
        grown(Denoise(2, [1, 2]), TASKS[:1], session)

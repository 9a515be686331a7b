"""Several policies over one model: each reads its own tokens, is moved by them alone, and samples what it reads."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import strategies
from tests.learning.llamas import VOCABULARY, clean_llama

import gxpo
from gxpo.algorithms.signals import Signals
from gxpo.base.errors import ConfigError, ModelError
from gxpo.forest.forest import Forest
from gxpo.learning.lora import LoraSettings, parameters_of_policy
from gxpo.learning.torch import TorchLearner
from gxpo.parts.protocols import Request, Sampling, StreamKey
from gxpo.sampling.engines.torch import TorchEngine
from gxpo.training.bound_learner import BoundLearner

TWO = {"solver": "trained", "verifier": "trained"}
FROZEN = {"solver": "trained", "verifier": "frozen"}
LORA = LoraSettings(rank=3, alpha=6.0)
NAMES = ("logprob", "entropy")


def moved(learner: TorchLearner, seed: int = 0) -> TorchLearner:
    """With adapters that say something: B is zero at first."""
    generator = torch.Generator().manual_seed(seed)
    start = learner.snapshot()
    noise = {n: 0.2 * torch.randn(x.shape, generator=generator, dtype=x.dtype) for n, x in start.items()}
    learner.restore({n: x + noise[n] for n, x in start.items()})
    return learner


def make(policies: dict[str, str] | None = TWO, **settings: Any) -> TorchLearner:
    given_settings = {"lr": 0.05, "lora": LORA, "weight_decay": 0.0, "max_grad_norm": None, "tokens_per_microbatch": 60}
    return TorchLearner(clean_llama(), policies=policies, **(given_settings | settings))


@pytest.mark.filterwarnings("error::FutureWarning")
def test_adapters_give_no_warning_of_their_libraries() -> None:
    make()


def team_forest(seed: int, names: tuple[str, ...] = ("solver", "verifier")) -> Forest:
    """A random forest (forks, shared and rebuilt contexts) whose agents' actions are of the policies in turn."""
    forest = strategies.random_forest(seed, vocab=VOCABULARY, groups=2, max_turns=3, empty_prompts=False)
    policy = torch.where(forest.agent >= 0, forest.turn % len(names), forest.policy)
    return forest.replace(policy=policy.clamp_min(0), policy_names=names)


def author(forest: Forest) -> list[str]:
    """[P] who wrote each path token."""
    return [forest.policy_names[int(forest.policy[n])] for n in forest.token_node[forest.path_token].tolist()]


def of(forest: Forest, policy: str) -> torch.Tensor:
    return torch.tensor([name == policy for name in author(forest)], dtype=torch.bool)


def alone(both: TorchLearner, policy: str, **settings: Any) -> TorchLearner:
    """A learner of one policy with that policy's adapter, which reads everything."""
    one = make(None, **settings)
    one.restore(parameters_of_policy(policy, both.snapshot(), both.policies))
    return one


def loss_of(forest: Forest, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    credit = torch.randn(forest.n_entries, generator=generator, dtype=torch.float64)
    return lambda x: -(credit * x["logprob"]).sum() + 0.1 * x["entropy"].square().sum()


# ---------------------------------------------------------------- reading
@pytest.mark.slow
@pytest.mark.parametrize("layout", ["packed", "flat"])
def test_every_token_is_read_by_who_wrote_it(layout: str) -> None:
    both = moved(make(layout=layout))
    for seed in range(3):
        forest = team_forest(seed)
        actual = both.outputs(forest, NAMES)
        for policy in TWO:
            mine = of(forest, policy)
            own_outputs = alone(both, policy).outputs(forest, NAMES)
            for name in NAMES:
                assert torch.allclose(actual[name][mine], own_outputs[name][mine], rtol=0, atol=1e-10)
        assert len(set(author(forest))) == 2


def test_a_single_policy_reads_tokens_of_any_policy_name() -> None:
    forest = team_forest(1)
    one = moved(make(None))
    assert one.policies == {"main": "trained"}
    assert torch.equal(one.outputs(forest)["logprob"], one.outputs(forest.replace(policy_names=("x", "y")))["logprob"])
    renamed = make({"solver": "trained"})
    assert list(renamed.snapshot()) == list(one.snapshot())


def test_reference_and_frozen_policy_run_without_adapters() -> None:
    forest, learner = team_forest(2), moved(make(FROZEN, reference=True))
    base = TorchLearner(clean_llama(), lr=0.0).outputs(forest)["logprob"]
    assert torch.allclose(learner.outputs(forest, policy="reference")["logprob"], base, rtol=1e-12, atol=0)
    actual, frozen = learner.outputs(forest)["logprob"], of(forest, "verifier")
    assert torch.allclose(actual[frozen], base[frozen], rtol=0, atol=1e-10)
    assert float((actual - base)[~frozen].abs().min()) > 1e-6


# ---------------------------------------------------------------- gradients
def test_a_roles_tokens_move_only_its_own_adapter() -> None:
    both, forest = moved(make()), team_forest(3)
    loss = loss_of(forest)
    full_gradient = both.gradient(forest, loss, names=NAMES)
    for policy, other in (("solver", "verifier"), ("verifier", "solver")):
        mine = of(forest, policy)
        actual = both.gradient(forest, loss, names=NAMES, active=mine)
        for name, g in actual.items():
            assert (f"policy_{other}" in name) == (float(g.norm()) == 0.0), name
            assert f"policy_{other}" in name or torch.allclose(g, full_gradient[name], rtol=0, atol=1e-12)
        # and that gradient is what a learner of this policy alone finds on these tokens
        expected = alone(both, policy).gradient(forest, loss, names=NAMES, active=mine)
        own_parameters = parameters_of_policy(policy, actual, TWO)
        assert own_parameters.keys() == expected.keys()
        assert all(torch.allclose(own_parameters[n], expected[n], rtol=0, atol=1e-10) for n in expected)


@pytest.mark.slow
@pytest.mark.parametrize("couples", ["token", "trajectory", "group", "step"])
def test_the_gradient_is_the_same_however_the_step_is_cut(couples: str) -> None:
    forest = team_forest(4)
    unit = forest.path_trajectory if couples == "trajectory" else torch.zeros_like(forest.path_trajectory)

    def loss(x: Any) -> torch.Tensor:
        if couples == "token":
            return loss_of(forest)(x)
        total = torch.zeros(int(unit.max()) + 1, dtype=torch.float64).index_add(0, unit, x["logprob"])
        return (0.01 * total.square()).sum() + x["entropy"].sum()

    def gradient(**how: Any) -> torch.Tensor:
        actual = both.gradient(forest, loss, names=NAMES, couples="group" if couples == "group" else couples, **how)
        return torch.cat([g.reshape(-1) for _, g in sorted(actual.items())])

    if couples == "group":
        unit = forest.ids("group", axis="P")
    both = moved(make())
    everything = torch.arange(forest.n_entries)
    full_gradient = gradient(cuts=[everything], two_pass=True)
    assert float(full_gradient.norm()) > 0
    ways: list[dict[str, Any]] = [{}, {"cuts": list(everything.split(3)), "two_pass": True}]
    for limit in (20, 4000):
        both.tokens_per_microbatch = limit
        ways += [{"two_pass": True}]
        for how in ways:
            assert float((gradient(**how) - full_gradient).norm() / full_gradient.norm()) < 1e-12


def test_a_frozen_policy_gets_no_gradient_and_never_changes() -> None:
    learner, forest = moved(make(FROZEN, reference=True)), team_forest(5)
    frozen = of(forest, "verifier")
    assert not any("verifier" in name for name in learner.snapshot())
    base = {n: p.detach().clone() for n, p in learner.model.named_parameters() if "lora_" not in n}
    before = learner.outputs(forest)["logprob"]
    nothing = learner.gradient(forest, loss_of(forest), names=NAMES, active=frozen)
    assert all(float(g.norm()) == 0.0 for g in nothing.values())
    for _ in range(3):
        learner.step(forest, loss_of(forest), names=NAMES)
    after = learner.outputs(forest)["logprob"]
    assert torch.equal(before[frozen], after[frozen]) and float((before - after)[~frozen].abs().min()) > 1e-6
    assert all(torch.equal(p, base[n]) for n, p in learner.model.named_parameters() if n in base)
    assert all(p.requires_grad == ("lora_" in n) for n, p in learner.model.named_parameters())


def test_a_step_of_both_is_the_two_steps_of_each() -> None:
    """Adam moves every parameter by its own gradient, so with no clipping the policies do not see one another."""
    both, forest = moved(make()), team_forest(6)
    apart = {policy: alone(both, policy) for policy in TWO}
    for seed in range(3):
        both.step(forest, loss_of(forest, seed), names=NAMES)
        for policy, one in apart.items():
            one.step(forest, loss_of(forest, seed), names=NAMES, active=of(forest, policy))
    for policy, one in apart.items():
        own_parameters = parameters_of_policy(policy, both.snapshot(), TWO)
        assert all(torch.allclose(own_parameters[n], x, rtol=0, atol=1e-9) for n, x in one.snapshot().items())


# ---------------------------------------------------------------- sampling
def sampled(learner: TorchLearner, policies: tuple[str, ...] = ("solver", "verifier"), turns: int = 2) -> Forest:
    """Attempts in which the policies speak in turn: first under one shared prompt, then each goes on from its own."""
    engine = TorchEngine(learner.model, stop_ids=(1,), acting=learner.acting)
    sampling = Sampling(temperature=0.7, max_new_tokens=6)
    context: dict[tuple[int, int, str], tuple[int, ...]] = {
        (g, i, p): (2 + g, 5, 7) for g in range(2) for i in range(3) for p in policies
    }
    messages: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for turn in range(turns):
        requests = [
            Request(context[key], (StreamKey(0, 1, f"{key}", 0, turn=turn),), keep=(str(key),), policy=key[2])
            for key in context
        ]
        for key, (completion,) in zip(context, engine.sample(requests, sampling), strict=True):
            record = {"agent": key[2], "policy": key[2], "action": completion.tokens, "logprob": completion.logprobs}
            messages.setdefault(key[:2], []).append(record | {"context": list(context[key])})
            context[key] += (*completion.tokens, 9)
    assert turns == 1 or engine.reused_tokens > 0
    return Forest.from_records(
        [
            {"schema": "gxpo.rollouts/1", "group": f"g{g}", "id": f"{g}.{i}", "turns": turns, "reward": float(i % 2),
             "sampling": {"temperature": 0.7}}
            for (g, i), turns in messages.items()
        ]
    )  # fmt: skip


@pytest.mark.parametrize("policies", [TWO, FROZEN])
def test_what_a_role_samples_is_what_the_learner_reads(policies: dict[str, str]) -> None:
    learner = moved(make(policies))
    forest = sampled(learner)
    actual = learner.outputs(forest)["logprob"]
    for policy in policies:
        mine = of(forest, policy)
        assert int(mine.sum()) > 10
        assert torch.allclose(actual[mine], forest.path_behaviour_logprob[mine], rtol=0, atol=1e-10)
    # and each speaks for itself: the other's reading of the same tokens is another one
    swapped = learner.outputs(forest.replace(policy_names=forest.policy_names[::-1]))["logprob"]
    assert float((swapped - actual).abs().max()) > 0.01


def test_the_ratio_is_one_on_policy_for_every_role() -> None:
    learner, method = moved(make(lr=0.0)), gxpo.method("dr_mas")
    forest = sampled(learner)
    signals = Signals.of(forest)
    credit = method.advantages(forest, signals)
    weight = method.token_weights(forest, credit, signals)
    bound = BoundLearner(learner, method, forest, signals, 1)
    info = bound.step(forest, credit, weight)
    gap = (info.outputs["logprob"] - forest.path_behaviour_logprob).abs()
    active = method.active(forest, credit, weight)
    assert {name for name, on in zip(author(forest), active.tolist(), strict=True) if on} == set(TWO)
    assert float(gap[active].max()) < 1e-10 and bound.sampler_gap < 1e-10
    again = bound.step(forest, credit, weight)  # lr is 0: still the same policy, and now the stored proximal is asked
    assert torch.equal(again.outputs["logprob"], info.outputs["logprob"]) and bound.metrics[1]["clip_fraction"] == 0.0


def test_what_one_policy_kept_is_of_no_use_to_another() -> None:
    learner = moved(make())
    engine = TorchEngine(learner.model, stop_ids=(1,), acting=learner.acting)
    sampling = Sampling(max_new_tokens=4)

    def ask(prompt: tuple[int, ...], policy: str, keep: tuple[str, ...] = ("a",)) -> Any:
        return engine.sample([Request(prompt, (StreamKey(0, 0, "t", 0),), keep, policy)], sampling)[0][0]

    first = ask((2, 3, 4), "solver")
    longer = (2, 3, 4, *first.tokens, 5)
    fresh = ask(longer, "verifier", ())
    assert ask(longer, "verifier").logprobs == pytest.approx(fresh.logprobs, abs=1e-12)
    assert (engine.reused_tokens, engine._prefixes.n_mismatched) == (0, 1)
    assert ask((*longer, 6), "verifier", ()).tokens  # nothing was kept without a name
    engine.release()
    with pytest.raises(ModelError, match="no policy 'judge'; the run has solver, verifier"):
        ask((2, 3), "judge")
    with pytest.raises(ModelError, match="one policy, 'main'"):
        TorchEngine(clean_llama(), stop_ids=(1,)).sample(
            [Request((2,), (StreamKey(0, 0, "t", 0),), policy="x")], sampling
        )


def test_requests_of_several_policies_keep_their_order() -> None:
    learner = moved(make())
    engine = TorchEngine(learner.model, stop_ids=(1,), acting=learner.acting)
    asked_values = [(p, k) for k in range(3) for p in ("verifier", "solver")]
    requests = [
        Request((2, 3), (StreamKey(0, 0, f"{k}", 0), StreamKey(0, 0, f"{k}", 1)), policy=p) for p, k in asked_values
    ]
    together = engine.sample(requests, Sampling(max_new_tokens=5))
    for request, actual in zip(requests, together, strict=True):
        (expected,) = engine.sample([request], Sampling(max_new_tokens=5))
        assert [c.tokens for c in actual] == [c.tokens for c in expected]
        assert [c.logprobs for c in actual] == [pytest.approx(c.logprobs, abs=1e-10) for c in expected]


# ---------------------------------------------------------------- keeping
def test_checkpoints_hold_all_adapters(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    forest, one = team_forest(7), make(max_grad_norm=1.0, weight_decay=0.1)
    for seed in range(2):
        one.step(forest, loss_of(forest, seed), names=NAMES)
    save_file(one.tensors(), tmp_path / "learner.safetensors")
    other = make(max_grad_norm=1.0, weight_decay=0.1)
    other.load_tensors(load_file(tmp_path / "learner.safetensors"), one.meta())
    for learner in (one, other):
        learner.step(forest, loss_of(forest, 9), names=NAMES)
    assert one.fingerprint() == other.fingerprint()
    words = {word for name in one.snapshot() for word in name.split(".") if word.startswith("policy_")}
    assert words == {"policy_solver", "policy_verifier"}
    a, b = (parameters_of_policy(p, make().snapshot(), TWO) for p in TWO)
    assert any(not torch.equal(a[n], b[n]) for n in a)  # random numbers of their own
    reordered = make(dict(reversed(TWO.items()))).snapshot()
    assert all(torch.equal(x, reordered[n]) for n, x in make().snapshot().items())


def test_what_can_not_be() -> None:
    with pytest.raises(ConfigError, match=r"set learner\.lora_rank"):
        make(TWO, lora=None)
    with pytest.raises(ConfigError, match="at least one is trained"):
        make({"a": "frozen", "b": "frozen"})
    with pytest.raises(ConfigError, match="'trained' or 'frozen'"):
        make({"a": "trained", "b": "asleep"})
    learner = make()
    with pytest.raises(ModelError, match="policy 'judge'; the learner has solver, verifier"):
        learner.outputs(team_forest(1, ("solver", "judge")))
    for ask in (lambda: learner.hidden(team_forest(1)), lambda: learner.second_learner(lr=0.1)):
        with pytest.raises(ModelError, match="needs a single policy, and there are several"):
            ask()
    with pytest.raises(ModelError, match="no policy 'solver'; the run has main"):
        make(None).acting("solver")


# ---------------------------------------------------------------- runs
KEYS = {
    "rollout.graph": "second_opinion",
    "rollout.group_size": 4,
    "rollout.policy": "per_role",
    "learner.lora_rank": 2,
    "tasks.per_step": 2,
    "sampling.max_new_tokens": 5,
    "eval.tasks": 2,
    "trainer.checkpoint_every": 1,
    "trainer.rollouts_every": 1,
}
SCRIPT = """
import json, os, signal, sys
import gxpo
from gxpo.training.session import Session

turns = 0
def dying(self, requests, sampling=None, sample=Session.sample):
    global turns
    turns += self.step == 3
    if turns == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return sample(self, requests, sampling)
Session.sample = dying
if __name__ == "__main__":
    gxpo.train("tiny:cold", "arithmetic", "dr_mas", 3, sys.argv[1], out=sys.argv[2], set=json.loads(sys.argv[3]))
"""


@pytest.fixture(scope="module")
def parity(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("rewards") / "my_rewards.py"
    path.write_text("def parity(completion):\n    return {'correct': float(sum(map(ord, completion)) % 2)}\n")
    return f"{path}:parity"


def lines(run: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time_", "memory_"))} for row in rows]


def goes_on(whole: Path, run: Path) -> set[str]:
    """That the resumed run is the whole one; gives the names of its adapters."""
    from gxpo.training import checkpoint

    assert [r["step"] for r in lines(run)] == [1, 2]
    gxpo.resume(run)
    assert lines(run) == lines(whole) and len({r["weights_fingerprint"] for r in lines(run)}) == 3
    one, other = (checkpoint.load(checkpoint.latest(path))[0] for path in (whole, run))
    assert one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)
    return {w for name in one for w in re.findall(r"\.(default|policy_\w+)\.", name)}


@pytest.mark.thorough
def test_a_killed_team_run_resumes_with_equal_bits(parity: str, tmp_path: Path) -> None:
    full_path, run = tmp_path / "whole", tmp_path / "run"
    gxpo.train("tiny:cold", "arithmetic", "dr_mas", 3, parity, out=full_path, set=KEYS)
    (tmp_path / "script.py").write_text(SCRIPT)
    arguments = [str(tmp_path / "script.py"), parity, str(run), json.dumps(KEYS)]
    killed = subprocess.run([sys.executable, *arguments], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert goes_on(full_path, run) == {"policy_solver", "policy_verifier"}


@pytest.mark.slow
def test_cells_with_a_frozen_role_go_on_after_a_stop(
    parity: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gxpo.training.session import Session

    def stopped(self: Any, *arguments: Any, sample: Any = Session.sample) -> Any:
        if self.step == 3:
            raise KeyboardInterrupt
        return sample(self, *arguments)

    keys, full_path, run = KEYS | {"rollout.frozen_roles": ["verifier"]}, tmp_path / "whole", tmp_path / "run"
    gxpo.train("tiny:cold", "arithmetic", "at_grpo", 3, parity, out=full_path, set=keys)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Session, "sample", stopped)
        gxpo.train("tiny:cold", "arithmetic", "at_grpo", 3, parity, out=run, set=keys)
    assert goes_on(full_path, run) == {"policy_solver"}


@pytest.mark.slow
def test_an_export_holds_a_model_for_every_policy(parity: str, tmp_path: Path) -> None:
    from gxpo.training import export, models

    run = gxpo.train(
        "tiny:cold",
        "arithmetic",
        "dr_mas",
        2,
        parity,
        out=tmp_path / "run",
        set=KEYS | {"optim.lr": 0.01},
    )
    learner, tokenizer = run.trainer.learner, run.trainer.tokenizer
    prompt, stream = tuple(tokenizer.encode("12+34=")), StreamKey(0, 0, "t", 0)
    sampling = Sampling(max_new_tokens=12)
    directory = export.export(run.path, tmp_path / "models")
    assert {p.name for p in directory.iterdir()} == {"README.md", "solver", "verifier"}
    actual = []
    for policy in TWO:
        model = models.load(str(directory / policy), task="arithmetic").model
        own_torch_engine = TorchEngine(model, tokenizer).sample([Request(prompt, (stream,))], sampling)[0][0]
        live = run.trainer.engine.sample([Request(prompt, (stream,), policy=policy)], sampling)[0][0]
        assert own_torch_engine.tokens == live.tokens and own_torch_engine.logprobs == pytest.approx(
            live.logprobs, abs=1e-4
        )
        actual.append(own_torch_engine.logprobs)
    assert actual[0] != pytest.approx(actual[1], abs=1e-3)
    adapters = export.export(run.path, tmp_path / "adapters", adapter=True)
    assert (adapters / "verifier" / "adapter_model.safetensors").is_file()
    from safetensors.torch import load_file

    live = dict(learner.model.named_parameters())
    for name, x in load_file(adapters / "solver" / "adapter_model.safetensors").items():
        assert torch.equal(x, live[name.replace(".weight", ".policy_solver.weight")]), name

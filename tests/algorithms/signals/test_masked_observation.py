"""A masked observation: what is hidden, that it does not depend on storage or order, what the policy then says."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.learning.llamas import VOCABULARY, clean_llama, random_forest

from gxpo.algorithms.signals import SignalTools
from gxpo.algorithms.signals.masked_observation import MaskedObservation, hidden_tokens, mask_tokens, prefix_keys
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import ACTION, Forest
from gxpo.forest.reshape import flatten
from gxpo.learning.torch import TorchLearner

BLANK = 2
LEARNER = TorchLearner(clean_llama(), lr=0.0)


def tools(step: int = 1, seed: int = 0) -> SignalTools:
    return SignalTools(LEARNER, lambda ids: "", BLANK, step, seed)


def contexts_of(forest: Forest, seed: int, share: float = 0.6) -> dict[tuple[int, ...], bool]:
    """Root path of ids up to every context token -> whether it is hidden; walked token by token."""
    hidden, actual = hidden_tokens(forest, share, seed, 1).tolist(), {}
    for node in range(forest.n_nodes):
        before = forest.context(int(forest.parent[node]))
        for at in range(int(forest.first_token[node]), int(forest.first_token[node + 1])):
            before = [*before, int(forest.token[at])]
            if int(forest.kind[node]) != ACTION:
                assert actual.setdefault(tuple(before), hidden[at]) == hidden[at], "one context, two masks"
            else:
                assert not hidden[at]
    return actual


@settings(max_examples=15)
@given(st.integers(0, 10**6))
def test_equal_contexts_are_masked_alike_however_they_are_stored(seed):
    forest = random_forest(seed)
    actual = contexts_of(forest, seed)
    order = torch.randperm(forest.n_trajectories, generator=torch.Generator().manual_seed(seed))
    for other in (flatten(forest), forest.select(order)):
        again = contexts_of(other, seed)
        assert {k: v for k, v in actual.items() if k in again} == again
    assert not any(v for k, v in actual.items() if len(k) == 1), "the first token of a root path is kept"
    assert all(v for k, v in contexts_of(forest, seed, share=1.0).items() if len(k) > 1)


def many(n: int) -> Forest:
    """Prompts of 21 tokens, all different."""
    return Forest.from_records(
        [
            {"schema": "gxpo.rollouts/1", "group": f"g{i}", "id": f"t{i}", "reward": 1.0}
            | {"prompt": [1, i, *[5] * 19], "turns": [{"action": [7, 8], "logprob": [-1.0, -1.0]}]}
            for i in range(n)
        ]
    )


def test_share_and_that_steps_seeds_and_contexts_differ():
    forest = many(200)
    context = (forest.kind != ACTION)[forest.token_node]
    draws = [hidden_tokens(forest, 0.6, seed, step)[context] for seed, step in ((0, 1), (0, 2), (1, 1))]
    for hidden in draws:  # 200 * 20 of 200 * 21 tokens may be hidden; 4 standard errors
        assert float(hidden.sum()) / 4000 == pytest.approx(0.6, abs=4 * (0.24 / 4000) ** 0.5)
        assert float(hidden.view(200, 21)[:, 2:].float().mean(0).std()) < 0.08  # no position is favoured
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert float((draws[a] == draws[b]).float().mean()) == pytest.approx(0.52 * 20 / 21 + 1 / 21, abs=0.04)
    rows = draws[0].view(200, 21)[:, 1:]
    assert len({tuple(row.tolist()) for row in rows}) == 200
    assert torch.equal(hidden_tokens(forest, 0.6, 0, 1), hidden_tokens(forest, 0.6, 0, 1))
    keys = prefix_keys(forest, 0, 1)
    assert len(set(keys[context].tolist())) >= 199 * 20 and int(keys.min()) >= 0 and int(keys.max()) < 2**32


def test_what_stands_in_the_place():
    forest = many(50)
    hidden = hidden_tokens(forest, 0.5, 3, 1)
    blank = mask_tokens(forest, hidden, "blank", BLANK, 3, 1)
    assert bool((blank.token[hidden] == BLANK).all()) and torch.equal(blank.token[~hidden], forest.token[~hidden])
    drawn_mask_tokens = mask_tokens(forest, hidden, "random", BLANK, 3, 1)
    output = {int(t) for t in forest.token[(forest.kind != ACTION)[forest.token_node]]}
    ids = drawn_mask_tokens.token[hidden].tolist()
    assert torch.equal(drawn_mask_tokens.token[~hidden], forest.token[~hidden]) and set(ids) <= output
    assert len(set(ids)) > 0.9 * len(output)  # each as often as any other, however often it is shown
    assert not torch.equal(drawn_mask_tokens.token, mask_tokens(forest, hidden, "random", BLANK, 3, 2).token)


def test_the_signal_is_what_the_policy_says_of_the_masked_text():
    """The same log-probs as of rollouts that had the masked prompts from the beginning."""
    record = {"schema": "gxpo.rollouts/1", "group": "a", "id": "t", "reward": 1.0, "prompt": [3, 4, 5, 6]}
    turns = [{"action": [7, 8], "logprob": [-1.0, -1.0]}, {"observation": [9, 10, 11], "action": [12, 13]}]
    forest = Forest.from_records([record | {"turns": turns}])
    part = MaskedObservation(share=1.0)
    actual = part.compute(forest, {}, tools())["masked_logprob"]
    blanked = [turns[0], turns[1] | {"observation": [BLANK] * 3}]
    other = Forest.from_records([record | {"prompt": [3, BLANK, BLANK, BLANK], "turns": blanked}])
    torch.testing.assert_close(actual, LEARNER.outputs(other)["logprob"], rtol=1e-12, atol=0)
    plain = LEARNER.outputs(forest)["logprob"]
    assert not actual.requires_grad and bool((actual - plain).abs().max() > 0.01)
    signals = {"masked_logprob": actual, "proximal_logprob": plain}
    d = (actual - plain).tolist()
    expected = sum(torch.tensor(v).exp().item() - 1 - v for v in d) / len(d)
    assert part.learn(forest, signals, tools())["masked_kl"] == pytest.approx(expected, rel=1e-5)


def test_ids_stay_in_the_vocabulary_and_nothing_else_changes():
    forest = random_forest(5)
    for fill in ("blank", "random"):
        part = MaskedObservation(fill=fill)
        before = forest.token.clone()
        actual = part.compute(forest, {}, tools(step=4))["masked_logprob"]
        assert actual.shape == (forest.n_entries,) and bool(actual.isfinite().all())
        assert torch.equal(forest.token, before) and int(before.max()) < VOCABULARY
        assert torch.equal(actual, part.compute(forest, {}, tools(step=4))["masked_logprob"])
        assert not torch.equal(actual, part.compute(forest, {}, tools(step=5))["masked_logprob"])


def test_settings():
    assert MaskedObservation.provides == ("masked_logprob",) and MaskedObservation().share == 0.6
    for wrong in ({"share": 0.0}, {"share": 1.5}, {"fill": "noise"}):
        with pytest.raises(ConfigError, match=r"masked_observation\.(share|fill) is"):
            MaskedObservation(**wrong)  # type: ignore[arg-type]

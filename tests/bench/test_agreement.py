"""The comparison with TRL, without TRL: its part is played by a loop over rows that are written out in full."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from gxpo.bench import agreement
from gxpo.bench.agreement import Settings, Step

PAD = 0


def rollouts(seed):
    """Two prompts of different lengths, padded on the left, three samples each, of different lengths."""
    draw = torch.Generator().manual_seed(seed)
    prompts = [[5, 6, 7], [8, 9, 10, 11, 12]]
    step = Step(torch.tensor([1.0, 0.0, 0.5, 0.25, 0.0, 0.0], dtype=torch.float64), ["a"] * 3 + ["b"] * 3)
    rows = [(prompts[i // 3], torch.randint(4, 30, (length,), generator=draw).tolist())
            for i, length in enumerate((4, 1, 3, 2, 4, 4))]  # fmt: skip
    step.batch = {
        "prompt_ids": torch.tensor([[PAD] * (5 - len(p)) + p for p, _ in rows]),
        "prompt_mask": torch.tensor([[0] * (5 - len(p)) + [1] * len(p) for p, _ in rows]),
        "completion_ids": torch.tensor([c + [PAD] * (4 - len(c)) for _, c in rows]),
        "completion_mask": torch.tensor([[1] * len(c) + [0] * (4 - len(c)) for _, c in rows]),
    }
    return step, rows


def dapo(model, rows, rewards, old):
    """(loss, log-probs by row): per row, per token; advantages with the sample's std + 1e-4; mean over all tokens."""
    total, count, seen_logprobs = 0.0, 0, []
    for i, (prompt, action) in enumerate(rows):
        group = rewards[i // 3 * 3 : i // 3 * 3 + 3]
        advantage = (rewards[i] - group.mean()) / (group.std() + 1e-4)
        logits = model(torch.tensor([[*prompt, *action]])).logits[0, len(prompt) - 1 : -1]
        logprob = logits.log_softmax(-1)[range(len(action)), action]
        ratio = (logprob - (logprob.detach() if old is None else old[i])).exp()
        total = total - torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).sum()
        count += len(action)
        seen_logprobs.append(logprob.detach())
    return total / count, seen_logprobs


def trained_by_hand(path, settings, scale=1.0):
    """The steps and last parameters of a loop with torch's own AdamW."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    adamw = torch.optim.AdamW(model.parameters(), lr=settings.lr, weight_decay=0.0)
    steps = []
    for seed in range(2):
        step, rows = rollouts(seed)
        old = None
        for _ in range(settings.epochs):
            loss, logprobs = dapo(model, rows, step.rewards, old)
            old = logprobs if old is None else old
            adamw.zero_grad()
            (scale * loss).backward()
            step.losses.append(float(loss.detach()))
            step.gradients.append({n: p.grad.clone() for n, p in model.named_parameters()})
            torch.nn.utils.clip_grad_norm_(model.parameters(), agreement.MAX_GRAD_NORM)
            adamw.step()
        steps.append(step)
    return steps, {n: p.detach().clone() for n, p in model.named_parameters()}


@pytest.mark.slow
@pytest.mark.parametrize("settings", [Settings(True, 8), Settings(True, 8, epochs=2, lr=1e-3)])
def test_the_same_steps_written_as_a_loop_agree(folder, settings):
    path = str(folder / "tiny")
    rows = agreement._compare_steps(path, settings, *trained_by_hand(path, settings))
    assert [row["name"] for row in rows] == [f"step{i + 1}" for i in range(2 * settings.epochs)] + ["parameters"]
    assert all(row["agrees"] and row["difference"] < agreement.TOLERANCE for row in rows), rows
    assert [row["tokens"] for row in rows[:-1]] == [18] * 2 * settings.epochs
    assert rows[0]["norm_trl"] > agreement.MAX_GRAD_NORM, "clipping is part of what is compared"


def test_a_gradient_that_is_a_thousandth_larger_does_not_agree(folder):
    path, settings = str(folder / "tiny"), Settings(True, 8)
    first, *_ = agreement._compare_steps(path, settings, *trained_by_hand(path, settings, scale=1.001))
    assert not first["agrees"] and first["difference"] == pytest.approx(1e-3, rel=0.01)
    assert first["ratio"] == pytest.approx(1 / 1.001, rel=1e-4) and first["loss_difference"] < agreement.TOLERANCE


def test_cases_are_the_micro_batches_with_and_without_early_ends():
    assert {(s.ragged, s.micro_batch) for s in agreement.CASES.values() if s.epochs == 1} == {
        (ragged, size) for ragged in (True, False) for size in (4, 8)
    }

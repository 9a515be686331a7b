"""A generator of pictures' tokens learns to draw digits that can be read: python examples/picture_tokens.py [SEED...]

A digit of 8 x 8 pixels is 16 tokens, each one of 32 patches of 2 x 2 pixels (k-means), written one after the other
behind the number of the digit. `generator` trains a small masked model to do so on scikit-learn's digits; `ar_grpo`
then trains it with guidance, by the probability that a logistic regression on real digits gives to the number asked
for. Writes runs/picture_tokens/seed-S, with digits.png: samples before and after. Needs `gxpo[train,diffusers]`.
"""

import argparse
import functools
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import gxpo
from gxpo.algorithms.likelihoods.base import Answer, Likelihood
from gxpo.base.picture_files import png
from gxpo.models.masked import MaskedPolicy, Row, estimate
from gxpo.models.tiny import MASK, character_tokenizer, tiny_masked_model

CODES = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef"  # from the darkest patch to the brightest
PATCHES, ROOM = 16, 17  # of a picture; with the end
FOLDER = Path("runs/picture_tokens")


# ---------------------------------------------------------------- pictures and their tokens
def patches(pictures: np.ndarray) -> np.ndarray:
    """Patches [n, 16, 4] of pictures [n, 8, 8], row by row."""
    return pictures.reshape(-1, 4, 2, 4, 2).transpose(0, 1, 3, 2, 4).reshape(-1, PATCHES, 4)


@functools.cache
def codebook() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Patches [32, 4] of the codes in [0, 1], and the codes [n, 16] and numbers [n] of the digits that there are."""
    pictures, numbers = load_digits(return_X_y=True)
    of_digits = patches(pictures.reshape(-1, 8, 8) / 16)
    means = KMeans(len(CODES), random_state=0, n_init=1).fit(of_digits.reshape(-1, 4)).cluster_centers_
    means = means[means.mean(1).argsort()]
    distance = np.square(of_digits[:, :, None] - means).sum(-1)
    return means, distance.argmin(-1), numbers


def picture(text: str) -> np.ndarray | None:
    """Pixels [8, 8] in [0, 1] of a text of codes; None for any other text."""
    if len(text) != PATCHES or not set(text) <= set(CODES):
        return None
    of_text = codebook()[0][[CODES.index(x) for x in text]]
    return of_text.reshape(4, 4, 2, 2).transpose(0, 2, 1, 3).reshape(8, 8)


@functools.cache
def reader() -> LogisticRegression:
    """Reads the number of a digit from its pixels, as they are after coding."""
    _, codes, numbers = codebook()
    pixels = [picture("".join(CODES[x] for x in row)).ravel() for row in codes]
    return LogisticRegression(C=1.0, max_iter=500).fit(pixels, numbers)


def legible(prompt: str, completion: str) -> float:
    """Probability of the number asked for, as the reader sees the picture; 0 for what is no picture."""
    pixels = picture(completion)
    return 0.0 if pixels is None else float(reader().predict_proba(pixels.reshape(1, -1))[0, int(prompt)])


# ---------------------------------------------------------------- the generator
@dataclass(frozen=True)
class LeftToRight(Likelihood):
    """State of an answer that is written from left to right: from a random token on all is hidden, and read."""

    def views(self, answer: Answer) -> tuple[torch.Tensor, torch.Tensor]:
        random = answer.random()
        hidden = np.arange(-answer.prompt, answer.length) >= random.integers(answer.length)
        if random.random() < 0.1:  # sometimes without its prompt, for guidance
            hidden[: answer.prompt] = True
        return torch.from_numpy(hidden[None]), torch.from_numpy(hidden[None, answer.prompt :].astype(np.float64))


def generator(steps: int = 500, batch: int = 96) -> Path:
    """Directory of a masked model that writes digits from left to right; made once."""
    folder, tokenizer, model = FOLDER / "generator", character_tokenizer(MASK), tiny_masked_model()
    if folder.is_dir():
        return folder
    policy, random = MaskedPolicy.of(model, tokenizer), np.random.default_rng(0)
    _, codes, numbers = codebook()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, step / 20) * (1 - step / steps)
        rows = []
        for i in random.integers(len(codes), size=batch):
            answer = [*tokenizer.convert_tokens_to_ids([CODES[x] for x in codes[i]]), policy.end]
            prompt = tokenizer(str(numbers[i])).input_ids
            rows.append(Row(prompt, answer, ROOM, torch.zeros(ROOM), int(random.integers(1 << 62))))
        # the mean over the tokens that are hidden, whose share is half on average
        loss = -2 * estimate(policy, rows, LeftToRight())["logprob"].mean().float()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


# ---------------------------------------------------------------- training, and what came of it
def run(seed: int, steps: int = 40) -> Path:
    """Train one seed; its run directory."""
    out = FOLDER / f"seed-{seed}"
    gxpo.train(
        str(generator()), [{"prompt": str(x)} for x in range(10)], "ar_grpo", steps, f"{__file__}:legible",
        eval_task=[{"prompt": str(x)} for x in range(10)], seed=seed, out=out,
        set={
            "tasks.per_step": 10, "rollout.group_size": 8, "sampling.max_new_tokens": ROOM, "optim.lr": 3e-4,
            "eval.every": steps, "eval.samples": 16, "eval.temperature": 1.0, "trainer.rollouts_every": 1,
        },
    )  # fmt: skip
    return out


def samples(file: Path) -> dict[str, list[str]]:
    """Texts of a file of rollouts, by prompt."""
    by_prompt: dict[str, list[str]] = {str(x): [] for x in range(10)}
    for line in file.read_text(encoding="utf-8").splitlines():
        turn = json.loads(line)["turns"][0]
        by_prompt[turn["observation_text"].strip()].append(turn["action_text"])
    return by_prompt


def sheet(run: Path, shown: int = 4, scale: int = 5) -> np.ndarray:
    """Pixels [H, W, 3] of samples of each digit: the first rollouts above, the last below, what is no picture grey."""
    files, halves = sorted((run / "rollouts").glob("step-*.jsonl")), []
    for file in (files[0], files[-1]):
        columns = []
        for texts in samples(file).values():
            tiles = [np.full((8, 8), 0.5) if (x := picture(text)) is None else x for text in texts[:shown]]
            columns.append(np.concatenate([np.pad(x, 1, constant_values=0.3) for x in tiles]))
        halves.append(np.pad(np.concatenate(columns, 1), ((0, 2), (0, 0)), constant_values=1.0))
    grey = (np.concatenate(halves) * 255).clip(0, 255).astype(np.uint8).repeat(scale, 0).repeat(scale, 1)
    return np.ascontiguousarray(grey[:, :, None].repeat(3, 2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    for number in arguments.seeds:
        directory = run(number, arguments.steps)
        evaluations = [json.loads(x) for x in (directory / "evaluations.jsonl").read_text().splitlines()]
        (directory / "digits.png").write_bytes(png(sheet(directory)))
        print(json.dumps({"seed": number, "before": evaluations[0], "after": evaluations[-1]}), flush=True)

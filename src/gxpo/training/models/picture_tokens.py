"""Warm start of the generator of pictures' tokens: `model: tokens:digits`, a small Llama on scikit-learn's digits."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gxpo.models.picture_tokens
import gxpo.models.tiny
from gxpo.base.errors import ModelError, need
from gxpo.models.cache import cache_directory, code_of, put
from gxpo.models.picture_tokens import Codebook, patches_of

NAME = "tokens:digits"
PATCH, CODES, CLASSES = 2, 64, 10
RECIPE: dict[str, Any] = {"batch": 64, "steps": 500, "lr": 3e-3, "unconditional": 0.1, "noise": 0.15}
DIMENSIONS: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 256,
    "max_position_embeddings": 128,
    "rope_parameters": {"rope_type": "default", "rope_theta": 30.0},  # a picture has 17 places, which it has to count
}


def is_own(name: str) -> bool:
    """Return True for the name of the generator; ModelError for another name of this kind."""
    if name.startswith("tokens:") and name != NAME:
        raise ModelError(
            f"unknown model {name!r}: there is {NAME}; one that you have exported is named by its directory"
        )
    return name == NAME


def directory(cache: str | os.PathLike[str] | None = None, notify: Callable[[str], None] = lambda line: None) -> Path:
    """Directory of the generator, in transformers' format; made on the first call, then cached."""
    import torch

    sklearn, transformers = need("sklearn", "diffusers"), need("transformers", "train")
    digest = hashlib.blake2b(json.dumps([RECIPE, DIMENSIONS]).encode(), digest_size=6)
    for library in (torch, transformers, sklearn):
        digest.update(str(library.__version__).encode())
    for file in (__file__, gxpo.models.picture_tokens.__file__, gxpo.models.tiny.__file__):
        digest.update(code_of(Path(str(file))))
    target = cache_directory(cache) / f"tokens-digits-{digest.hexdigest()}"
    if not target.is_dir():
        notify("likelihood training of a small generator of picture tokens on digits (once, then cached)")
        codebook, model = warm_up()

        def fill(folder: Path) -> None:
            model.save_pretrained(folder)
            codebook.tokenizer().save_pretrained(folder)

        put(target, fill)
    return target


def words() -> Any:
    """Its tokenizer with black patches, where nothing is drawn and the model may not have been made."""
    return Codebook(np.zeros((CODES, PATCH, PATCH), np.uint8), 8 // PATCH, CLASSES).tokenizer()


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Pictures [n, 8, 8] uint8 of 17 grey levels, and their classes [n]."""
    pixels, classes = need("sklearn.datasets", "diffusers").load_digits(return_X_y=True)
    return np.round(pixels.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8), classes


def codebook_of_digits(seed: int = 0) -> Codebook:
    """Codebook of their patches by k-means, from dark to bright."""
    flat = patches_of(digits()[0], PATCH).reshape(-1, PATCH**2)
    kmeans = need("sklearn.cluster", "diffusers").KMeans(CODES, n_init=1, random_state=seed).fit(flat)
    centres = np.round(kmeans.cluster_centers_[kmeans.cluster_centers_.sum(1).argsort()]).astype(np.uint8)
    return Codebook(centres.reshape(-1, PATCH, PATCH), 8 // PATCH, CLASSES)


def warm_up(seed: int = 0) -> tuple[Codebook, Any]:
    """Train a generator by likelihood of tokens behind a class; in a share of the examples none is named."""
    import torch

    codebook, (pixels, classes) = codebook_of_digits(), digits()
    model = gxpo.models.tiny.tiny_model(
        seed, **DIMENSIONS, vocab_size=codebook.end + 1, pad_token_id=codebook.end, bos_token_id=None,
        eos_token_id=codebook.end,
    )  # fmt: skip
    ids, n = codebook.encode(pixels), RECIPE["batch"]
    ends = np.full((len(ids), 1), codebook.end)
    rows_of_digits = torch.tensor(np.concatenate([classes[:, None] + CODES, ids, ends], 1))
    optimizer, random = torch.optim.AdamW(model.parameters(), lr=RECIPE["lr"]), torch.Generator().manual_seed(seed)
    for step in range(RECIPE["steps"]):
        for group in optimizer.param_groups:
            group["lr"] = RECIPE["lr"] * min(1.0, step / 20) * (1 - step / RECIPE["steps"])
        rows = rows_of_digits[torch.randint(len(ids), (n,), generator=random)]
        dropped = torch.rand(n, generator=random) < RECIPE["unconditional"]
        rows[:, 0] = rows[:, 0].masked_fill(dropped, codebook.none)
        # other patches in the place of some that are read: places are counted, not told by what was drawn before them
        inputs, others = rows[:, :-1], torch.randint(CODES, (n, rows.shape[1] - 1), generator=random)
        is_other = torch.rand(inputs.shape, generator=random) < RECIPE["noise"]
        is_other[:, 0] = False
        logits = model(input_ids=torch.where(is_other, others, inputs)).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return codebook, model.eval()

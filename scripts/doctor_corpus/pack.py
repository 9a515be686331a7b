"""Pack the corpus for the repository: a run becomes tests/doctor/corpus/HALF/NAME.tar.xz, all truths one truth.json.

    python scripts/doctor_corpus/pack.py --half build        # from corpus/{trl,gxpo,verl}/truth.json

Metrics and consoles are whole; of rollout files (one a step) twelve are kept: the first and last three, others evenly.
Weights, optimisers and pickles stay behind. The archives are the same bytes for the same files.
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import re
import tarfile
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parents[2] / "tests" / "doctor" / "corpus"
TEXTS = {".json", ".jsonl", ".txt", ".log", ".yaml", ".yml", ".csv", ".md"}
PICKLES = {".bin", ".pt", ".pth", ".safetensors", ".pkl", ".ckpt"}
# files of a checkpoint that say nothing of the run
CHECKPOINT = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "README.md"}
ROLLOUTS = 12
LARGE = 45_000  # bytes of an archive above which half as many rollout files are kept


def choose(files: list[Path], keep: int = ROLLOUTS) -> list[Path]:
    """Choose `keep` of the files of a directory: the first and last three and others evenly between."""
    if len(files) <= keep:
        return files
    ends, inner = files[:3] + files[-3:], files[3:-3]
    n = keep - len(ends)
    return sorted({*ends, *(inner[round((i + 0.5) * len(inner) / n - 0.5)] for i in range(n))}, key=files.index)


def members(run: Path, keep: int = ROLLOUTS) -> list[Path]:
    """List the files of a run that are packed."""
    out: list[Path] = []
    series: dict[tuple[Path, str], list[Path]] = {}
    for path in sorted(run.rglob("*")):
        if not path.is_file() or path.suffix in PICKLES or path.name in CHECKPOINT:
            continue
        stem = re.sub(r"\d+", "#", path.name)
        if path.suffix == ".parquet" or (path.suffix == ".jsonl" and re.fullmatch(r"(step-)?\d+", path.stem)):
            series.setdefault((path.parent, stem), []).append(path)
        elif path.suffix in TEXTS or path.name.startswith("events.out.tfevents"):
            out.append(path)
    for files in series.values():
        files.sort(key=lambda p: int(re.findall(r"\d+", p.name)[-1]))
        out += choose(files, keep)
    return sorted(out)


def parquet(path: Path) -> bytes:
    """Return the same table without the writer's metadata, uncompressed: xz does better over all files together."""
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path)
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(
        table.replace_schema_metadata(None), buffer, compression="none", use_dictionary=True, write_statistics=False
    )
    return buffer.getvalue()


def pack(run: Path, target: Path, keep: int = ROLLOUTS) -> int:
    """Write the archive; return its size in bytes."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in members(run, keep):
            data = parquet(path) if path.suffix == ".parquet" else path.read_bytes()
            info = tarfile.TarInfo(str(path.relative_to(run)))
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(lzma.compress(raw.getvalue(), preset=9 | lzma.PRESET_EXTREME))
    return target.stat().st_size


def unpack(archive: Path, target: Path) -> Path:
    with tarfile.open(archive, "r:xz") as tar:
        tar.extractall(target, filter="data")
    return target


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--corpus", type=Path, default=Path("corpus"))
    ap.add_argument("--half", choices=["build", "held"])
    ap.add_argument("--trainer", nargs="*", default=["trl", "gxpo", "verl"])
    ap.add_argument("--keep", type=int, default=ROLLOUTS, help="rollout files a run")
    a = ap.parse_args()
    path = HOME / "truth.json"
    truth: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for trainer in a.trainer:
        source = a.corpus / trainer / "truth.json"
        entries = json.loads(source.read_text()) if source.exists() else {}
        for name, entry in sorted(entries.items()):
            if a.half and entry["half"] != a.half:
                continue
            truth[name] = entry
            run, target = a.corpus / trainer / entry["directory"], HOME / entry["half"] / f"{name}.tar.xz"
            size = pack(run, target, a.keep)
            if size > LARGE:
                size = pack(run, target, a.keep // 2)
            print(f"{name} {entry['half']} {size / 1000:.1f} kB", flush=True)
        for name in [n for n, e in truth.items() if n.startswith(trainer) and entries and n not in entries]:
            (HOME / truth.pop(name)["half"] / f"{name}.tar.xz").unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(dict(sorted(truth.items())), indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Find the files of a run and read each into a `Table`, by the reader that fits its content."""

from __future__ import annotations

import codecs
import itertools
import json
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from gxpo.base.errors import MissingExtra, need
from gxpo.doctor.readers import configs, console, delimited, keys, pages, rows, stores
from gxpo.doctor.readers.table import Table, flat

MOST_FILES = 20_000
SKIPPED_DIRS = {"node_modules", "__pycache__", "site-packages", "venv"}
HIDDEN_DIRS_READ = {".hydra"}
# Weights, archives, pictures, programs: not opened at all. What is pickled could run code.
PICKLED = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".distcp")
SKIPPED = (
    *PICKLED,
    *(".safetensors", ".gguf", ".onnx", ".npz", ".npy", ".h5", ".msgpack", ".model"),
    *(".zip", ".tar", ".gz", ".bz2", ".xz", ".zst", ".whl"),
    *(".png", ".jpg", ".jpeg", ".gif", ".svg", ".webp", ".pdf", ".html", ".htm", ".ipynb", ".css", ".js", ".woff2"),
    *(".py", ".pyc", ".so", ".c", ".h", ".cpp", ".cu", ".lock"),
    *("tokenizer.json", "vocab.json", "merges.txt", "vocab.txt", ".index.json"),
    "ledger.jsonl",  # of gxpo's asynchronous runs: groups, no figures
)
_HEAD = 65_536
LARGEST = 500_000_000  # bytes read of one file; of a larger one its two ends
LONGEST = 4_000_000  # characters of a line; the rest of a longer one is left out
_CHUNK = 1 << 20
_EVENTS = b"brain.Event:"  # in the first record of every event file of TensorBoard
_COLUMNS = re.compile(r"^[ \t]*(?:global_)?(?:step|iter\w{0,6})s?[ \t]+[A-Za-z]", re.I | re.M)  # a head between blanks
# A line of metrics of a console: a small table beside it is none of the run's own.
_SCRIPT = re.compile(r"\bstep:\d+ - |\{'(?:loss|reward)': ")
LEAST_ROWS = 3  # of a table that no trainer is known to write


VERIFIED = "verify.json"  # what `gxpo verify` wrote: no figures of the training


def candidates(root: Path) -> tuple[list[Path], list[str]]:
    """List the files to try, by name, with notes on those that were left out."""
    if not root.is_dir():
        return [root], []
    files: list[Path] = []
    pickled: list[str] = []
    for folder, dirs, names in os.walk(root):
        dirs[:] = sorted(d for d in dirs if d not in SKIPPED_DIRS and (d[:1] != "." or d in HIDDEN_DIRS_READ))
        # a folder of figures with one file for each key is one table
        if stores.METRICS in dirs and stores.is_mlflow_run(Path(folder)):
            files.append(Path(folder, stores.METRICS))
            dirs[:] = [d for d in dirs if d not in (stores.METRICS, "params", "tags")]
            names = [name for name in names if name != "meta.yaml"]
        for name in sorted(names):
            path = Path(folder, name)
            if name.lower().endswith(PICKLED):
                pickled.append(path.relative_to(root).as_posix())
            elif not name.lower().endswith(SKIPPED) and name[:1] != "." and name != VERIFIED and path.is_file():
                files.append(path)
    notes = []
    if pickled:
        names_shown = ", ".join(pickled[:5]) + ", ..." * (len(pickled) > 5)
        notes.append(f"not opened, as unpickling could run code: {names_shown}")
    if len(files) > MOST_FILES:
        notes.append(f"{len(files):,} files: only the first {MOST_FILES:,} were tried")
    return files[:MOST_FILES], notes


def read_file(path: Path, run: str | None = None) -> Table | None:
    """Read a file into a table; None for a dump of rollouts and for unknown content.

    run  name of the run to read, of a file that holds several
    """
    try:
        if path.is_dir():
            return stores.read_mlflow_run(path)
        with path.open("rb") as stream:
            head = stream.read(_HEAD)
        if head.startswith(stores.MAGIC):
            return stores.read_sqlite(path, run)
        if _EVENTS in head[:64]:
            return _read_events(path)
        code = _encoding(head)
        if (code != "utf-16" and b"\0" in head[:4096]) or not head.strip():
            return None
        start = head.decode(code, errors="replace").lstrip("\ufeff \t\r\n")
        if path.name.lower().endswith(pages.SUFFIXES) or start[:200].lower().startswith(pages.OPENINGS):
            return pages.read(_text_of(path), path.name, run)
        return _read_text(path, start, run)
    except OSError as error:
        return Table("config", notes=[f"can't be read: {error.strerror}"])


def _read_text(path: Path, start: str, run: str | None) -> Table | None:
    """Read a text file as JSON, a delimited table, a console or a configuration: the first that has figures.

    A table of figures that no trainer is known to write is returned where nothing else fits.
    """
    notes: list[str] = []
    size = path.stat().st_size
    table: Table | None = None
    unknown_table: Table | None = None
    if start[:1] in ("{", "["):
        first, later_lines, _ = start.partition("\n")
        if not later_lines:  # the line is longer than the head
            first = next((line for line in _lines(path, []) if line.strip()), "").strip("\ufeff \t")
        # a dump of rollouts is read by `rollout_files`, as far as the sample needs
        if rows.is_dump(first):
            return None
        if len(first) > 2 and first[0] == "{":
            table = rows.from_lines(_lines(path, notes))
        if table is None:
            table = rows.from_text(_text_of(path))
        if table is not None and table.kind == "config":
            return configs.from_settings(table.settings)
        if table is not None and (not table.rows or _has_figures(table)):
            table.notes += notes
            return table
        unknown_table, table = table, None
    # a line of a dict is no header
    plain = "\n".join(line for line in start.split("\n") if "{" not in line)
    if size <= 50_000_000 and (any(m in plain for m in ("\t", ",", "|", ";", "\u2502")) or _COLUMNS.search(plain)):
        table = delimited.from_delimited(_text_of(path), path.name, run)
        if table is not None and table.rows and table.is_known and not _SCRIPT.search(_text_of(path)):
            return table
        unknown_table = unknown_table or table
    small, notes = table if table is not None and table.is_known else None, []
    # whatever else it is, a text may be a console's; a configuration has no figures
    table = console.read(_chunks(path, notes))
    table.notes += notes
    if small is not None and len(small.rows) >= len(table.rows) * table.is_known:
        return small
    if table.rows and not table.is_known:
        unknown_table = unknown_table or table
    elif table.rows or table.messages or (table.settings and configs.trainer(table.settings)):
        return table
    configuration = configs.from_text(_text_of(path)) if size <= configs.LARGEST else None
    if configuration is None and unknown_table is None and size <= configs.LARGEST:
        return delimited.pairs_alone(_text_of(path).splitlines())
    if configuration is not None or unknown_table is None or len(unknown_table.rows) < LEAST_ROWS:
        return configuration
    unknown_table.is_known = False
    return unknown_table


def _has_figures(table: Table) -> bool:
    """True if any of the first rows has a metric of training."""
    return any(keys.is_metric(key) for _, row in itertools.islice(table.rows, 200) for key in row)


def _read_events(path: Path) -> Table:
    """Read TensorBoard's scalars by step; a record that is cut short ends the file, a malformed one is counted."""
    try:
        event_pb2 = need("tensorboard.compat.proto.event_pb2", "tensorboard")
    except MissingExtra as error:
        return Table("events", notes=[str(error)])
    row_by_step: dict[int, dict[str, float]] = {}
    table = Table("events")
    with path.open("rb") as stream:
        # length, its checksum, the record, its checksum: tensorflow's record_writer.h
        while head := stream.read(12):
            size = struct.unpack("<Q", head[:8])[0] if len(head) == 12 else 0
            data = stream.read(size + 4) if 0 < size < 1 << 30 else b""
            if len(data) < size + 4 or not data:
                table.is_torn = True
                break
            event = event_pb2.Event()
            try:
                event.ParseFromString(data[:-4])
            except Exception:  # DecodeError is of whichever protobuf there is
                table.n_unreadable += 1
                continue
            for value in event.summary.value:
                if value.tag == "args/text_summary" and value.tensor.string_val:
                    table.settings = _arguments(value.tensor.string_val[0])
                figure = _scalar(value)
                if figure is not None:
                    row_by_step.setdefault(event.step, {})[value.tag] = figure
    table.rows = [(float(step), row) for step, row in row_by_step.items()]
    if any("rollouts/zero_signal_groups" in row or "update/weights_fingerprint" in row for row in row_by_step.values()):
        # gxpo's own files: names behind the word that TensorBoard groups them by
        table.rows = [(step, {key.partition("/")[2]: v for key, v in row.items()}) for step, row in table.rows]
    elif any("zero/signal_groups" in row or "weights/crc" in row for row in row_by_step.values()):
        # gxpo's of before: the first underline is a stroke there
        table.rows = [(step, {key.replace("/", "_", 1): v for key, v in row.items()}) for step, row in table.rows]
    return table


def _arguments(data: bytes) -> dict[str, Any]:
    """Parse the arguments of training that transformers' `TensorBoardCallback` writes as a text."""
    try:
        return flat(json.loads(data))
    except (ValueError, RecursionError):
        return {}


def _scalar(value: Any) -> float | None:
    """Number of a TensorBoard value, in any of its three forms; None if it is none."""
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return float(value.simple_value)
    if kind == "tensor" and not value.tensor.tensor_shape.dim:
        if value.tensor.float_val:
            return float(value.tensor.float_val[0])
        if value.tensor.double_val:
            return float(value.tensor.double_val[0])
        if value.tensor.dtype == 1 and len(value.tensor.tensor_content) == 4:
            return struct.unpack("<f", value.tensor.tensor_content)[0]
    return None


def _encoding(head: bytes) -> str:
    """Encoding of a file by its first bytes; PowerShell's `>` writes UTF-16."""
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    return "utf-8-sig"


def _text_of(path: Path) -> str:
    """Read a file's text, at most `LARGEST` bytes of it."""
    with path.open("rb") as stream:
        data = stream.read(LARGEST)
    return data.decode(_encoding(data[:2]), errors="replace")


def _chunks(path: Path, notes: list[str]) -> Iterator[str]:
    """Read a text in pieces of whole lines; carriage returns of progress bars end lines, too."""
    with path.open("rb") as raw:
        head = raw.read(2)
        size = raw.seek(0, 2)
        raw.seek(0)
        if size <= LARGEST:
            yield from _decode_lines(raw, _encoding(head), None)
            return
        half = LARGEST // 2
        notes.append(f"larger than {LARGEST:,} bytes: only the first and the last {half:,} were read")
        yield from _decode_lines(raw, _encoding(head), half)
        raw.seek(size - half - half % 2)
        yield from _decode_lines(raw, _encoding(head).replace("utf-16", "utf-16-le"), None)


def _lines(path: Path, notes: list[str]) -> Iterator[str]:
    """Read the lines of a file, without their ends."""
    for chunk in _chunks(path, notes):
        yield from chunk.split("\n")[:-1]


def _decode_lines(raw: IO[bytes], code: str, limit: int | None) -> Iterator[str]:
    """Decode up to `limit` bytes of a stream, cut at ends of lines."""
    decoder = codecs.getincrementaldecoder(code)(errors="replace")
    tail, read = "", 0
    while limit is None or read < limit:
        data = raw.read(_CHUNK if limit is None else min(_CHUNK, limit - read))
        read += len(data)
        text = tail + decoder.decode(data, final=not data)
        if "\r" in text:
            # at the end of a piece it may be half of a line's end
            carriage = "\r" if text[-1] == "\r" and data else ""
            text = text[: len(text) - len(carriage)].replace("\r\n", "\n").replace("\r", "\n") + carriage
        end = text.rfind("\n") + 1
        tail = text[end:]
        if end:
            yield text[:end]
        if len(tail) > LONGEST:
            tail = tail[:LONGEST]
        if not data:
            break
    if tail:
        yield tail + "\n"


def dump_source(path: Path) -> str:
    """Name the trainer that wrote a dump of rollouts, by its first row."""
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD)
    except OSError:
        return "unknown"
    if head[:4] == b"PAR1":
        return "trl"
    if b"gxpo.sampling.rollouts" in head[:200]:
        return "gxpo"
    # ms-swift, which has TRL's settings, writes a line of columns for each step
    if all(f'"{key}": ['.encode() in head for key in ("step", "prompt")) and b'"completion"' in head:
        return "ms-swift"
    return "verl" if all(f'"{key}":'.encode() in head for key in ("input", "output", "gts", "score")) else "unknown"

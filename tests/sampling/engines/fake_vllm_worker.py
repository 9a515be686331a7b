"""A worker that does one thing wrong: `fake_vllm_worker.py WORKER FAULT SCORES LINE PARENT`.

It needs the standard library alone. WORKER is the real program, whose messages it speaks; SCORES (JSON) is what it
answers to `score`.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from multiprocessing.connection import Connection


def words(raw: bytes) -> int:
    """A tensor's checksum, computed in another way."""
    full_count = len(raw) // 8 * 8
    actual = sum(int.from_bytes(raw[i : i + 8], "little") for i in range(0, full_count, 8)) + sum(raw[full_count:])
    return actual % (1 << 64)


def main() -> None:
    worker, fault, scores = sys.argv[1:4]
    codes = runpy.run_path(worker, run_name="worker")
    line, samples, loads = Connection(int(sys.argv[-2])), 0, 0
    while True:
        try:
            message = line.recv_bytes()
        except EOFError:
            break
        number, _ = codes["NUMBER"].unpack_from(message)
        header, arrays = codes["decode"](message[codes["NUMBER"].size :])
        text, values = {}, {}
        if header["do"] == "start":
            if fault == "slow":
                time.sleep(60)
            if fault == "dies":
                print("a library is missing", file=sys.stderr, flush=True)
                sys.exit(3)
            text = {"vllm": "fake", "device": "cpu"}
        elif header["do"] == "load":
            loads += 1
            if header["path"] is not None:
                memory = open(header["path"], "rb")  # noqa: SIM115  held open as its name goes
            sums = []
            for _, _, _, start, size in header["tensors"]:
                memory.seek(start)
                sums.append(words(memory.read(size)))
            held_values = {header["tensors"][0][0]: sums[0]}
            if fault == "misread" and loads == 2:
                sums[1] += 1
            if fault == "unloaded" and loads == 2:
                held_values[header["tensors"][0][0]] += 1
            text = {"stamp": header["stamp"], "read": sums, "held": held_values}
        elif header["do"] == "score":
            text = {"stamp": 1, "logprobs": json.loads(scores)}
        elif fault == "error":
            text = {"error": "ValueError: no room for so many tokens"}
        elif fault == "killed":
            os.kill(os.getpid(), 9)
        elif fault in ("nonsense", "another"):
            number += fault == "another"
            line.send_bytes(codes["NUMBER"].pack(number, os.getpid()) + b"\xff\xff\xff\xff what?")
            continue
        else:
            samples += 1
            stamp = header["stamp"] - (fault == "stale" and samples == 2)
            n = len(arrays["seeds"])
            text = {"stamp": stamp, "finish": ["abort" if fault == "aborts" else "length"] * n, "reused": 0, "read": n}
            import array

            ones, zeros = array.array("i", [1] * n), array.array("f", [float("nan") if fault == "nan" else 0.0] * n)
            values = {
                "tokens": ("int32", ones.tobytes()), "logprobs": ("float32", zeros.tobytes()),
                "lengths": ("int32", ones[fault == "fewer" :].tobytes()), "support": ("int32", b""),
                "widths": ("int32", b""),
            }  # fmt: skip
        line.send_bytes(codes["NUMBER"].pack(number, os.getpid()) + codes["encode"](text, values))


if __name__ == "__main__":
    main()

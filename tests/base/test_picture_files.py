"""Files of pictures: pixels there and back, forms that are refused, and headers that promise more than is read."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from gxpo.base import media, picture_files
from gxpo.base.errors import GxpoError, PictureError


def random_pixels(seed: int, height: int = 8, width: int = 12) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_a_written_png_is_read_here_and_by_pillow():
    pixels = np.array([[[255, 0, 1], [2, 3, 4]]], dtype=np.uint8)  # one line of two pixels
    data = picture_files.png(pixels)
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", data[16:24]) == (2, 1)
    assert picture_files.decoded(data, "png").tolist() == pixels.tolist()
    assert np.asarray(Image.open(io.BytesIO(data))).tolist() == pixels.tolist()


def test_checked_pixels_are_contiguous_or_refused_by_form():
    turned = random_pixels(1).transpose(1, 0, 2)
    assert not turned.flags.c_contiguous
    pixels = picture_files.checked(turned)
    assert pixels.flags.c_contiguous and np.array_equal(pixels, turned)
    for wrong, form in (
        (np.zeros((2, 2, 3), dtype=np.float32), r"float32 \(2, 2, 3\)"),
        (np.zeros((2, 2, 4), dtype=np.uint8), r"uint8 \(2, 2, 4\)"),
        ([[1]], "list"),
        (np.zeros((0, 2, 3), dtype=np.uint8), "no pixels"),
    ):
        with pytest.raises(PictureError, match=form):
            picture_files.checked(wrong)


def test_a_png_cut_short_is_no_picture(tmp_path):
    data = media.png(random_pixels(11))
    broken = data[:33] + struct.pack(">I", 4) + b"IDAT" + zlib.compress(b"")[:4]
    for name, bad in (("a.png", broken), ("b.jpg", b"no picture"), ("c.npy", b"x")):
        (tmp_path / name).write_bytes(bad)
        with pytest.raises(GxpoError, match=f"{name}: can't be read"):
            media.PICTURES.put(tmp_path / name)


# ---------------------------------------------------------------- pictures that are made to fill memory
def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _zeros(n: int) -> bytes:
    """A stream of zlib that inflates to `n` zeros."""
    deflate = zlib.compressobj(9)
    stream = b"".join(deflate.compress(bytes(min(1 << 20, n - at))) for at in range(0, n, 1 << 20))
    return stream + deflate.flush()


def _png(width: int, height: int, *chunks: bytes, kind: int = 2, depth: int = 8, interlaced: int = 0) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, interlaced)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + b"".join(chunks) + _chunk(b"IEND", b"")


def _npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text + data


def _bombs() -> dict[str, tuple[bytes, str]]:
    """Files by name, and what the error says of each."""
    own_value, many = _zeros(4 * 13), _zeros(160 << 20)
    idat = _chunk(b"IDAT", own_value)
    gif = b"GIF89a" + struct.pack("<HHBBB", 4, 4, 0x80, 0, 0) + bytes(6)
    inner = _png(9000, 9000, _chunk(b"IDAT", many))
    icon = struct.pack("<HHHBBBBHHII", 0, 1, 1, 16, 16, 0, 0, 1, 32, len(inner), 22) + inner
    scan = b"\xff\xda\0\x08\x01\x01\0\0\x3f\0"
    too_many = "at most 67108864 are read"
    return {
        "more_than_promised.png": (_png(4, 4, _chunk(b"IDAT", many)), "holds more than these"),
        "many_chunks.png": (_png(4, 4, _chunk(b"IDAT", many[:9]), _chunk(b"IDAT", many[9:])), "ok"),
        "honest.png": (_png(17000, 17000, _chunk(b"IDAT", many)), too_many),
        "promised.png": (_png((1 << 31) - 1, (1 << 31) - 1, idat), too_many),
        "gray.png": (_png(60000, 60000, _chunk(b"IDAT", many), kind=0, depth=1), too_many),
        "interlaced.png": (_png(17000, 17000, _chunk(b"IDAT", many), interlaced=1), too_many),
        "deep.png": (_png(12000, 12000, _chunk(b"IDAT", many), kind=6, depth=16), too_many),
        "nothing.png": (_png(0, 0, idat), "no pixels"),
        "short.png": (_png(400, 400, idat), "ends within its 400 x 400 pixels"),
        "itxt.png": (_png(4, 4, _chunk(b"iTXt", b"k\0\1\0\0\0" + many), idat), "too large"),
        "ztxt.png": (_png(4, 4, _chunk(b"zTXt", b"k\0\0" + many), idat), "too large"),
        "iccp.png": (_png(4, 4, _chunk(b"iCCP", b"k\0\0" + many), idat), "too large"),
        "frame.gif": (gif + b"," + struct.pack("<HHHHB", 0, 0, 9000, 9000, 0) + b"\2\2\x4c\1\0;", too_many),
        "canvas.bmp": (b"BM" + struct.pack("<IIIIiiHHIIiiII", 99, 0, 54, 40, 9000, 9000, 1, 24, *[0] * 6), too_many),
        "plain.ppm": (b"P6 9000 9000 255\n", too_many),
        "icon.ico": (icon, "not a file of PNG, JPEG"),
        "script.eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", "not a file of PNG"),
        "scans.jpg": (b"\xff\xd8\xff" + 300 * scan, "more than 256 scans"),
        "promised.npy": (_npy("{'descr': '|u1', 'fortran_order': False, 'shape': (1048576, 1048576, 3)}"), too_many),
        "short.npy": (_npy("{'descr': '|u1', 'fortran_order': False, 'shape': (8000, 8000, 3)}"), "data has 0 bytes"),
        "object.npy": (_npy("{'descr': '|O', 'fortran_order': False, 'shape': (2, 2, 3)}", b"\x80\4."), "uint8"),
        "deep.npy": (_npy(200 * "(" + 200 * ")"), "header"),
        "archive.npy": (b"PK\3\4" + bytes(99), "not an NPY file"),
    }


BOMBS = """
import resource, sys
from pathlib import Path
from PIL import Image
from gxpo.base import media
from gxpo.base.errors import PictureError
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        media.PICTURES.pixels(media.PICTURES.put(path))
        print(path.name, "ok", flush=True)
    except PictureError as error:
        print(path.name, str(error).replace(sys.argv[1], ""), flush=True)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_pictures_that_are_too_large_are_errors_without_memory(tmp_path):
    bombs = _bombs()
    for name, (data, _) in bombs.items():
        (tmp_path / name).write_bytes(data)
    command = [sys.executable, "-W", "error::PIL.Image.DecompressionBombWarning", "-c", BOMBS, str(tmp_path)]
    *lines, peak = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ).stdout.splitlines()
    got = dict(line.split(" ", 1) for line in lines)
    assert [(name, got.get(name)) for name, (_, why) in bombs.items() if why not in got.get(name, "")] == []
    assert int(peak) < 100_000  # KiB


def test_a_large_or_broken_image_of_pillow_is_an_error(tmp_path):
    with pytest.raises(PictureError, match="8193 x 8192 pixels: at most 67108864"):
        media.PICTURES.put(Image.new("1", (8193, 8192)))
    data = io.BytesIO()
    Image.fromarray(random_pixels(3, 64, 64)).save(data, "JPEG")
    with pytest.raises(PictureError, match="truncated"):
        media.PICTURES.put(Image.open(io.BytesIO(data.getvalue()[:900])))
    gray = Image.fromarray(random_pixels(4)[:, :, 0])
    tall = Image.fromarray(random_pixels(5, 2500, 3))
    assert np.array_equal(media.PICTURES.pixels(media.PICTURES.put(gray))[:, :, 1], random_pixels(4)[:, :, 0])
    assert np.array_equal(media.PICTURES.pixels(media.PICTURES.put(tall)), random_pixels(5, 2500, 3))


def test_columns_of_an_npy_file_are_read_as_numpy_reads_them(tmp_path):
    for number, pixels in enumerate((random_pixels(6), np.asfortranarray(random_pixels(6)))):
        np.save(tmp_path / f"{number}.npy", pixels)
        with open(tmp_path / f"wide{number}.npy", "wb") as file:
            np.lib.format.write_array(file, pixels, version=(3, 0))
    for path in tmp_path.iterdir():
        assert np.array_equal(media.PICTURES.pixels(media.PICTURES.put(path)), random_pixels(6))

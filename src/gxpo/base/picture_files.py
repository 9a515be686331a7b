"""Files of pictures as pixels: sizes are read from headers and checked before anything is inflated.

A picture has at most `MAX_PIXELS` pixels and its file at most `MAX_BYTES` bytes, whatever its header promises. PNG
files that `png` wrote and NPY files are read here; Pillow reads `FORMATS`, which need no other programs.
"""

from __future__ import annotations

import ast
import io
import struct
import zlib
from typing import TYPE_CHECKING, Any

from gxpo.base.errors import MissingExtra, PictureError, need

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Pixels = NDArray[np.uint8]  # [height, width, 3], red, green, blue

MAX_PIXELS = 1 << 26  # 8192 x 8192
MAX_BYTES = 1 << 28  # of a file; pixels of the largest picture without compression are 3/4 of it
FORMATS = ("PNG", "JPEG", "MPO", "GIF", "WEBP", "BMP", "TIFF", "PPM")  # of Pillow
_MAX_SCANS = 256  # of a JPEG file; each scan costs a pass over all its pixels
_BAND = 1024  # lines of a picture of Pillow that are copied at once
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_NPY = b"\x93NUMPY"


def png(pixels: Pixels) -> bytes:
    """A PNG file of pixels [H, W, 3] uint8, without a filter."""
    height, width, _ = pixels.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    # a zero before each line: filter 0, none
    lines = b"".join(b"\0" + pixels[y].tobytes() for y in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return _SIGNATURE + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def decoded(data: bytes, kind: str) -> Pixels:
    """Pixels [H, W, 3] uint8 of a file's bytes. PNG files that `png` did not write need Pillow.

    kind  "npy", or anything else for files that say themselves what they are

    Raises `PictureError` for what is no picture, and for one that is too large, without inflating it.
    """
    if len(data) > MAX_BYTES:
        raise PictureError(f"its file has {len(data)} bytes, and at most {MAX_BYTES} are read: make it smaller")
    if kind == "npy":
        return _npy(data)
    # size and kind from the header, before anything is inflated
    if data[:8] == _SIGNATURE and data[12:16] == b"IHDR" and len(data) >= 29:
        width, height = struct.unpack(">II", data[16:24])
        _check_size(height, width)
        if (pixels := _plain_png(data, height, width)) is not None:
            return pixels
    return _by_pillow(data)


def checked(pixels: Any) -> Pixels:
    """Pixels in the form that pictures have here; `PictureError` for any other."""
    import numpy as np

    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        form = f"{pixels.dtype} {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
        raise PictureError(f"a picture is uint8 [height, width, 3] (red, green, blue), not {form}")
    _check_size(*pixels.shape[:2])
    return np.ascontiguousarray(pixels)


def pixels_of(image: Any) -> Pixels:
    """Pixels of an image of Pillow, whose size is checked before it is loaded."""
    import numpy as np

    width, height = image.size
    _check_size(height, width)
    image = image.convert("RGB")
    width, height = image.size  # an icon's header can promise another size than the picture in it has
    _check_size(height, width)
    pixels = np.empty((height, width, 3), dtype=np.uint8)
    for top in range(0, height, _BAND):  # an array of the whole would be held twice
        bottom = min(top + _BAND, height)
        pixels[top:bottom] = np.asarray(image.crop((0, top, width, bottom)))
    return pixels


def _check_size(height: int, width: int) -> None:
    if not (height > 0 and width > 0):
        raise PictureError("a picture of no pixels")
    if height * width > MAX_PIXELS:
        raise PictureError(f"a picture of {width} x {height} pixels: at most {MAX_PIXELS} are read; scale it down")


def _plain_png(data: bytes, height: int, width: int) -> Pixels | None:
    """Pixels of a PNG file as `png` writes them: 8 bits, red, green and blue, one chunk, no filter. None for others."""
    import numpy as np

    if data[24:29] != b"\x08\x02\x00\x00\x00" or data[37:41] != b"IDAT":
        return None
    (size,) = struct.unpack(">I", data[33:37])
    if data[49 + size : 53 + size] != b"IEND":  # further chunks of pixels
        return None
    raw_size = height * (1 + 3 * width)
    inflate = zlib.decompressobj()
    try:
        # one byte more than there must be: enough to find a bomb, without inflating it
        raw = inflate.decompress(data[41 : 41 + size], raw_size + 1)
    except zlib.error as error:
        raise PictureError(f"a PNG file that can't be inflated ({error})") from None
    if len(raw) > raw_size:
        raise PictureError(f"a PNG file of {width} x {height} pixels that holds more than these")
    if len(raw) < raw_size:
        raise PictureError(f"a PNG file that ends within its {width} x {height} pixels")
    lines = np.frombuffer(raw, np.uint8).reshape(height, 1 + 3 * width)
    # any filter but 0 makes lines differences, which Pillow undoes
    return None if lines[:, 0].any() else lines[:, 1:].reshape(height, width, 3).copy()


def _npy(data: bytes) -> Pixels:
    """Pixels of an NPY file; its header is read here, so that nothing is allocated that the file does not hold."""
    import numpy as np

    wide = data[6:7] in (b"\x02", b"\x03")
    begin = 12 if wide else 10
    if data[:6] != _NPY or len(data) < begin:
        raise PictureError("not an NPY file")
    (length,) = struct.unpack("<I" if wide else "<H", data[8:begin])
    try:
        if length > 10_000:  # as numpy
            raise ValueError
        header = ast.literal_eval(data[begin : begin + length].decode("latin-1").strip())
        shape, dtype, by_column = header["shape"], header["descr"], bool(header["fortran_order"])
        height, width, channels = (int(n) for n in shape)
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError):
        raise PictureError("an NPY file whose header is not that of a picture, uint8 [height, width, 3]") from None
    # object arrays, which would be pickles, end here
    if dtype not in ("|u1", "u1", "<u1", ">u1") or channels != 3:
        raise PictureError(f"a picture is uint8 [height, width, 3] (red, green, blue), not {str(dtype)[:20]} {shape}")
    _check_size(height, width)
    body = data[begin + length :]
    if len(body) != height * width * 3:
        raise PictureError(f"an NPY file of {width} x {height} pixels whose data has {len(body)} bytes")
    flat = np.frombuffer(body, np.uint8)
    return np.ascontiguousarray(flat.reshape((height, width, 3), order="F" if by_column else "C")).copy()


def _by_pillow(data: bytes) -> Pixels:
    # each scan of a progressive JPEG goes over all pixels: a small file could take minutes
    if data[:3] == b"\xff\xd8\xff" and data.count(b"\xff\xda") > _MAX_SCANS:
        raise PictureError(f"a JPEG file of more than {_MAX_SCANS} scans: write it anew, not progressive")
    image: Any = need("PIL.Image", "vision")
    try:
        image.init()
        # formats are listed, since others of Pillow's run programs, as EPS runs Ghostscript
        with image.open(io.BytesIO(data), formats=[f for f in FORMATS if f in image.OPEN]) as opened:
            return pixels_of(opened)
    except (PictureError, MissingExtra):
        raise
    except Exception as error:  # each of Pillow's formats raises types of its own
        if type(error).__name__ == "UnidentifiedImageError":
            raise PictureError(f"not a file of {', '.join(FORMATS)} or NPY") from None
        raise PictureError(" ".join(str(error).split())[:200] or type(error).__name__) from None

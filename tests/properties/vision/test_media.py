"""Pictures by content: references, ids, files, texts, and what is refused."""

from __future__ import annotations

import hashlib
import io
import os
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from gxpo.base import media
from gxpo.base.errors import GxpoError, PictureError, RecordError


def random_pixels(seed: int, height: int = 8, width: int = 12) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def put(seed: int) -> str:
    return media.PICTURES.put(random_pixels(seed))


def test_a_reference_is_the_digest_of_a_png_that_others_can_read():
    pixels = random_pixels(1)
    ref = media.PICTURES.put(pixels)
    data = media.PICTURES.data(ref)
    assert ref == f"sha256:{hashlib.sha256(data).hexdigest()}.png"
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(data))), pixels)
    assert np.array_equal(media.PICTURES.pixels(ref), pixels) and media.PICTURES.put(pixels.copy()) == ref


def test_files_of_others_are_read_too(tmp_path):
    pixels = random_pixels(2)
    np.save(tmp_path / "a.npy", pixels)
    Image.fromarray(pixels).save(tmp_path / "b.png")  # with filters
    Image.fromarray(pixels).save(tmp_path / "c.bmp")
    refs = [media.PICTURES.put(tmp_path / name) for name in ("a.npy", "b.png", "c.bmp")]
    assert [ref.rpartition(".")[2] for ref in refs] == ["npy", "png", "png"]
    for ref in (*refs, media.PICTURES.put(Image.fromarray(pixels))):
        assert np.array_equal(media.PICTURES.pixels(ref), pixels)


@pytest.mark.parametrize(
    ("picture", "why"),
    [
        ("https://example.org/a.png", "no such file"),
        ("nowhere.png", "no such file"),
        (np.zeros((4, 4), dtype=np.uint8), r"uint8 \[height, width, 3\]"),
        (np.zeros((4, 4, 3)), "float64"),
        (np.zeros((0, 4, 3), dtype=np.uint8), "no pixels"),
        ("sha256:12.png", "no reference"),
    ],
)
def test_what_is_no_picture_is_refused(picture, why):
    with pytest.raises(GxpoError, match=why):
        media.PICTURES.put(picture)


def test_ids_name_picture_and_row_and_lie_beyond_any_vocabulary():
    a, b = put(3), put(4)
    ids = media.ids(a, 3)
    digest = int(a.removeprefix("sha256:")[:11], 16)
    assert ids == tuple(2**62 + digest * 2**16 + row for row in range(3)) and max(ids) < 2**63
    tokens = [7, *ids, 8, *media.ids(b, 2), *ids]
    assert [tuple(run) for run in media.runs(tokens)] == [(1, 3, a), (5, 2, b), (7, 3, a)]
    assert media.refs_in(tokens) == (a, b, a) and media.refs_in([1, 2]) == () and media.refs_in([]) == ()


def test_a_context_that_is_cut_within_a_picture_is_refused():
    with pytest.raises(GxpoError, match="row 1 of picture"):
        list(media.runs(media.ids(put(5), 3)[1:]))
    with pytest.raises(GxpoError, match="not here"):
        list(media.runs(media.ids("sha256:" + "f" * 64 + ".png", 1)))
    with pytest.raises(GxpoError, match="1 to 65536"):
        media.ids(put(5), 2**16 + 1)


def test_pictures_with_equal_keys_are_not_confused():
    ref = "sha256:" + "a" * 64 + ".png"
    media.PICTURES.put(ref)
    with pytest.raises(GxpoError, match="can't be told apart"):
        media.PICTURES.put("sha256:" + "a" * 20 + "b" * 44 + ".png")


def test_placeholders_stand_for_rows_in_what_is_written():
    a = put(6)
    media.PICTURES.placeholders[a] = 99
    tokens = [5, *media.ids(a, 4), 6]
    ids, media_at = media.to_record(tokens)
    assert ids == [5, 99, 99, 99, 99, 6] and media_at == [[1, 4, a]]
    assert media.from_record(ids, media_at) == tokens and media.to_record([1, 2]) == ([1, 2], [])


@pytest.mark.parametrize(
    ("media_at", "why"),
    [
        ([[0, 3, "A"]], "not all one placeholder"),
        ([[1, 9, "A"]], "no 9 tokens"),
        ([[1, 0, "A"]], "no 0 tokens"),
        ([[2, 2, "A"], [1, 2, "A"]], "no 2 tokens"),
        ([[1, 2, "a.png"]], "not sha256"),
        ([[1, 2, "https://example.org/a.png"]], "not sha256"),
        ([[1, 2, "../sha256:" + "0" * 64 + ".png"]], "not sha256"),
    ],
)
def test_places_that_do_not_fit_are_refused(media_at, why):
    own = [[first, n, put(7) if ref == "A" else ref] for first, n, ref in media_at]
    with pytest.raises(ValueError, match=why):
        media.from_record([5, 9, 9, 9, 9, 6], own)


def test_a_changed_file_is_refused(tmp_path):
    pictures = media.Pictures()
    ref = media.PICTURES.put(random_pixels(8))
    media.PICTURES.save([ref], tmp_path)
    pictures.look_in(tmp_path)
    assert np.array_equal(pictures.pixels(ref), random_pixels(8)) and pictures.ref_of(media.key_of(ref)) == ref
    (tmp_path / ref.removeprefix("sha256:")).write_bytes(media.png(random_pixels(9)))
    other = media.Pictures()
    other.look_in(tmp_path)
    with pytest.raises(RecordError, match="was changed"):
        other.pixels(ref)
    with pytest.raises(RecordError, match="is not in"):
        media.Pictures().pixels(ref)


def test_memory_holds_the_newest_and_what_is_retained(monkeypatch):
    pictures = media.Pictures()
    refs = [pictures.put(random_pixels(100 + i)) for i in range(3)]
    pictures.retain(refs[:1])
    monkeypatch.setattr(media, "HELD", 2 * len(pictures.data(refs[1])))
    refs += [pictures.put(random_pixels(200 + i)) for i in range(3)]
    assert np.array_equal(pictures.pixels(refs[0]), random_pixels(100))
    assert np.array_equal(pictures.pixels(refs[-1]), random_pixels(202))
    with pytest.raises(RecordError, match="memory, which holds the newest"):
        pictures.pixels(refs[1])


def test_retained_pictures_move_to_the_run_folder_and_back(monkeypatch, tmp_path):
    pictures, images = media.Pictures(), [random_pixels(300 + i) for i in range(6)]
    for bound in ("HELD", "RETAINED"):
        monkeypatch.setattr(media, bound, 2 * len(media.png(images[0])))
    with pictures.kept_in(tmp_path / "media"):
        refs = [pictures.put(image) for image in images[:4]][:2]
        assert not (tmp_path / "media").exists()  # nothing was retained
        refs = [pictures.put(image) for image in images[:2]]
        pictures.retain(refs)
        for image in images[2:]:
            pictures.put(image)
        assert len(pictures._data) == 4  # those that are retained and those that are not have bytes of their own
        pictures.retain(pictures.put(image) for image in images[2:4])
        assert set(pictures._data).isdisjoint(refs)
        assert sorted(p.name for p in (tmp_path / "media").iterdir()) == sorted(ref[7:] for ref in refs)
        for ref, image in zip(refs, images, strict=False):
            assert np.array_equal(pictures.pixels(ref), image)
        assert {*refs} <= {*pictures._data} and max(pictures._held) <= media.HELD
        pictures.pixels(refs[0])  # the one that was used last stays
        pictures.retain([pictures.put(images[4])])
        assert refs[0] in pictures._data and refs[1] not in pictures._data
    (tmp_path / "media" / refs[1][7:]).write_bytes(media.png(images[5]))
    with pytest.raises(RecordError, match="was changed since it was written"):
        pictures.pixels(refs[1])


def test_retained_pictures_stay_in_memory_if_unwritable(monkeypatch, tmp_path):
    pictures, images = media.Pictures(), [random_pixels(400 + i) for i in range(4)]
    for bound in ("HELD", "RETAINED"):
        monkeypatch.setattr(media, bound, len(media.png(images[0])))
    (tmp_path / "media").write_text("a file, where a folder would have to be")
    with pictures.kept_in(tmp_path / "media"):
        ref = pictures.put(images[0])
        pictures.retain([ref])
        pictures.retain(pictures.put(image) for image in images[1:3])
        pictures.put(images[3])
        assert np.array_equal(pictures.pixels(ref), images[0]) and len(pictures._data) == 4


def test_messages_hold_pictures_as_marks_shown_as_digests():
    ref = put(10)
    content = [{"type": "text", "text": "see "}, {"type": "image", "image": ref}, {"type": "text", "text": " now"}]
    marked = media.marked(content)
    assert media.split(marked) == ["see ", ref, " now"]
    assert media.text_of(content) == f"see <image {ref[7:15]}> now" == media.text_of(marked)
    assert media.marked("plain <image>") == "plain <image>" and media.marked(None) == ""
    with pytest.raises(GxpoError, match="a text or an image"):
        media.marked([{"type": "image_url", "image_url": "x"}])
    shown = media.readable([1, *media.ids(ref, 3), 2, 3], lambda ids: f"{ids}")
    assert shown == f"[1]<image {ref[7:15]}>[2, 3]"


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
    whole = b"".join(deflate.compress(bytes(min(1 << 20, n - at))) for at in range(0, n, 1 << 20))
    return whole + deflate.flush()


def _png(width: int, height: int, *chunks: bytes, kind: int = 2, depth: int = 8, interlaced: int = 0) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, interlaced)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + b"".join(chunks) + _chunk(b"IEND", b"")


def _npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text + data


def _bombs() -> dict[str, tuple[bytes, str]]:
    """Files by name, and what the error says of each."""
    own, many = _zeros(4 * 13), _zeros(160 << 20)
    idat = _chunk(b"IDAT", own)
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


def test_names_of_pictures_that_are_no_regular_file_are_errors(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "link.png").symlink_to("/dev/zero")
    with open(tmp_path / "sparse.png", "wb") as file:
        file.truncate(1 << 40)
    names = {
        str(tmp_path / "pipe.png"): "is a pipe",
        str(tmp_path / "folder.png"): "is a directory",
        str(tmp_path / "link.png"): "is a device",
        "/dev/zero": "is a device",
        str(tmp_path / "sparse.png"): "has 1099511627776 bytes, and at most 268435456 are read",
        5000 * "x": r"file name too long",
        5000 * "x/": r"file name too long",
        "a\0b.png": "no such file",
        "\ud800.png": "no such file",
        "": "is a directory",
        "data:image/png;base64,AAAA": "a URL is never fetched",
    }
    for name, why in names.items():
        with pytest.raises(PictureError, match=why) as caught:
            media.PICTURES.put(name)
        assert len(str(caught.value)) < 400


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

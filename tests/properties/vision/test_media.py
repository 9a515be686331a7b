"""Pictures by content: references, ids, files, texts, and what is refused."""

from __future__ import annotations

import hashlib
import io
import os

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
    own_puts = [[first, n, put(7) if ref == "A" else ref] for first, n, ref in media_at]
    with pytest.raises(ValueError, match=why):
        media.from_record([5, 9, 9, 9, 9, 6], own_puts)


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
    monkeypatch.setattr(media, "MEMORY_BYTES", 2 * len(pictures.data(refs[1])))
    refs += [pictures.put(random_pixels(200 + i)) for i in range(3)]
    assert np.array_equal(pictures.pixels(refs[0]), random_pixels(100))
    assert np.array_equal(pictures.pixels(refs[-1]), random_pixels(202))
    with pytest.raises(RecordError, match="memory, which holds the newest"):
        pictures.pixels(refs[1])


def test_retained_pictures_move_to_the_run_folder_and_back(monkeypatch, tmp_path):
    pictures, images = media.Pictures(), [random_pixels(300 + i) for i in range(6)]
    for bound in ("MEMORY_BYTES", "RETAINED_BYTES"):
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
        assert {*refs} <= {*pictures._data} and max(pictures._bytes_in_memory) <= media.MEMORY_BYTES
        pictures.pixels(refs[0])  # the one that was used last stays
        pictures.retain([pictures.put(images[4])])
        assert refs[0] in pictures._data and refs[1] not in pictures._data
    (tmp_path / "media" / refs[1][7:]).write_bytes(media.png(images[5]))
    with pytest.raises(RecordError, match="was changed since it was written"):
        pictures.pixels(refs[1])


def test_retained_pictures_stay_in_memory_if_unwritable(monkeypatch, tmp_path):
    pictures, images = media.Pictures(), [random_pixels(400 + i) for i in range(4)]
    for bound in ("MEMORY_BYTES", "RETAINED_BYTES"):
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
    output = media.readable([1, *media.ids(ref, 3), 2, 3], lambda ids: f"{ids}")
    assert output == f"[1]<image {ref[7:15]}>[2, 3]"


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

"""Pictures by content: references, ids of their rows among the tokens of a context, and the files that hold them.

A model reads a picture as rows, each in the place of one token. Here every row has an id of its own beyond any
vocabulary, made from the picture's digest: equal ids are equal rows of equal pictures, so prompts, caches and forests
compare contexts with pictures as they compare texts. Records hold the model's placeholder in their place, and say in
`media_at` which tokens stand for which picture.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gxpo.base.errors import GxpoError, PictureError, RecordError
from gxpo.base.picture_files import MAX_BYTES, checked, decoded, pixels_of, png

if TYPE_CHECKING:
    from gxpo.base.picture_files import Pixels

FIRST = 1 << 62  # ids from here on are rows of pictures
_ROW_BITS = 16
ROWS = 1 << _ROW_BITS  # rows that a picture can have
_KEY_DIGITS = 11  # hexadecimal digits of a digest that go into ids
FOLDER = "media"
PICTURE = "picture"  # key of a rollout's info: the reference of the picture that it made
REF = re.compile(r"sha256:([0-9a-f]{64})\.(png|npy)")
MEMORY_BYTES = 1 << 29  # bytes of pictures that are held in memory
RETAINED_BYTES = 1 << 29  # bytes of those that are retained


class Run(NamedTuple):
    """Tokens [first, first + n) of a list of ids are rows 0 ... n - 1 of a picture."""

    first: int
    n: int
    ref: str


# ---------------------------------------------------------------- ids
def key_of(ref: str) -> int:
    """44 bits of a reference's digest, which ids hold."""
    return int(_digest(ref)[:_KEY_DIGITS], 16)


def ids(ref: str, n: int) -> tuple[int, ...]:
    """Ids of the `n` rows of a picture.

    >>> first, second = ids("sha256:" + "0" * 63 + "1.png", 2)
    >>> first == FIRST, second - first
    (True, 1)
    """
    if not 0 < n <= ROWS:
        raise PictureError(f"a picture of {n} rows: it may have 1 to {ROWS}; lower its resolution")
    begin = FIRST + (key_of(ref) << _ROW_BITS)
    return tuple(range(begin, begin + n))


def is_row(token: int) -> bool:
    """Return True if an id is a row of a picture."""
    return token >= FIRST


def key_of_row(token: int) -> int:
    """Key of the picture of a row."""
    return (token - FIRST) >> _ROW_BITS


def row_of(token: int) -> int:
    """Index of an id's row within its picture."""
    return (token - FIRST) & (ROWS - 1)


def ref_of(token: int) -> str:
    """Reference of the picture of a row."""
    return PICTURES.ref_of(key_of_row(token))


def runs(tokens: Sequence[int]) -> Iterator[Run]:
    """The pictures in a list of ids, in order. Raises `GxpoError` for one that is cut, or that nobody has put."""
    position = 0
    while position < len(tokens):
        if not is_row(tokens[position]):
            position += 1
            continue
        begin = tokens[position]
        # rows of one picture count up: a gap is the end of it, or the begin of the same picture shown again
        n = next((k for k in itertools.count(1) if position + k == len(tokens) or tokens[position + k] != begin + k), 1)
        ref = ref_of(begin)
        # rows before it were cut off with the text: half a picture would be another one to the model
        if row_of(begin):
            raise GxpoError(f"a context begins at row {row_of(begin)} of picture {ref}: it was cut within the picture")
        yield Run(position, n, ref)
        position += n


def refs_in(tokens: Sequence[int]) -> tuple[str, ...]:
    """References of the pictures in a list of ids, in order."""
    return tuple(run.ref for run in runs(tokens)) if tokens and max(tokens) >= FIRST else ()


def pictures_of(by_node: Mapping[int, Sequence[str]]) -> list[str]:
    """The distinct references of pictures among those of a forest's `media`, which may name other things too."""
    return list(dict.fromkeys(ref for refs in by_node.values() for ref in refs if REF.fullmatch(ref)))


def made_in(infos: Iterable[Mapping[str, Any]]) -> list[str]:
    """The distinct references of pictures that rollouts made, in their info."""
    refs = (info.get(PICTURE) for info in infos)
    return list(dict.fromkeys(ref for ref in refs if isinstance(ref, str) and REF.fullmatch(ref)))


def label(ref: str) -> str:
    """Label of a picture in a text for people: <image 0066bcce>, the first digits of its digest."""
    return f"<image {_digest(ref)[:8]}>"


def readable(tokens: Sequence[int], decode: Callable[[Sequence[int]], str]) -> str:
    """Decode ids for people; a picture is its `label`."""
    out, plain = "", list[int]()
    for token in tokens:
        if token < FIRST:
            plain.append(token)
        elif not row_of(token):
            out, plain = out + (decode(plain) if plain else "") + label(ref_of(token)), []
    return out + (decode(plain) if plain else "")


def _digest(ref: str) -> str:
    match = REF.fullmatch(ref)
    if match is None:
        raise RecordError(f"{ref[:80]!r} is no reference of a picture: sha256:DIGEST.png or .npy of a file in media/")
    return match[1]


# ---------------------------------------------------------------- records
Placed = list[Any]  # [first, n, reference]


def to_record(tokens: Sequence[int]) -> tuple[list[int], list[Placed]]:
    """Replace pictures by the model's placeholder tokens; returns the ids and where each picture lies among them."""
    ids = list(tokens)
    if not ids or max(ids) < FIRST:
        return ids, []
    picture_runs = list(runs(ids))
    for run in picture_runs:
        ids[run.first : run.first + run.n] = [PICTURES.placeholders.get(run.ref, 0)] * run.n
    return ids, [[*run] for run in picture_runs]


def from_record(tokens: Sequence[int], media_at: Sequence[Placed]) -> list[int]:
    """Put pictures back in place of their placeholders, the inverse of `to_record`; `ValueError` if not."""
    # records come from others: every number, length and placeholder is checked before a picture is registered
    ids_, end = list(tokens), 0
    for first, n, ref in media_at:
        # before the slice: a negative or huge number would select other tokens without an error
        if not all(type(x) is int and abs(x) < FIRST for x in (first, n)):
            raise ValueError(f"[{first!r:.20}, {n!r:.20}]: first and number are whole numbers")
        span = ids_[first : first + n]
        if not isinstance(ref, str) or not REF.fullmatch(ref):
            raise ValueError(f"{str(ref)[:80]!r} is not sha256:DIGEST.png or .npy of a file in {FOLDER}/")
        # in order and without overlap, or one picture would replace another's rows
        if first < end or len(span) != n or n < 1:
            raise ValueError(f"[{first}, {n}]: no {n} tokens from {first} on after the pictures before it")
        if len(set(span)) > 1 or span[0] >= FIRST:
            raise ValueError(f"[{first}, {n}]: its tokens are not all one placeholder")
        # registered by its reference alone: the file is read when somebody looks at it
        PICTURES.put(ref)
        PICTURES.placeholders[ref] = span[0]
        ids_[first : first + n] = ids(ref, n)
        end = first + n
    return ids_


# ---------------------------------------------------------------- files
class Pictures:
    """Pictures by reference; equal pictures are held once.

    Memory holds those used last, of `MEMORY_BYTES` together; others are read from folders. Those that are retained have
    `RETAINED_BYTES` of their own, and leave memory only for a folder (`kept_in`); without one memory holds all of them.
    """

    def __init__(self) -> None:
        self._data: OrderedDict[str, bytes] = OrderedDict()
        # those that may go, by whether they are retained, the one used last at the end; bytes of them
        self._order: tuple[OrderedDict[str, None], OrderedDict[str, None]] = (OrderedDict(), OrderedDict())
        self._bytes_in_memory = [0, 0]
        self._retained: set[str] = set()
        self._home: Path | None = None  # folder that is given what is retained before it goes
        self._refs: dict[int, str] = {}
        self.placeholders: dict[str, int] = {}  # the id that stood for its rows in the model that was shown it last
        self._folders: list[Path] = []
        self._lock = threading.RLock()

    # ------------------------------------------------------------ in
    def put(self, picture: Any) -> str:
        """Reference of a picture: pixels [H, W, 3] uint8, a file (PNG, NPY; others with Pillow), a reference, or an
        image of Pillow."""
        # a reference is taken as it is, though its file may be in no folder yet
        if isinstance(picture, str) and picture.startswith("sha256:"):
            with self._lock:
                self._register(picture)
            return picture
        data, kind = self._bytes(picture)
        # by content: the same picture has the same ids in every process and run
        ref = f"sha256:{hashlib.sha256(data).hexdigest()}.{kind}"
        with self._lock:
            self._register(ref)
            self._hold(ref, data)
        return ref

    def retain(self, refs: Iterable[str]) -> None:
        """Hold these pictures as long as the process lives, in memory or in a folder."""
        with self._lock:
            for ref in refs:
                # read first, since a retained picture has to exist
                data = self.data(ref)
                if ref not in self._retained:
                    # it moves from the queue of those that may be dropped to the one of those that may be saved
                    if ref in self._order[False]:
                        del self._order[False][ref]
                        self._bytes_in_memory[False] -= len(data)
                    self._retained.add(ref)
                    self._queue(ref)

    @contextmanager
    def kept_in(self, folder: Path) -> Iterator[None]:
        """Within it pictures that are retained may leave memory for this folder, a run's own."""
        with self._lock:
            before, self._home = self._home, folder
        try:
            yield
        finally:
            with self._lock:
                self._home = before

    def _may_go(self, ref: str) -> bool:
        """Return True if a retained picture may leave memory: it is in a folder, saved in the run's if need be."""
        if any((folder / _name(ref)).is_file() for folder in self._folders):
            return True
        if self._home is None:
            return False
        try:
            self.save([ref], self._home)
        except OSError:  # a full disk stops the next checkpoint, which says what to do; until then nothing is lost
            return False
        return True

    @staticmethod
    def _bytes(picture: Any) -> tuple[bytes, str]:
        if isinstance(picture, str | Path):
            return _file(picture)
        # without importing Pillow, which is an extra
        if hasattr(picture, "convert"):  # of Pillow
            try:
                return png(pixels_of(picture)), "png"
            except PictureError:
                raise
            except Exception as error:  # an image that is opened and not loaded: each format raises its own types
                raise PictureError(f"a picture that can't be read: {' '.join(str(error).split())[:200]}") from None
        return png(checked(picture)), "png"

    def _register(self, ref: str) -> None:
        key = key_of(ref)
        if self._refs.setdefault(key, ref) != ref:
            raise GxpoError(f"pictures {self._refs[key]} and {ref} can't be told apart by 44 bits of their digests")

    def _hold(self, ref: str, data: bytes) -> None:
        if ref in self._data:
            self._use(ref)
            return
        self._data[ref] = data
        self._queue(ref)

    def _use(self, ref: str) -> None:
        for order in self._order:
            if ref in order:
                order.move_to_end(ref)

    def _queue(self, ref: str) -> None:
        """A picture in memory may go from now on, and those used longest ago go where they are too many."""
        retained = ref in self._retained
        order = self._order[retained]
        order[ref] = None
        self._bytes_in_memory[retained] += len(self._data[ref])
        while self._bytes_in_memory[retained] > (RETAINED_BYTES if retained else MEMORY_BYTES) and len(order) > 1:
            # the one that has just been put stays in any case, however large
            oldest, _ = order.popitem(last=False)
            self._bytes_in_memory[retained] -= len(self._data[oldest])
            if not retained or self._may_go(oldest):
                del self._data[oldest]

    # ------------------------------------------------------------ out
    def ref_of(self, key: int) -> str:
        """Reference of the picture with this key. Raises `GxpoError` where there is none."""
        if key not in self._refs:
            raise GxpoError("a context shows a picture that is not here: load its records with their folder media/")
        return self._refs[key]

    def data(self, ref: str) -> bytes:
        """The file of a picture; its digest is checked when it is read from a folder."""
        with self._lock:
            if ref in self._data:
                self._use(ref)
                return self._data[ref]
            # pictures that were dropped are read again, and verified: a file may have been changed since
            for folder in self._folders:
                path = folder / _name(ref)
                if path.is_file():
                    from gxpo.base.regular_files import read_regular

                    data = read_regular(path, MAX_BYTES, RecordError)
                    if hashlib.sha256(data).hexdigest() != _digest(ref):
                        raise RecordError(f"{path}: was changed since it was written: its digest is not its name")
                    self._hold(ref, data)
                    return data
        where = ", ".join(map(str, self._folders)) or "memory, which holds the newest"
        raise RecordError(f"picture {_name(ref)} is not in {where}")

    def pixels(self, ref: str) -> Pixels:
        """Pixels [H, W, 3] uint8."""
        data = self.data(ref)
        try:
            return decoded(data, ref.rpartition(".")[2])
        except PictureError as error:
            raise PictureError(f"picture {_name(ref)}: {error}") from None

    # ------------------------------------------------------------ folders
    def look_in(self, folder: Path) -> None:
        """Find pictures in this folder too."""
        with self._lock:
            if folder not in self._folders and folder.is_dir():
                self._folders.append(folder)
            for path in folder.glob("*.*") if folder.is_dir() else ():
                if REF.fullmatch(f"sha256:{path.name}"):
                    self._register(f"sha256:{path.name}")

    def save(self, refs: Iterable[str], folder: Path) -> None:
        """Write these pictures to a folder, each once, and find them there from now on."""
        for ref in dict.fromkeys(refs):
            path = folder / _name(ref)
            if not path.is_file():
                _write(path, self.data(ref))
        if folder.is_dir() and folder not in self._folders:
            self._folders.append(folder)


def _file(picture: str | Path) -> tuple[bytes, str]:
    """Bytes and kind of a picture's file, whose pixels can be read."""
    from gxpo.base.regular_files import fault_of, read_regular, short_name

    path, name = Path(picture), f"picture {short_name(picture)!r}"
    # nothing is ever fetched: a record from a stranger could otherwise make requests
    if fault := "no such file" if "://" in str(picture) or str(picture)[:5] == "data:" else fault_of(path):
        url = " (a URL is never fetched)" if fault == "no such file" else ""
        raise PictureError(f"{name}: {fault}{url}")
    data, kind = read_regular(path, MAX_BYTES, PictureError, name), path.suffix[1:]
    try:
        pixels = decoded(data, kind)
    except PictureError as error:
        raise PictureError(f"picture {short_name(path)}: can't be read: {error}") from None
    # other formats are stored as PNG, so that readers need no Pillow
    return (data, kind) if kind in ("png", "npy") else (png(pixels), "png")


def _name(ref: str) -> str:
    _digest(ref)
    return ref.removeprefix("sha256:")


def _write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, once."""
    if path.is_file():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{threading.get_ident()}.part")
    part.write_bytes(data)
    part.replace(path)


PICTURES = Pictures()  # content-addressed and never changed, so all runs of a process share them


# ---------------------------------------------------------------- messages
MARK = ("\ufdd6", "\ufdd7")  # Unicode's noncharacters, around the reference of a picture in a text
_MARKED = re.compile(f"{MARK[0]}([^{MARK[0]}{MARK[1]}]*){MARK[1]}")


def mark(picture: Any) -> str:
    """A picture as it stands in a text: its reference between noncharacters."""
    return f"{MARK[0]}{PICTURES.put(picture)}{MARK[1]}"


def split(text: str) -> list[str]:
    """A text cut at its marks: text, reference, text, reference, ..., text."""
    return _MARKED.split(text)


def marked(content: Any) -> str:
    """A message's content as a text, in which marks stand for pictures.

    content  a text, or parts `{"type": "text", "text": ...}` and `{"type": "image", "image": ...}`, the latter anything
             that `Pictures.put` takes
    """
    if not isinstance(content, list | tuple):
        return str(content or "")
    pieces = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in ("image", "text") or part.get(kind) is None:
            raise GxpoError(f"a part of a message is a text or an image, as {{type: image, image: ...}}, not {part!r}")
        pieces.append(mark(part["image"]) if kind == "image" else str(part["text"]))
    return "".join(pieces)


def unmarked(text: str) -> str:
    """Remove the characters of picture marks from a text, so that a policy's answer shows no pictures to its reader."""
    return text.translate({ord(c): None for c in MARK})


def data_url(ref: str) -> str:
    """A picture as `data:image/png;base64,...`."""
    return f"data:image/png;base64,{base64.b64encode(png(PICTURES.pixels(ref))).decode()}"


def with_marks(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message whose content is a text with marks, if it came in parts."""
    content = message.get("content")
    return {**message, "content": marked(content)} if isinstance(content, list | tuple) else message


def text_of(content: Any) -> str:
    """A message's content for people, pictures `label`s."""
    return _MARKED.sub(lambda match: label(match[1]), marked(content))

"""Parquet files of others, read by batches: a small file can promise, and hold, more than memory does.

Encodings of repeated values make a file of kilobytes out of millions of rows. What the metadata promises is compared
with the size of the file before a row is read, and what is decoded is counted. Equal texts are one object.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gxpo.base.errors import GxpoError, need

MOST_COLUMNS = 10_000
MOST_VALUES, VALUES_A_BYTE = 2_000_000, 4  # a file may hold the first number, or as many for each of its bytes
MOST_BYTES, BYTES_A_BYTE = 1 << 28, 200  # bytes without encoding or compression, in the same way
_ROWS = 256  # of a batch
_BATCH = 1 << 27  # bytes of a batch at most, where one page could hold them all
_SHORT = 32  # characters of texts that are not worth looking up


def fault_of(metadata: Any, size: int) -> str | None:
    """Describe what is too much in the metadata of a file of `size` bytes; None where nothing is."""
    # before any data: a file of a few bytes may promise billions of values
    if metadata.num_columns > MOST_COLUMNS:
        return f"has {metadata.num_columns:,} columns, and at most {MOST_COLUMNS:,} are read"
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    values = sum(group.column(i).num_values for group in groups for i in range(group.num_columns))
    values = max(values, metadata.num_rows * metadata.num_columns)
    if values > max(MOST_VALUES, VALUES_A_BYTE * size):
        return f"promises {values:,} values in {size:,} bytes, which is too many to be read"
    promised = sum(group.total_byte_size for group in groups)
    if promised > most_bytes(size):
        return f"promises {promised:,} bytes in {size:,}, which is too many to be read"
    return None


def most_bytes(size: int) -> int:
    """Bytes of values that are read of a file of `size` bytes."""
    return max(MOST_BYTES, BYTES_A_BYTE * size)


def schema(path: Path, error: type[GxpoError]) -> Any:
    """Arrow's schema of a file; `error` for one that is damaged, or that promises more than is read."""
    parquet: Any = need("pyarrow.parquet", "data")
    try:
        with parquet.ParquetFile(path) as file:
            fault = fault_of(file.metadata, path.stat().st_size)
            arrow_schema = file.schema_arrow if fault is None else None
    except Exception as cause:  # arrow has an exception for each thing that a file may be
        raise _damage(path, cause, error) from cause
    if fault is not None:
        raise error(f"{path}: {fault}")
    return arrow_schema


def _damage(path: Path, cause: Exception, error: type[GxpoError]) -> GxpoError:
    return error(f"{path}: can't be read as parquet ({' '.join(str(cause).split())[:300]})")


def rows(path: Path, error: type[GxpoError]) -> Iterator[dict[str, Any]]:
    """The rows in order; `error` for a file that is damaged, or that holds more than is read."""
    parquet: Any = need("pyarrow.parquet", "data")
    size = path.stat().st_size
    # equal texts are stored once: a dictionary-encoded column repeats one long text in each of its rows
    texts: dict[str, str] = {}
    decoded = 0

    def shared(value: Any) -> Any:
        if isinstance(value, str):
            return value if len(value) < _SHORT else texts.setdefault(value, value)
        if isinstance(value, dict):
            return {k: shared(v) for k, v in value.items()}
        return [shared(v) for v in value] if isinstance(value, list) else value

    try:
        with parquet.ParquetFile(path) as file:
            fault = fault_of(file.metadata, size)
            flat, count = _shape(file.metadata) if fault is None else ([], 0)
        if fault is not None:
            raise error(f"{path}: {fault}")
        # opened again with dictionaries: Arrow would otherwise decode a repeated text once for each row
        with parquet.ParquetFile(path, read_dictionary=flat) as file:
            for batch in file.iter_batches(count, use_threads=False):
                columns = {}
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    columns[name], n_bytes = _values(column)
                    decoded += n_bytes
                # the metadata may lie about sizes; what was decoded does not
                if decoded > most_bytes(size):
                    raise error(f"{path}: {size:,} bytes that hold more than {most_bytes(size):,}, which are not read")
                for i in range(batch.num_rows):
                    yield {name: shared(column[i]) for name, column in columns.items()}
    except (error, GeneratorExit):
        raise
    except Exception as cause:  # as above
        raise _damage(path, cause, error) from cause


def _shape(metadata: Any) -> tuple[list[str], int]:
    """Columns of texts that are not in lists, which are read as dictionaries, and the rows of a batch."""
    schema = metadata.schema
    leaves = [schema.column(i) for i in range(metadata.num_columns)]
    flat = [c.path for c in leaves if c.physical_type == "BYTE_ARRAY" and c.path == c.name]
    largest = max(
        (
            metadata.row_group(g).column(i).total_uncompressed_size
            for g in range(metadata.num_row_groups)
            for i, c in enumerate(leaves)
            if c.path not in flat
        ),
        default=0,
    )
    # few rows at a time where a group's column is large, for a batch is decoded as a whole
    return flat, max(8, min(_ROWS, _BATCH // max(largest, 1)))


def _values(column: Any) -> tuple[list[Any], int]:
    """A column of a batch as a list, and the bytes of its values; a text of a dictionary is decoded once."""
    if not hasattr(column, "indices"):
        return column.to_pylist(), column.nbytes
    indices = column.indices.to_pylist()
    value_by_index = {i: column.dictionary[i].as_py() for i in set(indices) if i is not None}
    out = [None if i is None else value_by_index[i] for i in indices]
    return out, sum(len(v) for v in out if v is not None)

"""The lines of metrics.jsonl as TensorBoard scalars, for who has the extra installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gxpo.errors import need


class Board:
    """Writes event files to RUN/tensorboard; after a resume, steps that were cut are written again."""

    def __init__(self, run: Path, *, purge_after: int) -> None:
        need("tensorboard", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run / "tensorboard"), purge_step=purge_after + 1)

    def __call__(self, row: dict[str, Any]) -> None:
        for name, value in row.items():
            if name != "step" and isinstance(value, (int, float)):
                self._writer.add_scalar(name.replace("_", "/", 1), value, row["step"])
        self._writer.flush()

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()

"""Former name of `gxpo.registry`."""

from __future__ import annotations

from gxpo.registry import (
    CONTROLS as CONTROLS,
)
from gxpo.registry import (
    CREDITS as CREDITS,
)
from gxpo.registry import (
    PLACES as PLACES,
)
from gxpo.registry import (
    RATIOS as RATIOS,
)
from gxpo.registry import (
    REWARDS as REWARDS,
)
from gxpo.registry import (
    ROLLOUTS as ROLLOUTS,
)
from gxpo.registry import (
    SEGMENTERS as SEGMENTERS,
)
from gxpo.registry import (
    SIGNALS as SIGNALS,
)
from gxpo.registry import (
    SURROGATES as SURROGATES,
)
from gxpo.registry import (
    TERMS as TERMS,
)
from gxpo.registry import (
    UPDATES as UPDATES,
)
from gxpo.registry import (
    WEIGHTS as WEIGHTS,
)
from gxpo.registry import (
    Table as Table,
)
from gxpo.registry import (
    place_of as place_of,
)

"""Tree walks (`gxpo.columns`) and ids and ragged runs (`gxpo.grouped`) under one name, for parts."""

from gxpo.columns import NAN as NAN
from gxpo.columns import blank_value as blank_value
from gxpo.columns import last_before as last_before
from gxpo.columns import scatter_blocks as scatter_blocks
from gxpo.columns import sum_after as sum_after
from gxpo.columns import sum_before as sum_before
from gxpo.columns import with_ancestors as with_ancestors
from gxpo.columns import with_end as with_end
from gxpo.grouped import begins_of as begins_of
from gxpo.grouped import dense as dense
from gxpo.grouped import distinct as distinct
from gxpo.grouped import mean_at as mean_at
from gxpo.grouped import place_in as place_in
from gxpo.grouped import repeated as repeated
from gxpo.grouped import runs_of as runs_of

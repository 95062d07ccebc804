"""What proposes tokens for the target to check. `protocol` is all that the decoding loop knows of a drafter.

Importing it imports no mlx, so that `config` can be read on its own.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import mlx.core as mx

    from batchgen.engine.drafters.dflash import DFlashDrafter

__all__ = ["load_drafter"]


def load_drafter(
    folder: Path,
    embed: "Callable[[mx.array], mx.array]",
    head: "Callable[[mx.array], mx.array]",
    dtype: "mx.Dtype | None" = None,
    *,
    compiled: bool | None = None,
    bits: int | None = None,
) -> "DFlashDrafter":
    """The drafter in `folder`, bound to a target's embedding (scale included) and head; raises ModelError.

    `dtype` recasts its weights, None to the dtype of the target's embeddings. `compiled` is as in `DFlashDrafter`;
    None compiles on a GPU only. `bits` quantizes its linear layers.
    """
    from batchgen.engine.drafters.loading import bind_drafter

    return bind_drafter(folder, embed, head, dtype, compiled, bits)

"""The target: a stock mlx-lm model, read from a folder, behind the two passes that decoding needs.

Which model types are supported is `support`'s to say.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_map
from mlx_lm.utils import load_model

from batchgen.engine.target.layers import Hidden, head, inner_model, is_gated_delta, run_layers
from batchgen.engine.target.state import TargetState
from batchgen.errors import ModelError


class Target:
    """A model with the layers `tap` tapped; all shapes are [rows, tokens, ...]."""

    def __init__(self, model: nn.Module, tap: Sequence[int] = ()) -> None:
        self.model = model
        self.tap = tuple(tap)
        self._recurrent = [is_gated_delta(layer) for layer in inner_model(model).layers]

    @property
    def dtype(self) -> mx.Dtype:
        """Of the hidden states."""
        weight: mx.Dtype = inner_model(self.model).norm.weight.dtype
        return weight

    def make_state(self, num_rows: int) -> TargetState:
        return TargetState(self._recurrent, num_rows)

    def prefill(self, state: TargetState, tokens: mx.array, counts: mx.array) -> Hidden:
        """Takes each row's first counts[r] of tokens [R, T] into its state; what follows them is padding."""
        state.begin(tokens.shape[1])
        hidden = run_layers(self.model, tokens, tap=self.tap, states=state, counts=counts)
        state.take_in(counts, tokens.shape[1])
        return hidden

    def verify(self, state: TargetState, tokens: mx.array) -> tuple[mx.array, mx.array | None]:
        """Logits [R, L, V] and features of a block on top of the state, to be followed by `state.commit`."""
        state.begin(tokens.shape[1])
        hidden = run_layers(self.model, tokens, tap=self.tap, states=state)
        return head(self.model, hidden.final), hidden.features

    def embed(self, tokens: mx.array) -> mx.array:
        """Input embeddings [..., H] of token ids [...]."""
        embedded: mx.array = inner_model(self.model).embed_tokens(tokens)
        return embedded

    def logits(self, hidden: mx.array) -> mx.array:
        """Logits [..., V] of final states [..., H]."""
        return head(self.model, hidden)


def load_target(folder: Path, tap: Sequence[int] = (), dtype: mx.Dtype | None = None) -> Target:
    """Reads a model of a supported type; `dtype` recasts its unquantized weights.

    Raises ModelError if the folder's files do not make up such a model.
    """
    try:
        model, _ = load_model(folder)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ModelError(f"{folder}: the model cannot be read: {_first_line(error)}") from error
    if dtype is not None:
        _cast(model, dtype)
    model.eval()
    return Target(model, tap)


def _cast(model: nn.Module, dtype: mx.Dtype) -> None:
    if any(hasattr(module, "scales") for module in model.modules()):
        raise ModelError("engine.dtype: the model is quantized, its weights cannot be recast; put auto there")

    def cast(array: Any) -> Any:
        return array.astype(dtype) if mx.issubdtype(array.dtype, mx.floating) else array

    model.update(tree_map(cast, model.parameters()))


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]

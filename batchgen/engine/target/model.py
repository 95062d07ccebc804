"""The target: a stock mlx-lm model, read from a folder, behind the passes that decoding needs.

Which model types are supported is `support`'s to say.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten, tree_map
from mlx_lm.utils import load_model

from batchgen.engine.caches.attention import AttentionRows
from batchgen.engine.caches.recurrent import RecurrentRows
from batchgen.engine.compiling import compiled
from batchgen.engine.memory import RowBytes
from batchgen.engine.quantizing import quantize
from batchgen.engine.target.attention import AttentionLayer
from batchgen.engine.target.choose_form import choose_form
from batchgen.engine.target.layers import Arrays, GatedDeltaLayer, Hidden, Layers, head, inner_model
from batchgen.engine.target.state import RowStates, TargetState
from batchgen.errors import ModelError


class Target:
    """A model with the layers `tap` tapped; all shapes are [rows, tokens, ...].

    Takes the model's projections over: those of one input become views of one array.
    """

    def __init__(self, model: nn.Module, tap: Sequence[int] = ()) -> None:
        self.model = model
        self.tap = tuple(tap)
        self._layers = Layers(model, stack=True)
        self._mixers = [layer.mixer for layer in self._layers.layers]
        recurrent = [mixer.weights for mixer in self._mixers if isinstance(mixer, GatedDeltaLayer)]
        self._form = choose_form(recurrent, self.dtype)
        self._block = compiled(self._run_block)
        self._commit = compiled(self._run_commit)
        self._step = compiled(self._run_step)

    @property
    def dtype(self) -> mx.Dtype:
        """Of the hidden states."""
        weight: mx.Dtype = inner_model(self.model).norm.weight.dtype
        return weight

    def make_state(self, num_rows: int) -> TargetState:
        return TargetState([self._blank(mixer) for mixer in self._mixers], num_rows)

    def _blank(self, mixer: AttentionLayer | GatedDeltaLayer) -> RowStates:
        if isinstance(mixer, AttentionLayer):
            return AttentionRows(mixer.num_kv_heads, mixer.head_dim, self.dtype)
        weights = mixer.weights
        window = (weights.kernel_size - 1, weights.num_channels)
        return RecurrentRows(window, (weights.num_v_heads, weights.v_dim, weights.k_dim), self.dtype)

    @property
    def row_bytes(self) -> RowBytes:
        """What a row takes in the state, and while a block of it is checked."""
        sizes = [mixer.row_bytes(self.dtype.size) for mixer in self._mixers]
        vocab_size = int(inner_model(self.model).embed_tokens.weight.shape[0])
        # Logits as they come and in float32, and about as much again for what sampling makes of them.
        return sum(sizes, RowBytes(per_position=vocab_size * (self.dtype.size + 2 * mx.float32.size)))

    def prefill(self, state: TargetState, tokens: mx.array, counts: mx.array) -> Hidden:
        """Takes each row's first counts[r] of tokens [R, T] into its state; what follows them is padding."""
        length = tokens.shape[1]
        state.begin(length)
        mask = _mask(state.lengths, length, state.capacity)
        hidden, after = self._layers.take_in(tokens, self.tap, state.lengths, mask, state.inputs(), counts, self._form)
        state.keep(after, counts, length)
        return hidden

    def step(self, state: TargetState, tokens: mx.array, counts: mx.array) -> tuple[mx.array, mx.array | None]:
        """Plain decoding: logits [R, 1, V] and features behind tokens [R, 1].

        Rows with counts[r] 1 take their token in, those with 0 stay as they are.
        """
        state.begin(1)
        logits, features, after = self._step(tokens, state.lengths, state.capacity, state.inputs(), counts)
        state.keep(after, counts, 1)
        return logits, features

    def verify(self, state: TargetState, tokens: mx.array) -> tuple[mx.array, mx.array | None]:
        """Logits [R, L, V] and features of a block on top of the state, to be followed by `commit`."""
        state.begin(tokens.shape[1])
        logits, features, after = self._block(tokens, state.lengths, state.capacity, state.inputs())
        state.keep_block(after)
        return logits, features

    def commit(self, state: TargetState, counts: mx.array, most: int) -> None:
        """After `verify`: each row keeps its first counts[r] tokens of the block of `most`."""
        states, records = state.recorded()
        after = self._commit(states, records, counts) if states else []
        state.commit(after, counts, most)

    def _run_block(
        self, tokens: mx.array, lengths: mx.array, capacity: int, states: Sequence[Arrays]
    ) -> tuple[mx.array, mx.array | None, list[Arrays]]:
        mask = _mask(lengths, tokens.shape[1], capacity)
        hidden, after = self._layers.block(tokens, self.tap, lengths, mask, states, self._form)
        return head(self.model, hidden.final), hidden.features, after

    def _run_step(
        self, tokens: mx.array, lengths: mx.array, capacity: int, states: Sequence[Arrays], counts: mx.array
    ) -> tuple[mx.array, mx.array | None, list[Arrays]]:
        mask = _mask(lengths, 1, capacity)
        hidden, after = self._layers.take_in(tokens, self.tap, lengths, mask, states, counts, self._form)
        return head(self.model, hidden.final), hidden.features, after

    def _run_commit(self, states: Sequence[Arrays], records: Sequence[Arrays], counts: mx.array) -> list[Arrays]:
        return self._layers.commit(states, records, counts, self._form)

    def embed(self, tokens: mx.array) -> mx.array:
        """Input embeddings [..., H] of token ids [...]."""
        embedded: mx.array = inner_model(self.model).embed_tokens(tokens)
        return embedded

    def logits(self, hidden: mx.array) -> mx.array:
        """Logits [..., V] of final states [..., H]."""
        return head(self.model, hidden)


def _mask(lengths: mx.array, length: int, capacity: int) -> mx.array:
    """Key j is seen by new token t of row r if j <= lengths[r] + t; [R, 1, T, capacity]."""
    positions = lengths[:, None] + mx.arange(length)
    return (mx.arange(capacity) <= positions[..., None])[:, None]


def load_target(
    folder: Path,
    tap: Sequence[int] = (),
    dtype: mx.Dtype | None = None,
    weights: tuple[int, int] | None = None,
) -> Target:
    """Reads a model of a supported type; `dtype` recasts its unquantized weights, `weights` are the bits and the group
    size to quantize them to.

    Weights are read, recast, quantized and stacked layer by layer, so that little more memory is taken than they need
    in the end. Raises ModelError if the folder's files do not make up such a model.
    """
    model = read_model(folder, dtype, weights)
    try:
        target = Target(model, tap)
        for weight in dict(tree_flatten(model.parameters())).values():
            mx.eval(weight)
    except RuntimeError as error:
        raise ModelError(f"{folder}: the model cannot be read: {_first_line(error)}") from error
    mx.clear_cache()
    return target


def read_model(folder: Path, dtype: mx.Dtype | None, weights: tuple[int, int] | None) -> nn.Module:
    """mlx-lm's own model of a folder, its weights not evaluated yet; the arguments are `load_target`'s."""
    try:
        model: nn.Module = load_model(folder, lazy=True)[0]
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ModelError(f"{folder}: the model cannot be read: {_first_line(error)}") from error
    if dtype is not None:
        _cast(model, dtype)
    if weights is not None:
        quantize(model, *weights)
    model.eval()
    return model


def _cast(model: nn.Module, dtype: mx.Dtype) -> None:
    if any(hasattr(module, "scales") for module in model.modules()):
        raise ModelError("engine.dtype: the model is quantized, its weights cannot be recast; put auto there")

    def cast(array: Any) -> Any:
        return array.astype(dtype) if mx.issubdtype(array.dtype, mx.floating) else array

    model.update(tree_map(cast, model.parameters()))


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]

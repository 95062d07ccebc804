"""Runs a stock mlx-lm model's weights, layer by layer, over many rows at once.

The loop over layers is ours, so that hidden states are tapped and every layer works on row states of our own, with no
class of mlx-lm patched. What a layer computes is mlx-lm's; a test holds the two equal. Passes are pure functions of
arrays, so that they can be compiled: they take what each layer remembers and give back what it has next.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
from mlx import nn

from batchgen.engine.memory import RowBytes
from batchgen.engine.target.attention import AttentionLayer, Mask
from batchgen.engine.target.gated_delta_forms import (
    Form,
    GatedDeltaWeights,
    LayerState,
    Record,
    over_sequence,
)
from batchgen.engine.target.projections import Projections

Arrays = Sequence[mx.array]


class Hidden(NamedTuple):
    """What a pass over the layers gives: the final normed states [R, T, H], and the tapped ones side by side."""

    final: mx.array
    features: mx.array | None


def inner_model(model: nn.Module) -> Any:
    """The part of an mlx-lm model that holds `embed_tokens`, `layers` and `norm`."""
    return model.model


def head(model: nn.Module, hidden: mx.array) -> mx.array:
    """Logits [..., V] of final normed states [..., H]."""
    language_model = getattr(model, "language_model", model)
    lm_head = getattr(language_model, "lm_head", None)
    logits: mx.array = inner_model(model).embed_tokens.as_linear(hidden) if lm_head is None else lm_head(hidden)
    return logits


def is_gated_delta(layer: Any) -> bool:
    """Whether a decoder layer is recurrent rather than attention."""
    return hasattr(layer, "linear_attn")


class GatedDeltaLayer:
    """One gated-delta mixer over [R, T, H], with the weights of mlx-lm's `GatedDeltaNet`."""

    def __init__(self, module: Any, *, stack: bool) -> None:
        inputs = [module.in_proj_qkv, module.in_proj_z, module.in_proj_b, module.in_proj_a]
        self._project = Projections(inputs, stack=stack)
        self._module = module

    @property
    def weights(self) -> GatedDeltaWeights:
        """Read anew at each use: training replaces them."""
        return GatedDeltaWeights.of(self._module)

    def row_bytes(self, itemsize: int) -> RowBytes:
        """What a row takes in this layer: its state before and after a commit, and the record of a block."""
        weights = self.weights
        keys, values = weights.num_k_heads * weights.k_dim, weights.num_v_heads * weights.v_dim
        state = values * weights.k_dim * mx.float32.size
        window = (weights.kernel_size - 1) * weights.num_channels * itemsize
        record = (keys + values + weights.num_v_heads) * mx.float32.size + sum(self._project.sizes) * itemsize
        return RowBytes(fixed=2 * state + 2 * window, per_position=record)

    def over_sequence(self, x: mx.array) -> mx.array:
        """Sequences from their start; differentiable."""
        projected = self._project(x)
        return self._finish(over_sequence(self.weights, projected), projected)

    def block(self, x: mx.array, form: Form, before: LayerState) -> tuple[mx.array, Record]:
        """A block read on top of the state, and what a later commit needs of it."""
        projected = self._project(x)
        y, record = form.block(self.weights, projected, before)
        return self._finish(y, projected), record

    def take_in(self, x: mx.array, form: Form, before: LayerState, counts: mx.array) -> tuple[mx.array, LayerState]:
        """Each row's first counts[r] tokens, read into the state."""
        projected = self._project(x)
        y, after = form.take_in(self.weights, projected, before, counts)
        return self._finish(y, projected), after

    def _finish(self, y: mx.array, projected: mx.array) -> mx.array:
        z = self.weights.gate(projected)
        out = self._module.norm(y.astype(projected.dtype), z)
        mixed: mx.array = self._module.out_proj(out.reshape(*projected.shape[:2], -1))
        return mixed


_Mix = Callable[[GatedDeltaLayer, mx.array, LayerState], tuple[mx.array, Arrays]]


class DecoderLayer:
    """Norms, mixer and feed-forward of one layer."""

    def __init__(self, layer: Any, *, stack: bool) -> None:
        self._layer = layer
        self.mixer: GatedDeltaLayer | AttentionLayer = (
            GatedDeltaLayer(layer.linear_attn, stack=stack)
            if is_gated_delta(layer)
            else AttentionLayer(layer.self_attn, stack=stack)
        )
        self._gate_up = Projections([layer.mlp.gate_proj, layer.mlp.up_proj], stack=stack)

    def normed(self, h: mx.array) -> mx.array:
        """What the mixer reads."""
        x: mx.array = self._layer.input_layernorm(h)
        return x

    def finish(self, h: mx.array, mixed: mx.array) -> mx.array:
        """The layer's output, from its input and what the mixer made of it."""
        h = h + mixed
        gate, up = self._gate_up.split(self._gate_up(self._layer.post_attention_layernorm(h)))
        out: mx.array = h + self._layer.mlp.down_proj(nn.silu(gate) * up)
        return out


class Layers:
    """All layers of a model; with `stack` their projections are stacked, for decoding."""

    def __init__(self, model: nn.Module, *, stack: bool) -> None:
        self._inner = inner_model(model)
        self.layers = [DecoderLayer(layer, stack=stack) for layer in self._inner.layers]

    def over_sequence(self, tokens: mx.array, tap: Sequence[int]) -> Hidden:
        """Sequences [B, T] from their start; differentiable."""
        h, outputs = self._inner.embed_tokens(tokens), dict[int, mx.array]()
        for index, layer in enumerate(self.layers):
            if isinstance(layer.mixer, AttentionLayer):
                mixed, _ = layer.mixer(layer.normed(h), "causal")
            else:
                mixed = layer.mixer.over_sequence(layer.normed(h))
            outputs[index] = h = layer.finish(h, mixed)
        return self._hidden(h, outputs, tap)

    def block(
        self, tokens: mx.array, tap: Sequence[int], offsets: mx.array, mask: Mask, states: Sequence[Arrays], form: Form
    ) -> tuple[Hidden, list[Arrays]]:
        """A block [R, L] behind each row's offset [R].

        `states` are each layer's arrays: an attention layer's come back with the block written in, of a gated-delta
        layer its record comes back.
        """
        return self._over_rows(
            tokens, tap, offsets, mask, states, lambda mixer, x, before: mixer.block(x, form, before)
        )

    def take_in(
        self,
        tokens: mx.array,
        tap: Sequence[int],
        offsets: mx.array,
        mask: Mask,
        states: Sequence[Arrays],
        counts: mx.array,
        form: Form,
    ) -> tuple[Hidden, list[Arrays]]:
        """Each row's first counts[r] of tokens [R, T], read into the states; gives the new ones."""
        return self._over_rows(
            tokens, tap, offsets, mask, states, lambda mixer, x, before: mixer.take_in(x, form, before, counts)
        )

    def _over_rows(
        self, tokens: mx.array, tap: Sequence[int], offsets: mx.array, mask: Mask, states: Sequence[Arrays], mix: _Mix
    ) -> tuple[Hidden, list[Arrays]]:
        """One pass on top of the states; `mix` is what gated-delta layers do with theirs."""
        h, outputs = self._inner.embed_tokens(tokens), dict[int, mx.array]()
        after: list[Arrays] = []
        for index, (layer, state) in enumerate(zip(self.layers, states, strict=True)):
            kept: Arrays
            if isinstance(layer.mixer, AttentionLayer):
                mixed, kept = layer.mixer(layer.normed(h), mask, offsets, (state[0], state[1]))
            else:
                mixed, kept = mix(layer.mixer, layer.normed(h), LayerState(*state))
            after.append(tuple(kept))
            outputs[index] = h = layer.finish(h, mixed)
        return self._hidden(h, outputs, tap), after

    def commit(self, states: Sequence[Arrays], records: Sequence[Arrays], counts: mx.array, form: Form) -> list[Arrays]:
        """The gated-delta layers' states after the part of a block that stands; both lists have those layers alone."""
        recurrent = [layer.mixer for layer in self.layers if isinstance(layer.mixer, GatedDeltaLayer)]
        return [
            tuple(form.commit(mixer.weights, LayerState(*state), record, counts))
            for mixer, state, record in zip(recurrent, states, records, strict=True)
        ]

    def _hidden(self, h: mx.array, outputs: dict[int, mx.array], tap: Sequence[int]) -> Hidden:
        features = mx.concatenate([outputs[index] for index in tap], axis=-1) if tap else None
        return Hidden(self._inner.norm(h), features)


def run_layers(model: nn.Module, tokens: mx.array, *, tap: Sequence[int] = ()) -> Hidden:
    """All layers over sequences [B, T] from their start; differentiable.

    `tap` names layers (from 0) whose outputs, before the final norm, come back as features [B, T, len(tap) * H] in that
    order.
    """
    return Layers(model, stack=False).over_sequence(tokens, tap)

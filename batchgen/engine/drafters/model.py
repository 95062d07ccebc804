"""The DFlash network as plain modules with the checkpoint's tensor names, shared by decoding and training.

Every call takes its context keys, mask and positions as arguments: nothing here keeps state or knows how a context
is stored. The embedding and the head belong to the target and are never attributes of these modules, so that saving
or quantizing a drafter cannot touch the target.
"""

from collections.abc import Callable, Mapping, Sequence

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.rope_utils import initialize_rope

from batchgen.engine.drafters.config import DrafterConfig, LayerKind

KeysValues = tuple[mx.array, mx.array]
Masks = Mapping[LayerKind, mx.array]


class Attention(nn.Module):
    """Grouped-query attention from a block's rows to [context | blocks], keys and queries normed per head."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.num_kv_heads = config.num_key_value_heads
        self.head_dim = config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, self.num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, self.num_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, self.num_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.num_heads * self.head_dim, config.hidden_size, bias=False)
        self.q_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)

    def project(self, x: mx.array, rope: nn.Module, offsets: mx.array | int) -> KeysValues:
        """Keys (normed, rotated) and values [N, Hkv, T, d] of rows x [N, T, H] at positions offsets [N] + 0..T-1."""
        shape = (*x.shape[:2], self.num_kv_heads, self.head_dim)
        keys = self.k_norm(self.k_proj(x).reshape(shape)).transpose(0, 2, 1, 3)
        values = self.v_proj(x).reshape(shape).transpose(0, 2, 1, 3)
        return rope(keys, offset=offsets), values

    def __call__(
        self, x: mx.array, context: KeysValues, mask: mx.array, rope: nn.Module, offsets: mx.array
    ) -> mx.array:
        """x [N, L, H] -> [N, L, H]: N = B * A blocks, A for each of the B contexts [B, Hkv, C, d].

        The mask is `visibility`'s; offsets [N] are the anchors' positions.
        """
        num_blocks, length, _ = x.shape
        num_contexts = context[0].shape[0]
        queries = self.q_norm(self.q_proj(x).reshape(num_blocks, length, self.num_heads, self.head_dim))
        queries = rope(queries.transpose(0, 2, 1, 3), offset=offsets)
        keys, values = self.project(x, rope, offsets)
        out = mx.fast.scaled_dot_product_attention(
            _fold(queries, num_contexts),
            mx.concatenate([context[0], _fold(keys, num_contexts)], axis=2),
            mx.concatenate([context[1], _fold(values, num_contexts)], axis=2),
            scale=self.head_dim**-0.5,
            mask=mask,
        )
        return self.o_proj(out.transpose(0, 2, 1, 3).reshape(num_blocks, length, -1))


def _fold(x: mx.array, num_contexts: int) -> mx.array:
    """[B * A, heads, L, d] -> [B, heads, A * L, d]: the blocks of one context side by side."""
    num_blocks, num_heads, length, head_dim = x.shape
    if num_blocks == num_contexts:
        return x
    x = x.reshape(num_contexts, -1, num_heads, length, head_dim).transpose(0, 2, 1, 3, 4)
    return x.reshape(num_contexts, num_heads, -1, head_dim)


class MLP(nn.Module):
    """The gated feed-forward sublayer: down(silu(gate) * up)."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(nn.silu(self.gate_proj(x)) * self.up_proj(x))


class DFlashLayer(nn.Module):
    """One draft layer of version 1: attention and feed-forward, each after a norm and added to the residual."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def __call__(
        self, x: mx.array, context: KeysValues, mask: mx.array, rope: nn.Module, offsets: mx.array
    ) -> mx.array:
        """x [N, L, H] -> [N, L, H]; the other arguments as in `Attention`."""
        x = x + self.self_attn(self.input_layernorm(x), context, mask, rope, offsets)
        return x + self.mlp(self.post_attention_layernorm(x))


class DFlashModel(nn.Module):
    """All that a version 1 checkpoint holds. `LayerClass` is what a later version replaces."""

    LayerClass: type[DFlashLayer] = DFlashLayer

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        width = len(config.target_layer_ids) * config.hidden_size
        self.fc = nn.Linear(width, config.hidden_size, bias=False)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.layers = [self.LayerClass(config) for _ in config.layer_kinds]
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rope = initialize_rope(
            dims=config.head_dim,
            base=config.rope_theta,
            traditional=False,
            scaling_config=None if config.rope_scaling is None else dict(config.rope_scaling),
            max_position_embeddings=config.max_position_embeddings,
        )

    @property
    def dtype(self) -> mx.Dtype:
        """The dtype it computes in, which is that of its norms: the other weights may be quantized."""
        dtype: mx.Dtype = self.norm.weight.dtype
        return dtype

    def context_features(self, target_hidden: mx.array) -> mx.array:
        """The target's hidden states at `target_layer_ids`, side by side [B, T, ids * H] -> features [B, T, H]."""
        features: mx.array = self.hidden_norm(self.fc(target_hidden.astype(self.dtype)))
        return features

    def project_context(self, features: mx.array, offsets: mx.array | int) -> list[KeysValues]:
        """Each layer's keys and values [B, Hkv, T, d] of features [B, T, H] at positions offsets [B] + 0..T-1."""
        return [layer.self_attn.project(features, self.rope, offsets) for layer in self.layers]

    def embed_blocks(self, anchors: mx.array, block: int, embed: Callable[[mx.array], mx.array]) -> mx.array:
        """Anchor tokens [N] -> the embedded blocks [anchor, mask, mask, ...] [N, block, H], in the drafter's dtype.

        `embed` is the target's own embedding, its scale included.
        """
        masks = mx.full((anchors.shape[0], block - 1), self.config.mask_token_id, dtype=anchors.dtype)
        embedded = embed(mx.concatenate([anchors[:, None], masks], axis=1))
        return embedded.astype(self.dtype) * self.config.input_embedding_scale

    def hidden_states(self, x: mx.array, contexts: Sequence[KeysValues], masks: Masks, offsets: mx.array) -> mx.array:
        """Final normed states [N, L-1, H] of embedded blocks x [N, L, H]: row j predicts block row j + 1.

        contexts: one pair [B, Hkv, C, d] per layer; masks: one per layer kind; offsets [N]: the anchors' positions.
        """
        for layer, kind, context in zip(self.layers, self.config.layer_kinds, contexts, strict=True):
            x = layer(x, context, masks[kind], self.rope, offsets)
        hidden: mx.array = self.norm(x[:, 1:])
        return hidden

    def logits(self, hidden: mx.array, head: Callable[[mx.array], mx.array]) -> mx.array:
        """Logits [..., V] of states [..., H] under the target's `head`; a padded head's further columns are cut off."""
        logits = head(hidden)[..., : self.config.vocab_size] * self.config.output_multiplier
        cap = self.config.final_logit_softcapping
        return logits if cap is None else mx.tanh(logits / cap) * cap

"""The DFlash2 network: DFlash with dynamic convolutions around each sublayer and a candidate selector.

Adds only what version 2 adds; everything shared stands in `model`. Keeps no state either.
"""

import mlx.core as mx
import mlx.nn as nn

from batchgen.engine.drafters.config import DrafterConfig
from batchgen.engine.drafters.convolution import DynamicConvolution
from batchgen.engine.drafters.model import DFlashLayer, DFlashModel, KeysValues
from batchgen.engine.drafters.selector import CandidateSelector


class DFlash2Layer(DFlashLayer):
    """One draft layer of version 2: each sublayer's input and output are convolved along the block."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        sizes = (config.hidden_size, config.conv_kernel_size, config.conv_group_size)
        self.attention_conv = DynamicConvolution(*sizes)
        self.mlp_conv = DynamicConvolution(*sizes)

    def __call__(
        self, x: mx.array, context: KeysValues, mask: mx.array, rope: nn.Module, offsets: mx.array
    ) -> mx.array:
        """x [N, L, H] -> [N, L, H]; the other arguments as in `Attention`."""
        inner, kernel = self.attention_conv.prepare(self.input_layernorm(x))
        x = x + self.attention_conv.finish(self.self_attn(inner, context, mask, rope, offsets), kernel)
        inner, kernel = self.mlp_conv.prepare(self.post_attention_layernorm(x))
        return x + self.mlp_conv.finish(self.mlp(inner), kernel)


class DFlash2Model(DFlashModel):
    """All that a version 2 checkpoint holds."""

    LayerClass = DFlash2Layer

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        self.candidate_selector = CandidateSelector(config)

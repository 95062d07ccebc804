"""Quantizing weights that were read: what of a network is quantized, and what stays as it is."""

from typing import Any

from mlx import nn


def quantize(network: nn.Module, bits: int, group_size: int) -> None:
    """Quantizes the network's linear layers and embeddings in place (affine), as far as groups fill their rows.

    Lazily: nothing is computed before a weight is evaluated.
    """
    wanted = getattr(network, "quant_predicate", None)

    def is_quantized(path: str, module: Any) -> Any:
        if not hasattr(module, "to_quantized") or module.weight.shape[-1] % group_size:
            return False
        return True if wanted is None else wanted(path, module)

    nn.quantize(network, group_size, bits, class_predicate=is_quantized)

"""Linear layers that read the same input, run as one product.

Small batches pay for every launch and for every pass over a short weight. The layers' weights become views of the
stacked one, so the model keeps working and no weight is held twice.
"""

import copy
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import mlx.core as mx
from mlx import nn

_PARAMETERS = ("weight", "scales", "biases", "bias")


class Projections:
    """Layers over one input [..., K], their outputs side by side [..., sum of sizes].

    With `stack` the layers' own weights are replaced by views of one array, where they are alike; else each layer is
    called by itself, as training needs it.
    """

    def __init__(self, layers: Sequence[Any], *, stack: bool) -> None:
        self.sizes = [int(layer.weight.shape[0]) for layer in layers]
        self._layers = list(layers)
        self._stacked = _stack(layers, self.sizes) if stack and _are_alike(layers) else None

    def __call__(self, x: mx.array) -> mx.array:
        if self._stacked is not None:
            product: mx.array = self._stacked(x)
        else:
            product = mx.concatenate([layer(x) for layer in self._layers], axis=-1)
        return product

    def split(self, product: mx.array) -> list[mx.array]:
        """The layers' outputs, as views."""
        return list(mx.split(product, list(accumulate(self.sizes))[:-1], axis=-1))


def _are_alike(layers: Sequence[Any]) -> bool:
    """Whether one layer of the same kind can hold all of them."""

    def kind(layer: Any) -> tuple[Any, ...]:
        quantization = tuple(getattr(layer, name, None) for name in ("group_size", "bits", "mode"))
        present = tuple(name for name in _PARAMETERS if name in layer)
        dtypes = tuple(layer[name].dtype for name in present)
        return (type(layer), quantization, present, dtypes)

    return type(layers[0]) in (nn.Linear, nn.QuantizedLinear) and len(set(map(kind, layers))) == 1


def _stack(layers: Sequence[Any], sizes: Sequence[int]) -> Any:
    """One layer whose outputs are those of all; evaluated at once, so that only one group of weights is held twice."""
    stacked = copy.copy(layers[0])
    ends = list(accumulate(sizes))
    for name in _PARAMETERS:
        if name not in stacked:
            continue
        whole = mx.concatenate([layer[name] for layer in layers], axis=0)
        mx.eval(whole)
        stacked[name] = whole
        for layer, size, end in zip(layers, sizes, ends, strict=True):
            layer[name] = whole[end - size : end]
        mx.eval([layer[name] for layer in layers])
    return stacked

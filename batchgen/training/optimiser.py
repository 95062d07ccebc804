"""One training step in mixed precision: float32 parameters and AdamW state, the loss in bfloat16.

What is learned, and from what, is the loss function's business.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
from mlx import nn
from mlx.utils import tree_flatten, tree_map_with_path

Loss = Callable[..., mx.array]

MAX_GRADIENT_NORM = 1.0

# Parameters that only make sense in full precision.
FULL_PRECISION = ("A_log",)


def in_dtype(parameters: Any, dtype: mx.Dtype) -> Any:
    """The parameter tree in `dtype`, but for those that stay in float32."""

    def cast(path: str, value: mx.array) -> mx.array:
        return value if path.endswith(FULL_PRECISION) else value.astype(dtype)

    return tree_map_with_path(cast, parameters)


def named_arrays(model: nn.Module, dtype: mx.Dtype) -> dict[str, mx.array]:
    """The model's parameters in `dtype` by their dotted names, as a checkpoint holds them."""
    arrays: dict[str, mx.array] = {}
    tree_flatten(in_dtype(model.parameters(), dtype), destination=arrays)
    return arrays


def num_parameters(model: nn.Module) -> int:
    """How many numbers the model holds."""
    return sum(array.size for array in named_arrays(model, mx.float32).values())


class Trainer:
    """Holds the float32 parameters of `model` and steps them by `loss(*inputs)`, which runs the model as it stands.

    During a step the model carries the parameters in `dtype`; after `finish` it carries the trained ones.
    """

    def __init__(self, model: nn.Module, loss: Loss, dtype: mx.Dtype, weight_decay: float = 0.01) -> None:
        self._model = model
        self._dtype = dtype
        self._optimizer = optim.AdamW(1e-4, betas=[0.9, 0.98], weight_decay=weight_decay, bias_correction=True)
        self._parameters = in_dtype(model.trainable_parameters(), mx.float32)
        self._optimizer.init(self._parameters)
        mx.eval(self._parameters, self._optimizer.state)
        self._loss = loss

    def _loss_of(self, parameters: Any, *inputs: mx.array) -> mx.array:
        self._model.update(in_dtype(parameters, self._dtype))
        return self._loss(*inputs)

    def step(self, rate: float, *inputs: mx.array) -> mx.array:
        """One step at this learning rate; returns the loss, not yet evaluated.

        Not under `mx.compile`: the step has hundreds of distinct fused kernels, and compiling each of them on a GPU
        takes minutes, more than they save in a run of minutes.
        """
        self._optimizer.learning_rate = rate
        value, gradients = mx.value_and_grad(self._loss_of)(self._parameters, *inputs)
        gradients, _ = optim.clip_grad_norm(gradients, MAX_GRADIENT_NORM)
        self._parameters = self._optimizer.apply_gradients(gradients, self._parameters)
        mx.async_eval(value, self._parameters, self._optimizer.state)
        return value

    def publish(self, dtype: mx.Dtype) -> None:
        """Gives the model the parameters as they are now, in `dtype`."""
        self._model.update(in_dtype(self._parameters, dtype))
        mx.eval(self._model.parameters())

"""The compiled step: equal to the same arithmetic done plainly, and it leaves the model as it promises."""

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
from mlx import nn

from batchgen.training.optimiser import MAX_GRADIENT_NORM, Trainer, named_arrays


def linear() -> nn.Linear:
    model = nn.Linear(3, 2)
    model.update({"weight": mx.arange(6).reshape(2, 3) / 6, "bias": mx.array([0.1, -0.2])})
    return model


def inputs() -> list[tuple[mx.array, mx.array]]:
    mx.random.seed(3)
    return [(mx.random.normal((4, 3)), mx.random.normal((4, 2))) for _ in range(5)]


def test_steps_equal_plain_adamw() -> None:
    model, reference = linear(), linear()
    trainer = Trainer(model, lambda x, y: mx.mean((model(x) - y) ** 2), mx.float32, weight_decay=0.1)
    optimizer = optim.AdamW(0.0, betas=[0.9, 0.98], weight_decay=0.1, bias_correction=True)
    for number, (x, y) in enumerate(inputs()):
        rate = 0.01 * (number + 1)
        optimizer.learning_rate = rate
        value, gradients = nn.value_and_grad(reference, lambda x, y: mx.mean((reference(x) - y) ** 2))(x, y)
        optimizer.update(reference, optim.clip_grad_norm(gradients, MAX_GRADIENT_NORM)[0])
        assert np.allclose(np.array(trainer.step(rate, x, y)), np.array(value), atol=1e-6)
    trainer.publish(mx.float32)
    for name, array in named_arrays(reference, mx.float32).items():
        assert np.allclose(np.array(named_arrays(model, mx.float32)[name]), np.array(array), atol=1e-6)


def test_small_steps_add_up_though_the_model_runs_in_bfloat16() -> None:
    """A step far below bfloat16's resolution must not be lost: the parameters are kept in float32."""
    model = linear()
    trainer = Trainer(model, lambda x: mx.sum(model(x)), mx.bfloat16, weight_decay=0.0)
    for _ in range(10):
        trainer.step(1e-4, mx.ones((1, 3), mx.bfloat16))
    trainer.publish(mx.float32)
    assert np.allclose(np.array(model.bias), [0.1 - 1e-3, -0.2 - 1e-3], atol=1e-5)


def test_publish_gives_the_model_the_dtype_asked_for() -> None:
    model = linear()
    Trainer(model, lambda x: mx.sum(model(x)), mx.bfloat16).publish(mx.bfloat16)
    assert model.weight.dtype == mx.bfloat16

"""Which form of the gated delta rule a machine gets; a kernel of ours only if it agrees with the plain form there."""

import warnings
from collections.abc import Sequence

import mlx.core as mx

from batchgen.engine.arrays import read_float
from batchgen.engine.compiling import on_gpu
from batchgen.engine.target.gated_delta_forms import Form, GatedDeltaWeights, LayerState, MlxLmForm, PlainForm

# Largest difference, as a share of the largest value, that rounding explains: products may run in TF32 on a GPU.
_TOLERANCE = 2e-2
_METAL_DIM = 32  # mlx-lm's kernel takes key sizes that are multiples of this


def choose_form(layers: Sequence[GatedDeltaWeights], dtype: mx.Dtype) -> Form:
    """The fastest form for layers of these sizes on the default device."""
    if not layers or not on_gpu():
        return PlainForm()
    if mx.metal.is_available():
        return MlxLmForm() if all(weights.k_dim % _METAL_DIM == 0 for weights in layers) else PlainForm()
    from batchgen.engine.target.cuda_gated_delta import CudaForm, supports

    if not all(map(supports, layers)):
        return PlainForm()
    form = CudaForm()
    difference = largest_difference(form, layers[0], dtype)
    if difference <= _TOLERANCE:
        return form
    warnings.warn(
        f"the CUDA kernels for gated delta layers differ from the plain form by {difference:.1e} on this machine, "
        "so they are not used; decoding is slower",
        stacklevel=2,
    )
    return PlainForm()


def largest_difference(form: Form, weights: GatedDeltaWeights, dtype: mx.Dtype) -> float:
    """How far a form is from the plain one over random rows, as a share of the largest value; infinite for NaN."""
    keys = mx.random.split(mx.random.key(0), 3)
    num_columns = weights.gate_end + 2 * weights.num_v_heads
    projected = mx.random.normal((3, 21, num_columns), key=keys[0]).astype(dtype)
    window = mx.random.normal((3, weights.kernel_size - 1, weights.num_channels), key=keys[1]).astype(dtype)
    state = mx.random.normal((3, weights.num_v_heads, weights.v_dim, weights.k_dim), key=keys[2])
    before, counts, plain = LayerState(window, state), mx.array([0, 21, 18], dtype=mx.int32), PlainForm()
    found = 0.0
    for a, b in zip(
        _everything(form, weights, projected, before, counts),
        _everything(plain, weights, projected, before, counts),
        strict=True,
    ):
        a, b = a.astype(mx.float32), b.astype(mx.float32)
        difference = read_float(mx.abs(a - b).max() / mx.maximum(mx.abs(b).max(), 1e-6))
        found = max(found, difference) if difference == difference else float("inf")
    return found


def _everything(
    form: Form, weights: GatedDeltaWeights, projected: mx.array, before: LayerState, counts: mx.array
) -> list[mx.array]:
    """All that a form gives: a block's outputs, the states after parts of it, and outputs and states of a prompt."""
    y, record = form.block(weights, projected, before)
    committed = form.commit(weights, before, record, counts)
    taken_y, taken = form.take_in(weights, projected, before, counts)
    inside = (mx.arange(projected.shape[1]) < counts[:, None])[..., None, None]
    return [y, *committed, mx.where(inside, taken_y, 0), *taken]

"""The grouped dynamic convolution of DFlash2: short, causal, along a block's own rows only.

Its kernel is a learned base per channel plus a part per group that each row computes for itself. It carries no state
from the context or between passes, and must never read across blocks.
"""

import mlx.core as mx
import mlx.nn as nn


def dynamic_convolve(x: mx.array, dynamic: mx.array, base: mx.array) -> mx.array:
    """out[n, t, c] = sum over taps o of (base[o, c] + dynamic[n, t, o, group of c]) * x[n, t - o, c].

    x [N, L, H], zero before row 0; dynamic [N, L, K, G]; base [K, H] with G dividing H -> [N, L, H] in x's dtype.
    Base and dynamic part are summed one after the other: in bf16 their sum would round the small one away.
    """
    num_rows, length, hidden_size = x.shape
    num_taps, num_groups = dynamic.shape[2:]
    kernel = base.astype(x.dtype).reshape(num_taps, num_groups, -1)
    rows = x.reshape(num_rows, length, num_groups, -1)
    padded = mx.pad(rows, [(0, 0), (num_taps - 1, 0), (0, 0), (0, 0)])
    out = mx.zeros_like(rows)
    for tap in range(min(num_taps, length)):  # longer taps reach only the zeros before row 0
        start = num_taps - 1 - tap
        shifted = padded[:, start : start + length]
        out = out + kernel[tap] * shifted
        out = out + dynamic[:, :, tap, :, None] * shifted
    return out.reshape(num_rows, length, hidden_size)


class DynamicConvolution(nn.Module):
    """The pair of convolutions around one sublayer. Both dynamic kernels come from the sublayer's normed input.

    Fresh modules are the identity: 1 at the row itself, 0 elsewhere and in the dynamic part.
    """

    def __init__(self, hidden_size: int, kernel_size: int, group_size: int) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.num_groups = hidden_size // group_size
        self.base_kernel = mx.zeros((2, kernel_size, hidden_size))
        self.base_kernel[:, 0] = 1.0
        self.kernel_projection = nn.Linear(hidden_size, 2 * kernel_size * self.num_groups, bias=False)
        self.kernel_projection.weight = mx.zeros_like(self.kernel_projection.weight)

    def prepare(self, x: mx.array) -> tuple[mx.array, mx.array]:
        """x [N, L, H] -> (convolved x, the dynamic kernel [N, L, K, G] that `finish` takes)."""
        dynamic = self.kernel_projection(x).reshape(*x.shape[:2], 2, self.kernel_size, self.num_groups)
        return dynamic_convolve(x, dynamic[:, :, 0], self.base_kernel[0]), dynamic[:, :, 1]

    def finish(self, y: mx.array, dynamic: mx.array) -> mx.array:
        """Convolves the sublayer's output y [N, L, H]."""
        return dynamic_convolve(y, dynamic, self.base_kernel[1])

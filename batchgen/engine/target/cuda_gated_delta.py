"""The gated delta rule on CUDA: two kernels in place of some forty launches a layer.

`block` and `take_in` do all that lies between a layer's projections and its gated norm: convolution, SiLU, the norms
of queries and keys, decay and write strength, and the rule itself. `commit` replays the part of a block that stands.
Eight threads hold one row of a head's state in registers; the loop over tokens is the rule as it is written in
`gated_delta`, in float32.
"""

from typing import Any

import mlx.core as mx

from batchgen.engine.target.gated_delta_forms import GatedDeltaWeights, LayerState, Record

_VALUES = 32  # value rows of a head per thread block
_LANES = 8  # threads per value row
_THREADS = _VALUES * _LANES

# Where a thread block stands, and the inputs of the convolution at any token, the window's at negative ones.
_PLACE = r"""
  constexpr int KD = Hk * Dk, C = 2 * KD + Hv * Dv, E = Dk / 8;
  const int L = projected_shape[1], P = projected_shape[2];
  const int tid = threadIdx.x, lane = tid & 7;
  const int r = blockIdx.z / Hv, hv = blockIdx.z % Hv, hk = hv / (Hv / Hk);
  const int dv = blockIdx.y * VB + (tid >> 3);
  const size_t head = (size_t)r * Hv + hv;
  auto input = [&](int t, int c) -> float {
    return t >= 0 ? (float)projected[((size_t)r * L + t) * P + c]
                  : (float)window[((size_t)r * (K - 1) + K - 1 + t) * C + c];
  };
"""
_LOAD_STATE = r"""
  float s[E];
  {
    const float4* from = (const float4*)(state + (head * Dv + dv) * Dk);
    #pragma unroll
    for (int i = 0; i < E / 4; ++i) *(float4*)(s + 4 * i) = from[i * 8 + lane];
  }
"""
_STORE_STATE = r"""
  {
    float4* to = (float4*)(state_out + (head * Dv + dv) * Dk);
    #pragma unroll
    for (int i = 0; i < E / 4; ++i) to[i * 8 + lane] = *(float4*)(s + 4 * i);
  }
  if (blockIdx.y == 0)
    for (int c = hv * NT + tid; c < C; c += Hv * NT)
      for (int j = 0; j < K - 1; ++j)
        window_out[((size_t)r * (K - 1) + j) * C + c] = (WT)input(n - (K - 1) + j, c);
"""

# Tokens come in tiles. A tile's queries, keys and values of this head are made together in shared memory, then the
# rule runs over them one by one.
_RULE = r"""
  __shared__ float qs[TT][Dk], ks[TT][Dk], vs[TT][VB], gs[TT], bs[TT];
  constexpr int NC = 2 * Dk + VB, STEP = 4;
  const float rate = expf((float)a_log[hv]), bias = (float)dt_bias[hv];
  for (int t0 = 0; t0 < n; t0 += TT) {
    const int m = min(TT, n - t0);
    __syncthreads();
    for (int item = tid; item < NC * (TT / STEP); item += NT) {
      const int ch = item % NC, first = (item / NC) * STEP;
      if (first >= m) continue;
      const int c = ch < Dk ? hk * Dk + ch
                  : ch < 2 * Dk ? KD + hk * Dk + ch - Dk
                  : 2 * KD + hv * Dv + blockIdx.y * VB + ch - 2 * Dk;
      float x[STEP + K - 1], w[K];
      #pragma unroll
      for (int j = 0; j < K; ++j) w[j] = (float)conv[c * K + j];
      #pragma unroll
      for (int j = 0; j < STEP + K - 1; ++j) {
        const int t = t0 + first + j - (K - 1);
        x[j] = t < n ? input(t, c) : 0.f;
      }
      #pragma unroll
      for (int i = 0; i < STEP; ++i) {
        float sum = 0.f;
        #pragma unroll
        for (int j = 0; j < K; ++j) sum += w[j] * x[i + j];
        sum = sum / (1.f + expf(-sum));
        if (ch < Dk) qs[first + i][ch] = sum;
        else if (ch < 2 * Dk) ks[first + i][ch - Dk] = sum;
        else vs[first + i][ch - 2 * Dk] = sum;
      }
    }
    if (tid < m) {
      const size_t at = ((size_t)r * L + t0 + tid) * P + C + Hv * Dv + hv;
      const float x = (float)projected[at + Hv] + bias;
      gs[tid] = expf(-rate * (x > 20.f ? x : log1pf(expf(x))));
      bs[tid] = 1.f / (1.f + expf(-(float)projected[at]));
    }
    __syncthreads();
    for (int v = tid >> 5; v < 2 * m; v += NT / 32) {
      float* x = v & 1 ? ks[v >> 1] : qs[v >> 1];
      float sum = 0.f;
      for (int i = tid & 31; i < Dk; i += 32) sum += x[i] * x[i];
      for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(0xffffffff, sum, o);
      const float scale = rsqrtf(sum / Dk + 1e-6f / Dk) / Dk * (v & 1 ? sqrtf((float)Dk) : 1.f);
      for (int i = tid & 31; i < Dk; i += 32) x[i] *= scale;
    }
    __syncthreads();
    RECORD_TILE
    #pragma unroll 2
    for (int t = 0; t < m; ++t) {
      float k[E], q[E];
      #pragma unroll
      for (int i = 0; i < E / 4; ++i) {
        *(float4*)(k + 4 * i) = ((const float4*)ks[t])[i * 8 + lane];
        *(float4*)(q + 4 * i) = ((const float4*)qs[t])[i * 8 + lane];
      }
      const float g = gs[t];
      float sum[4] = {0.f, 0.f, 0.f, 0.f};
      #pragma unroll
      for (int i = 0; i < E; ++i) sum[i & 3] += s[i] * k[i];
      float read = (sum[0] + sum[1]) + (sum[2] + sum[3]);
      for (int o = 4; o; o >>= 1) read += __shfl_xor_sync(0xffffffff, read, o);
      const float d = bs[t] * (vs[t][tid >> 3] - g * read);
      float out[4] = {0.f, 0.f, 0.f, 0.f};
      #pragma unroll
      for (int i = 0; i < E; ++i) {
        s[i] = g * s[i] + d * k[i];
        out[i & 3] += s[i] * q[i];
      }
      float total = (out[0] + out[1]) + (out[2] + out[3]);
      for (int o = 4; o; o >>= 1) total += __shfl_xor_sync(0xffffffff, total, o);
      if (lane == 0) {
        const size_t at = (((size_t)r * L + t0 + t) * Hv + hv) * Dv + dv;
        y[at] = (YT)total;
        RECORD_TOKEN
      }
    }
  }
"""
_RECORD_TILE = r"""
    if (blockIdx.y == 0) {
      if (tid < m) decay[((size_t)r * L + t0 + tid) * Hv + hv] = gs[tid];
      if (hv % (Hv / Hk) == 0)
        for (int i = tid; i < m * Dk; i += NT)
          keys[(((size_t)r * L + t0 + i / Dk) * Hk + hk) * Dk + i % Dk] = ks[i / Dk][i % Dk];
    }
"""
_ZERO_REST = r"""
  for (int t = n + (tid / VB); t < L; t += NT / VB)
    y[(((size_t)r * L + t) * Hv + hv) * Dv + blockIdx.y * VB + tid % VB] = (YT)0.f;
"""
_REPLAY = r"""
  for (int t = 0; t < n; ++t) {
    const size_t token = (size_t)r * L + t;
    const float g = decay[token * Hv + hv], d = deltas[(token * Hv + hv) * Dv + dv];
    const float4* k = (const float4*)(keys + (token * Hk + hk) * Dk);
    #pragma unroll
    for (int i = 0; i < E / 4; ++i) {
      const float4 ki = k[i * 8 + lane];
      s[4 * i] = g * s[4 * i] + d * ki.x;
      s[4 * i + 1] = g * s[4 * i + 1] + d * ki.y;
      s[4 * i + 2] = g * s[4 * i + 2] + d * ki.z;
      s[4 * i + 3] = g * s[4 * i + 3] + d * ki.w;
    }
  }
"""

_INPUTS = ["projected", "window", "state", "conv", "a_log", "dt_bias"]


def supports(weights: GatedDeltaWeights) -> bool:
    """Whether the kernels cover a layer's sizes."""
    return weights.k_dim % 32 == 0 and weights.k_dim <= 256 and weights.v_dim % _VALUES == 0


class CudaForm:
    """The rule through `mx.fast.cuda_kernel`."""

    def __init__(self) -> None:
        record_token = "deltas[at] = d;"
        block = _PLACE + "  const int n = L;\n" + _LOAD_STATE + _rule(_RECORD_TILE, record_token)
        take_in = _PLACE + "  const int n = counts[r];\n" + _LOAD_STATE + _rule("", "") + _ZERO_REST + _STORE_STATE
        commit = _PLACE + "  const int n = counts[r];\n" + _LOAD_STATE + _REPLAY + _STORE_STATE
        self._block: Any = mx.fast.cuda_kernel("gated_delta_block", _INPUTS, ["y", "keys", "deltas", "decay"], block)
        self._take_in: Any = mx.fast.cuda_kernel(
            "gated_delta_take_in", [*_INPUTS, "counts"], ["y", "window_out", "state_out"], take_in
        )
        self._commit: Any = mx.fast.cuda_kernel(
            "gated_delta_commit",
            ["projected", "window", "state", "keys", "deltas", "decay", "counts"],
            ["window_out", "state_out"],
            commit,
        )

    def block(self, weights: GatedDeltaWeights, projected: mx.array, before: LayerState) -> tuple[mx.array, Record]:
        num_rows, length, _ = projected.shape
        y, keys, deltas, decay = self._block(
            inputs=[projected, *before, weights.conv, weights.a_log, weights.dt_bias],
            output_shapes=[
                (num_rows, length, weights.num_v_heads, weights.v_dim),
                (num_rows, length, weights.num_k_heads, weights.k_dim),
                (num_rows, length, weights.num_v_heads, weights.v_dim),
                (num_rows, length, weights.num_v_heads),
            ],
            output_dtypes=[projected.dtype, mx.float32, mx.float32, mx.float32],
            **_launch(weights, num_rows, projected.dtype),
        )
        return y, (projected, keys, deltas, decay)

    def commit(self, weights: GatedDeltaWeights, before: LayerState, record: Record, counts: mx.array) -> LayerState:
        projected, *block = record
        window, state = self._commit(
            inputs=[projected, *before, *block, counts],
            output_shapes=[before.window.shape, before.state.shape],
            output_dtypes=[before.window.dtype, mx.float32],
            **_launch(weights, projected.shape[0], projected.dtype),
        )
        return LayerState(window, state)

    def take_in(
        self, weights: GatedDeltaWeights, projected: mx.array, before: LayerState, counts: mx.array
    ) -> tuple[mx.array, LayerState]:
        num_rows, length, _ = projected.shape
        y, window, state = self._take_in(
            inputs=[projected, *before, weights.conv, weights.a_log, weights.dt_bias, counts],
            output_shapes=[
                (num_rows, length, weights.num_v_heads, weights.v_dim),
                before.window.shape,
                before.state.shape,
            ],
            output_dtypes=[projected.dtype, before.window.dtype, mx.float32],
            **_launch(weights, num_rows, projected.dtype),
        )
        return y, LayerState(window, state)


def _rule(record_tile: str, record_token: str) -> str:
    return _RULE.replace("RECORD_TILE", record_tile).replace("RECORD_TOKEN", record_token)


def _launch(weights: GatedDeltaWeights, num_rows: int, dtype: mx.Dtype) -> dict[str, Any]:
    """Grid and constants: a thread block for every `_VALUES` value rows of a head of a row."""
    sizes = {
        "Hk": weights.num_k_heads,
        "Hv": weights.num_v_heads,
        "Dk": weights.k_dim,
        "Dv": weights.v_dim,
        "K": weights.kernel_size,
        "VB": _VALUES,
        "NT": _THREADS,
        "TT": 16 if weights.k_dim <= 128 else 8,
    }
    return {
        "template": [("YT", dtype), ("WT", dtype), *sizes.items()],
        "grid": (_THREADS, weights.v_dim // _VALUES, num_rows * weights.num_v_heads),
        "threadgroup": (_THREADS, 1, 1),
    }

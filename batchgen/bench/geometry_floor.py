"""How fast a round could be if only memory traffic took time: what it has to move, over what the device can move."""

import time
from dataclasses import dataclass

import mlx.core as mx

from batchgen.bench.geometry_models import RandomPair, weights

# Bytes per second as vendors state them. Where a name stands for several parts, the fastest; the longest name that is
# part of the device's counts.
_STATED = {
    "B200": 8.0e12,
    "H200": 4.8e12,
    "H100": 3.35e12,
    "H100 NVL": 3.9e12,
    "H100 PCIe": 2.0e12,
    "A100": 2.04e12,
    "L40S": 8.64e11,
    "L4": 3.0e11,
    "RTX 4090": 1.01e12,
    "Apple M1": 6.8e10,
    "Apple M1 Pro": 2.0e11,
    "Apple M1 Max": 4.0e11,
    "Apple M1 Ultra": 8.0e11,
    "Apple M2": 1.0e11,
    "Apple M2 Pro": 2.0e11,
    "Apple M2 Max": 4.0e11,
    "Apple M2 Ultra": 8.0e11,
    "Apple M3": 1.0e11,
    "Apple M3 Pro": 1.5e11,
    "Apple M3 Max": 4.0e11,
    "Apple M3 Ultra": 8.19e11,
    "Apple M4": 1.2e11,
    "Apple M4 Pro": 2.73e11,
    "Apple M4 Max": 5.46e11,
}
_COPY_BYTES = 1 << 28
_COPIES = 5
_STATE_BYTES = 4  # recurrent states are float32 whatever the weights are


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes per second, and where the figure is from."""

    bytes_per_s: float
    source: str


def bandwidth_of(device: str, copy_bytes: int = _COPY_BYTES) -> Bandwidth:
    """As stated for a device of this name, else the best of some copies of `copy_bytes`."""
    known = [name for name in _STATED if name in device]
    if known:
        name = max(known, key=len)
        return Bandwidth(_STATED[name], f"stated for {name}")
    return Bandwidth(_copy_speed(copy_bytes), "measured by copying")


def _copy_speed(copy_bytes: int) -> float:
    source = mx.zeros(copy_bytes // 4, mx.float32)
    mx.eval(source)
    seconds = []
    for _ in range(_COPIES):
        started = time.perf_counter()
        mx.eval(source + 1)
        seconds.append(time.perf_counter() - started)
    return 2 * source.nbytes / min(seconds)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a round cannot do without: weights once a round, keys and values once for every token of a row's
    context, recurrent states in and out once for every row."""

    weights: int
    per_token: int
    per_row: int

    def bytes(self, num_rows: int, mean_length: float) -> float:
        return self.weights + num_rows * (self.per_token * mean_length + self.per_row)


def target_traffic(pair: RandomPair) -> Traffic:
    """Of a pass of the target alone. An embedding that is not the head too is a table of which a few rows are read."""
    shape = pair.geometry.target
    gated_delta = shape.gated_delta
    num_attention = shape.num_layers if gated_delta is None else shape.num_layers // gated_delta.attention_interval
    entry = 2 * shape.num_kv_heads * shape.head_dim * pair.target.dtype.size
    state = 0
    if gated_delta is not None:
        state = 2 * gated_delta.num_value_heads * gated_delta.head_dim**2 * _STATE_BYTES
    return Traffic(
        weights=pair.target_bytes - (0 if shape.is_tied else _embedding_bytes(pair)),
        per_token=num_attention * entry,
        per_row=(shape.num_layers - num_attention) * state,
    )


def drafted_traffic(pair: RandomPair) -> Traffic:
    """Of a round with the drafter: its weights but for the selector's tables, and the target's head once more, since
    drafting has come to an end before the verify pass begins."""
    target, drafter = target_traffic(pair), pair.geometry.drafter
    tables = sum(size for name, size in weights(pair.drafter.model).items() if name.endswith("codebook"))
    entry = 2 * drafter.num_kv_heads * drafter.head_dim * pair.drafter.model.dtype.size
    return Traffic(
        weights=target.weights + pair.drafter_bytes - tables + _embedding_bytes(pair),
        per_token=target.per_token + drafter.num_layers * entry,
        per_row=target.per_row,
    )


def _embedding_bytes(pair: RandomPair) -> int:
    """Of the embedding, which the head is as large as."""
    return sum(size for name, size in weights(pair.target.model).items() if name.endswith("embed_tokens.weight"))

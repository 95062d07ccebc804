"""Models of a geometry with random weights, made on the device: mlx-lm's own class, and a DFlash2 network."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten

from batchgen.bench.geometry_specs import GEOMETRIES, Geometry, TargetShape, drafter_config, target_config
from batchgen.engine.compiling import on_gpu
from batchgen.engine.drafters.config import DrafterConfig
from batchgen.engine.drafters.dflash import DFlashDrafter
from batchgen.engine.drafters.loading import build_model
from batchgen.engine.target.model import Target
from batchgen.errors import EngineError

_SCALE = 0.02
_SEED = 0
# Random bits and their float32 form take several times a bfloat16 weight's own memory, so a large one is drawn so many
# values at a time.
_PIECE = 1 << 26


@dataclass(frozen=True, slots=True)
class PairFacts:
    """What was made."""

    geometry: str
    dtype: str
    block: int
    target_bytes: int
    drafter_bytes: int

    def line(self) -> str:
        sizes = f"target {self.target_bytes / 1e9:.2f} GB, drafter {self.drafter_bytes / 1e9:.2f} GB"
        return f"{self.geometry} with random weights in {self.dtype}: {sizes}, block {self.block}."


@dataclass(frozen=True, slots=True)
class RandomPair:
    """A target and a drafter for it, as a decoder takes them."""

    name: str
    target: Target
    drafter: DFlashDrafter

    @property
    def geometry(self) -> Geometry:
        return GEOMETRIES[self.name]

    @property
    def vocab_size(self) -> int:
        return self.geometry.target.vocab_size

    @property
    def target_bytes(self) -> int:
        return sum(weights(self.target.model).values())

    @property
    def drafter_bytes(self) -> int:
        return sum(weights(self.drafter.model).values())

    def facts(self) -> PairFacts:
        dtype = str(self.target.dtype).removeprefix("mlx.core.")
        return PairFacts(self.name, dtype, self.drafter.block_size, self.target_bytes, self.drafter_bytes)


@contextmanager
def within_memory(what: str) -> Iterator[None]:
    """Turns a failed allocation into an EngineError that names `what` did not fit."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if "memory" not in text and "alloc" not in text:
            raise
        raise EngineError(f"{what} does not fit the device's memory ({text.splitlines()[0]})") from error


def make_pair(name: str, block: int, dtype: str, say: Callable[[str], None]) -> RandomPair:
    """Draws all weights of a geometry; at no time is much more memory taken than they need."""
    say(f"making {name} in {dtype}")
    mx.random.seed(_SEED)
    geometry, mx_dtype = GEOMETRIES[name], getattr(mx, dtype)
    config = drafter_config(geometry, block)
    with within_memory(f"{name} in {dtype}"):
        target = Target(_make_target(geometry.target, mx_dtype), config.target_layer_ids)
        return RandomPair(name, target, _make_drafter(config, target, mx_dtype))


def weights(model: nn.Module) -> dict[str, int]:
    """Bytes of each weight by name."""
    return {name: array.nbytes for name, array in parameters_of(model).items()}


def parameters_of(model: nn.Module) -> dict[str, mx.array]:
    """The weights by name."""
    return dict(tree_flatten(model.parameters()))


def build_target(shape: TargetShape) -> nn.Module:
    """mlx-lm's model of that shape with fresh weights, which take no memory before they are evaluated."""
    config = target_config(shape)
    module = import_module(f"mlx_lm.models.{config['model_type']}")
    model: nn.Module = module.Model(module.ModelArgs.from_dict(config))
    return model


def _make_target(shape: TargetShape, dtype: mx.Dtype) -> nn.Module:
    model = build_target(shape)
    _draw_weights(model, dtype)
    return model


def _make_drafter(config: DrafterConfig, target: Target, dtype: mx.Dtype) -> DFlashDrafter:
    model = build_model(config)
    _draw_weights(model, dtype)
    return DFlashDrafter(model, target.embed, target.logits, compiled=on_gpu())


def _draw_weights(model: nn.Module, dtype: mx.Dtype) -> None:
    """The fresh weights are never evaluated, so they take no memory; the largest come first, while there is room."""
    fresh = parameters_of(model)
    for name in sorted(fresh, key=lambda name: (-fresh[name].size, name)):
        value = _value(name, fresh[name], dtype)
        mx.eval(value)
        model.load_weights([(name, value)], strict=False)
        if value.size > _PIECE:
            mx.clear_cache()
    model.eval()
    mx.clear_cache()


def _value(name: str, fresh: mx.array, dtype: mx.Dtype) -> mx.array:
    """Norms, decays and the identity of a convolution stay as a new module has them; all else is noise."""
    if name.endswith("A_log"):
        return fresh.astype(mx.float32)  # as checkpoints hold it, whatever the rest is in
    if fresh.ndim == 1 or name.endswith("base_kernel"):
        return fresh.astype(dtype)
    step = max(1, _PIECE // (fresh.size // fresh.shape[0]))
    pieces = []
    for start in range(0, fresh.shape[0], step):
        shape = (min(step, fresh.shape[0] - start), *fresh.shape[1:])
        pieces.append(mx.random.normal(shape, dtype=dtype, scale=_SCALE))
        mx.eval(pieces[-1])
    return pieces[0] if len(pieces) == 1 else mx.concatenate(pieces)

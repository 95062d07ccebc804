"""Reads a drafter folder in the reference layout: config.json and all *.safetensors beside it.

Strict: a tensor too many, too few or of another shape is refused by name. Never reads the target.
"""

from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten

from batchgen.engine.compiling import on_gpu
from batchgen.engine.drafters.config import DrafterConfig
from batchgen.engine.drafters.dflash import ArrayFunction, DFlashDrafter
from batchgen.engine.drafters.dflash2 import DFlash2Model
from batchgen.engine.drafters.model import DFlashModel
from batchgen.engine.quantizing import quantize
from batchgen.errors import ModelError

_NAMED = 3
# Codebooks and kernels of the convolutions stay as they are: they are small, and their sums must not be rounded.
_GROUP_SIZE = 64


def bind_drafter(
    folder: Path,
    embed: ArrayFunction,
    head: ArrayFunction,
    dtype: mx.Dtype | None,
    compiled: bool | None,
    bits: int | None,
) -> DFlashDrafter:
    """Reads the drafter in `folder` and lends it the target's functions; the arguments are `load_drafter`'s."""
    model = load_model(folder, dtype or embed(mx.zeros((1, 1), mx.int32)).dtype, bits)
    if compiled is None:
        compiled = on_gpu()
    return DFlashDrafter(model, embed, head, compiled=compiled)


def load_model(folder: Path, dtype: mx.Dtype | None = None, bits: int | None = None) -> DFlashModel:
    """The network alone, with the checkpoint's weights in the file's dtype or in `dtype`, its linear layers quantized
    to `bits`; raises ModelError."""
    config = DrafterConfig.from_folder(folder)
    model = build_model(config)
    weights = _read_tensors(folder)
    _check_tensors(folder, dict(tree_flatten(model.parameters())), weights)
    model.load_weights(list(weights.items()))
    if dtype is not None:
        model.set_dtype(dtype)
    if bits is not None:
        quantize(model, bits, _GROUP_SIZE)
    model.eval()
    weights.clear()
    for weight in dict(tree_flatten(model.parameters())).values():
        mx.eval(weight)
    return model


def build_model(config: DrafterConfig) -> DFlashModel:
    """A network of the config's version with fresh weights."""
    return DFlash2Model(config) if config.version == 2 else DFlashModel(config)


def _read_tensors(folder: Path) -> dict[str, mx.array]:
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise ModelError(f"{folder}: holds no *.safetensors file; a drafter folder holds its weights in such files")
    tensors: dict[str, mx.array] = {}
    for path in paths:
        try:
            loaded = mx.load(str(path))
        except (OSError, RuntimeError, ValueError) as error:
            raise ModelError(f"{path}: is not a readable safetensors file ({error})") from error
        assert isinstance(loaded, dict)
        tensors.update(loaded)
    return tensors


def _check_tensors(folder: Path, expected: dict[str, mx.array], found: dict[str, mx.array]) -> None:
    if any(name.endswith((".scales", ".biases")) for name in found):
        raise ModelError(f"{folder}: the weights are quantized, which is not supported; give the original checkpoint")
    missing, extra = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    if missing or extra:
        parts = [f"{word} {_name_some(names)}" for word, names in (("lacks", missing), ("has also", extra)) if names]
        raise ModelError(f"{folder}: the checkpoint {' and '.join(parts)}, which does not fit its config.json")
    for name, array in expected.items():
        if found[name].shape != array.shape:
            raise ModelError(
                f"{folder}: {name} has shape {list(found[name].shape)}, but config.json makes it {list(array.shape)}"
            )


def _name_some(names: list[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")

"""What a drafter checkpoint's config.json says, and whether it fits a target.

Reads config files only: no tensor is opened and no mlx is touched here, so a wrong pair is refused before any
weight is read. Every refusal is one ModelError that names file, key, what was found and what was expected.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from batchgen.engine.config_file import read_config, text_config
from batchgen.errors import ModelError

FULL = "full_attention"
SLIDING = "sliding_attention"

# The rope types of mlx-lm that take one offset per row, with the keys each cannot do without. `dynamic` is not
# among them: its base depends on the longest row, so a row's drafts would depend on its neighbours.
_ROPE_KEYS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor",),
    "yarn": ("factor",),
    "deepseek_yarn": ("factor",),
    "telechat3-yarn": ("factor",),
    "longrope": ("original_max_position_embeddings", "short_factor", "long_factor"),
    "proportional": (),
}


class LayerKind(NamedTuple):
    """What a draft layer's queries may see: `window` rows back into the context (None: all of it), and whether
    block keys are causal."""

    window: int | None
    is_causal: bool


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """A DFlash (version 1) or DFlash2 (version 2) drafter, checked. Convolution and selector figures are 0 in
    version 1."""

    path: Path
    version: Literal[1, 2]
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    layer_kinds: tuple[LayerKind, ...]
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None
    max_position_embeddings: int
    block_size: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    mask_token_id: int
    input_embedding_scale: float
    output_multiplier: float
    final_logit_softcapping: float | None
    conv_kernel_size: int
    conv_group_size: int
    selector_rank: int
    selector_top_k: int

    @classmethod
    def from_folder(cls, folder: Path) -> "DrafterConfig":
        """Reads `folder`/config.json; raises ModelError for whatever the drafters here cannot run exactly."""
        path = folder / "config.json"
        top = _Section(path, read_config(folder))
        if not top.has("dflash_config"):
            raise ModelError(f"{path}: dflash_config is missing, so this is no DFlash drafter")
        _refuse_quantized(top)
        draft = top.section("dflash_config")
        version = _version(top)
        hidden_size = top.integer("hidden_size")
        vocab_size = top.integer("vocab_size")
        num_target_layers = top.integer("num_target_layers")
        rope = _rope_section(top)
        return cls(
            path=path,
            version=version,
            hidden_size=hidden_size,
            intermediate_size=top.integer("intermediate_size"),
            num_attention_heads=top.integer("num_attention_heads"),
            num_key_value_heads=_num_key_value_heads(top),
            head_dim=top.integer("head_dim", multiple_of=2),
            vocab_size=vocab_size,
            rms_norm_eps=top.number("rms_norm_eps"),
            layer_kinds=_layer_kinds(top),
            rope_theta=(top if top.has("rope_theta") or rope is None else rope).number("rope_theta", default=10000.0),
            rope_scaling=None if rope is None else rope.values,
            max_position_embeddings=top.integer("max_position_embeddings"),
            block_size=(draft if draft.has("block_size") else top).integer("block_size", at_least=2, default=16),
            target_layer_ids=_target_layer_ids(draft, num_target_layers),
            num_target_layers=num_target_layers,
            mask_token_id=draft.integer("mask_token_id", at_least=0, at_most=vocab_size - 1),
            input_embedding_scale=draft.number("input_embedding_scale", default=1.0),
            output_multiplier=draft.number("output_multiplier", default=1.0),
            final_logit_softcapping=_softcapping(top, draft),
            **_version_2_figures(draft, version, hidden_size, vocab_size),
        )


def check_pair(config: DrafterConfig, target_config: Mapping[str, Any]) -> None:
    """Raises ModelError unless the drafter was made for a target with `target_config` (its config.json, read).

    The layers it reads are within `num_target_layers`, so the target has them if the two numbers of layers agree.
    """
    text = text_config(target_config)
    for key, drafter_value, target_key in (
        ("vocab_size", config.vocab_size, "vocab_size"),
        ("hidden_size", config.hidden_size, "hidden_size"),
        ("num_target_layers", config.num_target_layers, "num_hidden_layers"),
    ):
        target_value = text.get(target_key)
        if target_value != drafter_value:
            raise ModelError(
                f"{config.path}: {key} is {drafter_value}, but the target's {target_key} is {target_value}: "
                "this drafter was made for another target"
            )


@dataclass(frozen=True, slots=True)
class _Section:
    """One JSON object of a config file; its getters return checked values or raise."""

    path: Path
    values: Mapping[str, Any]
    prefix: str = ""

    def error(self, key: str, expected: str) -> ModelError:
        found = f"is {self.values[key]!r}" if key in self.values else "is missing"
        return ModelError(f"{self.path}: {self.prefix}{key} {found}, expected {expected}")

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def section(self, key: str) -> "_Section":
        if not isinstance(self.values.get(key), dict):
            raise self.error(key, "an object with the drafter's own settings")
        return _Section(self.path, self.values[key], f"{self.prefix}{key}.")

    def integer(
        self,
        key: str,
        *,
        at_least: int = 1,
        at_most: int | None = None,
        multiple_of: int = 1,
        default: int | None = None,
    ) -> int:
        value = self.values.get(key, default)
        if value is None:
            value = default
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or value < at_least or (at_most is not None and value > at_most) or value % multiple_of:
            upper = "" if at_most is None else f" and at most {at_most}"
            kind = "an integer" if multiple_of == 1 else f"a multiple of {multiple_of}"
            raise self.error(key, f"{kind} of at least {at_least}{upper}")
        return int(value)

    def number(self, key: str, *, default: float | None = None) -> float:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise self.error(key, "a number above 0")
        return float(value)


def _refuse_quantized(top: _Section) -> None:
    for key in ("quantization", "quantization_config"):
        if top.has(key):
            raise top.error(key, "no such key: quantized drafter checkpoints are not supported, give the original one")


def _version(top: _Section) -> Literal[1, 2]:
    names = top.values.get("architectures") or []
    if not isinstance(names, list):
        raise top.error("architectures", "a list of names")
    return 2 if "DFlash2DraftModel" in names else 1


def _num_key_value_heads(top: _Section) -> int:
    num_heads = top.integer("num_attention_heads")
    num_kv_heads = top.integer("num_key_value_heads")
    if num_heads % num_kv_heads:
        raise top.error("num_key_value_heads", f"a divisor of num_attention_heads ({num_heads})")
    return num_kv_heads


def _layer_kinds(top: _Section) -> tuple[LayerKind, ...]:
    num_layers = top.integer("num_hidden_layers")
    names = top.values.get("layer_types") or [FULL] * num_layers
    if not isinstance(names, list) or len(names) != num_layers:
        raise top.error("layer_types", f"a list of {num_layers} names (num_hidden_layers)")
    if any(name not in (FULL, SLIDING) for name in names):
        raise top.error("layer_types", f"only {FULL} and {SLIDING}")
    causal = top.values.get("is_causal")
    if causal is not None and not isinstance(causal, bool):
        raise top.error("is_causal", "true, false or null")
    # The window counts the query's own row, so the smallest one with any context in it is 2.
    window = top.integer("sliding_window", at_least=2) if SLIDING in names else None
    kinds = {
        FULL: LayerKind(None, bool(causal)),
        SLIDING: LayerKind(window, causal is None or causal),
    }
    return tuple(kinds[name] for name in names)


def _rope_section(top: _Section) -> _Section | None:
    key = "rope_parameters" if top.values.get("rope_parameters") else "rope_scaling"
    if not top.values.get(key):
        return None
    section = top.section(key)
    type_key = "type" if section.values.get("type") else "rope_type"
    name = section.values.get(type_key, "default")
    if name not in _ROPE_KEYS:
        raise section.error(type_key, f"one of {', '.join(_ROPE_KEYS)}")
    for needed in _ROPE_KEYS[name]:
        if not section.has(needed):
            raise section.error(needed, f"a value, since the rope type is {name}")
    return section


def _target_layer_ids(draft: _Section, num_target_layers: int) -> tuple[int, ...]:
    ids = draft.values.get("target_layer_ids")
    if not isinstance(ids, list) or not ids or any(not isinstance(i, int) or isinstance(i, bool) for i in ids):
        raise draft.error("target_layer_ids", "a list of layer numbers")
    if min(ids) < 0 or max(ids) >= num_target_layers:
        raise draft.error("target_layer_ids", f"numbers from 0 to {num_target_layers - 1} (num_target_layers)")
    return tuple(ids)


def _softcapping(top: _Section, draft: _Section) -> float | None:
    section = draft if "final_logit_softcapping" in draft.values else top
    value = section.values.get("final_logit_softcapping")
    if value is None or value == 0:
        return None
    return section.number("final_logit_softcapping")


def _version_2_figures(draft: _Section, version: int, hidden_size: int, vocab_size: int) -> dict[str, int]:
    if version == 1:
        return dict.fromkeys(("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"), 0)
    group_size = draft.integer("conv_group_size")
    if hidden_size % group_size:
        raise draft.error("conv_group_size", f"a divisor of hidden_size ({hidden_size})")
    return {
        "conv_kernel_size": draft.integer("conv_kernel_size"),
        "conv_group_size": group_size,
        "selector_rank": draft.integer("selector_rank"),
        "selector_top_k": draft.integer("selector_top_k", at_most=vocab_size),
    }

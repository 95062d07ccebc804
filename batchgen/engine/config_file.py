"""Reads a model folder's config.json; no mlx, no weights."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchgen.errors import ModelError


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json as a mapping, or a ModelError that says what stands there."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}); a model folder holds a config.json") from error
    except ValueError as error:
        raise ModelError(f"{path}: is not JSON ({error})") from error
    if not isinstance(config, dict):
        raise ModelError(f"{path}: holds a {type(config).__name__}, not a mapping")
    return config


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config that describes the decoder; multimodal checkpoints nest it."""
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) else config

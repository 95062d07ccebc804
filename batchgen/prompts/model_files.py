"""What a model's folder says about text: its tokenizer, its end tokens, its context, its vocabulary.

Reads configuration and tokenizer files only, never weights, never the network, and runs no code that a model brings.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from batchgen.errors import ModelError

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.json",
    "chat_template.jinja",
)
_REASON_WIDTH = 200
_NO_ADVICE = "TRANSFORMERS_NO_ADVISORY_WARNINGS"


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of a model; raises ModelError if it is missing or no JSON object."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"{path.parent}: has no {path.name}; a model needs one") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path}: holds no JSON object")
    return content


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer that transformers makes of the folder; raises ModelError if it makes none."""
    if not any((folder / name).exists() for name in _TOKENIZER_FILES):
        raise ModelError(
            f"{folder}: has no tokenizer (tokenizer.json and tokenizer_config.json), so it is no whole model; "
            "a drafter's folder goes under drafter"
        )
    with _quiet_import():
        import transformers
    transformers.utils.logging.set_verbosity_error()
    try:
        return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    # The tokenizers library raises bare Exception for a file that it cannot parse.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(f"{folder}: its tokenizer cannot be loaded: {reason[:_REASON_WIDTH]}") from error


def tokenizer_digest(folder: Path) -> str:
    """SHA-256 over the tokenizer's files, names included."""
    digest = hashlib.sha256()
    for name in _TOKENIZER_FILES:
        path = folder / name
        if path.exists():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{name} {content}\n".encode())
    return digest.hexdigest()


def end_tokens(folder: Path, config: dict[str, Any]) -> frozenset[int]:
    """`eos_token_id` of generation_config.json, else of config.json (or its text_config); empty if none names one.

    The ids as they stand there, also such as the model does not have; what is no whole number is left out.
    """
    path = folder / "generation_config.json"
    generation = read_json(path) if path.exists() else {}
    for source in (generation, config, text_config(config)):
        value = source.get("eos_token_id")
        if value is not None:
            ids = value if isinstance(value, list) else [value]
            return frozenset(token for token in ids if isinstance(token, int) and not isinstance(token, bool))
    return frozenset()


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a config that describes the language model, where it is a part."""
    part = config.get("text_config")
    return part if isinstance(part, dict) else config


def config_int(config: dict[str, Any], name: str) -> int | None:
    """A positive whole number of a config, outside or inside text_config; None if it has none."""
    for source in (config, text_config(config)):
        value = source.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


@contextmanager
def _quiet_import() -> Iterator[None]:
    """Keeps transformers from advising PyTorch when it is first imported; the environment is left as it was."""
    before = os.environ.get(_NO_ADVICE)
    os.environ[_NO_ADVICE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_NO_ADVICE]
        else:
            os.environ[_NO_ADVICE] = before

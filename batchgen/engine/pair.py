"""Whether the engine can serve a model, a drafter, and the two together: told from config.json files alone."""

from pathlib import Path

from batchgen.engine.config_file import read_config, text_config
from batchgen.engine.drafters.config import DrafterConfig, check_pair
from batchgen.engine.target.support import check_target
from batchgen.errors import ModelError


def check_folders(model: Path, drafter: Path | None, vocab_size: int | None) -> None:
    """Raises ModelError for an unsupported target, a drafter made for another one, or a tokenizer too large for it."""
    config = read_config(model)
    check_target(model, config)
    model_vocab_size = text_config(config).get("vocab_size")
    if vocab_size is not None and isinstance(model_vocab_size, int) and vocab_size > model_vocab_size:
        raise ModelError(
            f"{model}: the tokenizer has {vocab_size} tokens, but config.json's vocab_size is {model_vocab_size}; "
            "the two are not of one model"
        )
    if drafter is not None:
        check_pair(DrafterConfig.from_folder(drafter), config)

"""Model folders that several tests read and none changes."""

from pathlib import Path

import pytest

from tests.prompts.builders import sentence_piece_tokenizer, write_model


@pytest.fixture(scope="session")
def byte_level_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("byte-level"), config={"max_position_embeddings": 32})


@pytest.fixture(scope="session")
def sentence_piece_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("sentence-piece"), sentence_piece_tokenizer(), chat_template=None)

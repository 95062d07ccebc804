"""Model folders that several tests read and none changes."""

from pathlib import Path

import pytest
from tokenizers import AddedToken

from tests.prompts.builders import THINKING_TEMPLATE, sentence_piece_tokenizer, write_model


@pytest.fixture(scope="session")
def byte_level_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("byte-level"), config={"max_position_embeddings": 32})


@pytest.fixture(scope="session")
def sentence_piece_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("sentence-piece"), sentence_piece_tokenizer(), chat_template=None)


@pytest.fixture(scope="session")
def thinking_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`<think>` and `</think>` are tokens, and the template reads enable_thinking."""
    return write_model(tmp_path_factory.mktemp("thinking"), chat_template=THINKING_TEMPLATE)


@pytest.fixture(scope="session")
def thinking_text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same template, but `<think>` and `</think>` are text like any other."""
    folder = tmp_path_factory.mktemp("thinking-text")
    return write_model(folder, sentence_piece_tokenizer(), chat_template=THINKING_TEMPLATE)


@pytest.fixture(scope="session")
def thinking_pieces_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `thinking_model`, its other tokens those of sentence pieces and single bytes."""
    tokenizer = sentence_piece_tokenizer()
    tokenizer.add_tokens([AddedToken(marker, special=False) for marker in ("<think>", "</think>")])
    return write_model(tmp_path_factory.mktemp("thinking-pieces"), tokenizer, chat_template=THINKING_TEMPLATE)

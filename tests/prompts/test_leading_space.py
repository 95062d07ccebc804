"""One space before a completion is not shown, and that before an answer behind a thinking block is."""

from pathlib import Path

from batchgen.prompts.encode import Codec
from batchgen.types import Prompt
from tests.prompts.builders import byte_level_tokenizer, write_model


def test_the_first_space_depends_on_thinking(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer()
    codec = Codec.load(write_model(tmp_path, tokenizer), system=None, chat=False)
    requests = codec.requests(Prompt(0, text="hello"), [0])
    assert isinstance(requests, list)

    def shown(text: str) -> tuple[str, str | None]:
        return codec.completion(requests[0], tokenizer.encode(text, add_special_tokens=False).ids)

    assert shown(" yes") == ("yes", None)
    assert shown("  yes") == (" yes", None)
    assert shown("<think>so</think> yes") == (" yes", "so")
    assert shown("<think>so</think>\n\n yes") == (" yes", "so")
    assert shown("\nyes") == ("\nyes", None)

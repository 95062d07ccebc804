"""Prompts to tokens and back: special tokens, chat templates, lengths, and the text that mlx-lm shows."""

import json
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx_lm.tokenizer_utils
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers, processors

from batchgen.errors import ModelError
from batchgen.job.spec import InputSpec
from batchgen.prompts.encode import Codec
from batchgen.types import Prompt, RowError
from tests.prompts.builders import CHAT_TEMPLATE, byte_level_tokenizer, decoded_text, write_model

PLACE = "in.parquet: row 7"


def text(value: str) -> Prompt:
    return Prompt(7, text=value, place=PLACE)


def chat(*messages: tuple[str, str]) -> Prompt:
    return Prompt(7, messages=tuple({"role": role, "content": content} for role, content in messages), place=PLACE)


def codec_of(folder: Path, **keys: Any) -> Codec:
    return Codec.load(folder, **({"system": None, "chat": None} | keys))


def answer_of(codec: Codec, completion: str) -> tuple[str, str | None]:
    """Answer and reasoning of a completion of some prompt, given as text."""
    requests = codec.requests(text("hello"), [0])
    assert isinstance(requests, list)
    return codec.completion(requests[0], codec._tokenizer.encode(completion, add_special_tokens=False))


def tokens_of(codec: Codec, prompt: Prompt) -> list[str]:
    encoded = codec.encode(prompt)
    assert isinstance(encoded, list)
    return [str(token) for token in codec._tokenizer.convert_ids_to_tokens(encoded)]


def test_chat_text_is_one_user_message_with_one_bos(byte_level_model: Path) -> None:
    codec = codec_of(byte_level_model)
    assert codec.render(text("hello")) == "<s>[user]hello[assistant]"
    assert tokens_of(codec, text("hello")).count("<s>") == 1


def test_a_system_message_stands_before_the_prompt(byte_level_model: Path) -> None:
    codec = codec_of(byte_level_model, system="{{ be }} brief")
    assert codec.render(text("hello")) == "<s>[system]{{ be }} brief[user]hello[assistant]"
    assert codec.render(chat(("user", "a"), ("assistant", "b"), ("user", "c"))) == (
        "<s>[system]{{ be }} brief[user]a[assistant]b[user]c[assistant]"
    )
    assert codec.render(chat(("system", "own"), ("user", "a"))) == "<s>[system]own[user]a[assistant]"


def test_fields_that_a_message_lacks_are_not_defined_in_the_template(byte_level_model: Path) -> None:
    codec = codec_of(byte_level_model)
    named = Prompt(0, messages=({"role": "user", "content": "a", "name": "Ann"}, {"role": "user", "content": "b"}))
    assert codec.render(named) == "<s>[user Ann]a[user]b[assistant]"


@pytest.mark.parametrize("prompt", ["hello", "<s>hello"])
def test_plain_text_has_one_bos(byte_level_model: Path, prompt: str) -> None:
    codec = codec_of(byte_level_model, chat=False)
    assert codec.render(text(prompt)) == prompt
    tokens = tokens_of(codec, text(prompt))
    assert (tokens[0], tokens.count("<s>")) == ("<s>", 1)
    assert "".join(tokens[1:]) == "hello"


def test_a_tokenizer_without_a_template_takes_plain_text(sentence_piece_model: Path) -> None:
    codec = codec_of(sentence_piece_model)
    assert not codec.chat
    assert tokens_of(codec, text("hello"))[0] == "<s>"


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"chat": True}, "chat is on or the input is conversations"),
        ({"system": "Be brief."}, "input.system is set"),
    ],
)
def test_a_template_that_is_needed_and_missing(sentence_piece_model: Path, keys: dict[str, Any], why: str) -> None:
    with pytest.raises(ModelError) as caught:
        codec_of(sentence_piece_model, **keys)
    assert str(caught.value) == (
        f"{sentence_piece_model}: its tokenizer has no chat template, and the job needs one: {why}"
    )


def test_conversations_need_a_template(sentence_piece_model: Path, byte_level_model: Path) -> None:
    spec = InputSpec(path="x", messages="m")
    with pytest.raises(
        ModelError, match="has no chat template, and the job needs one: chat is on or the input is conv"
    ):
        Codec.for_input(sentence_piece_model, spec)
    assert Codec.for_input(byte_level_model, spec).chat
    assert not Codec.for_input(byte_level_model, InputSpec(path="x", column="c", chat=False)).chat
    with pytest.raises(ModelError, match="conversations need a chat template"):
        codec_of(sentence_piece_model).encode(chat(("user", "a")))


def test_a_template_that_refuses_a_conversation_spoils_its_row(byte_level_model: Path) -> None:
    error = codec_of(byte_level_model).encode(chat(("developer", "a"), ("user", "b")))
    assert error == RowError("bad_messages", f"{PLACE}: the model's chat template fails: no developers here")


@pytest.mark.parametrize(
    ("template", "system", "message"),
    [
        ("{{ raise_exception('never') }}", None, "its chat template fails: never"),
        ("{% for %}", None, "its chat template fails: "),
        (
            "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}",
            "x",
            "its chat template fails with input.system: no system",
        ),
    ],
)
def test_a_template_that_can_do_nothing_is_the_model_s_fault(
    tmp_path: Path, template: str, system: str | None, message: str
) -> None:
    folder = write_model(tmp_path, chat_template=template)
    with pytest.raises(ModelError) as caught:
        codec_of(folder, system=system)
    assert str(caught.value).startswith(f"{folder}: {message}")


def test_prompts_that_fit_the_context_and_prompts_that_do_not(byte_level_model: Path) -> None:
    codec = codec_of(byte_level_model, chat=False)
    assert codec.context_length == 32
    # One token for each digit, and the beginning-of-sequence token.
    fits = codec.encode(text("7" * 30))
    assert isinstance(fits, list)
    assert len(fits) == 31
    assert codec.encode(text("7" * 31)) == RowError(
        "prompt_too_long", f"{PLACE}: the prompt has 32 tokens, and the model's context of 32 leaves room for 31"
    )


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "budget"), [(10, 5, 5), (10, 22, 22), (10, 23, 22), (31, 256, 1)]
)
def test_completion_budget(byte_level_model: Path, prompt_tokens: int, max_tokens: int, budget: int) -> None:
    assert codec_of(byte_level_model).completion_budget(prompt_tokens, max_tokens) == budget


def test_without_a_known_context_nothing_is_too_long(sentence_piece_model: Path) -> None:
    codec = codec_of(sentence_piece_model)
    assert codec.context_length is None
    encoded = codec.encode(text("hello " * 1000))
    assert isinstance(encoded, list)
    assert codec.completion_budget(len(encoded), 99) == 99


def test_a_row_that_is_an_error_stays_one(byte_level_model: Path) -> None:
    error = RowError("missing_prompt", "x")
    assert codec_of(byte_level_model).encode(Prompt(0, error=error)) is error


def test_text_of_which_the_tokenizer_makes_nothing(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.normalizer = normalizers.Replace("#", "")
    tokenizer.post_processor = processors.ByteLevel()
    codec = codec_of(write_model(tmp_path, tokenizer), chat=False)
    assert codec.encode(text("##")) == RowError("empty_prompt", f"{PLACE}: the tokenizer makes no token of the prompt")


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({}, None, [1]),
        ({"eos_token_id": 5}, None, [1, 5]),
        ({"eos_token_id": [5, 6]}, None, [1, 5, 6]),
        ({"text_config": {"eos_token_id": 8}}, None, [1, 8]),
        ({"eos_token_id": 5, "text_config": {"eos_token_id": 8}}, None, [1, 5]),
        ({"eos_token_id": 5}, {"eos_token_id": [9, 7]}, [1, 7, 9]),
        ({"eos_token_id": 5}, {"temperature": 1}, [1, 5]),
        ({"eos_token_id": None}, {"eos_token_id": 0}, [0, 1]),
        # Ids that the model does not have, and what is no id.
        ({"eos_token_id": [5, -1, 511, 512, 100_000]}, None, [1, 5, 511]),
        ({}, {"eos_token_id": -1}, [1]),
        ({}, {"eos_token_id": [None, "6", True, 7]}, [1, 7]),
    ],
)
def test_end_tokens(
    tmp_path: Path, config: dict[str, Any], generation: dict[str, Any] | None, expected: list[int]
) -> None:
    folder = write_model(tmp_path, config=config, generation=generation)
    assert sorted(codec_of(folder).eos_token_ids) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"max_position_embeddings": 77}, 77),
        ({"text_config": {"max_position_embeddings": 78}}, 78),
        ({"max_position_embeddings": 0}, None),
        ({}, None),
    ],
)
def test_context_length(tmp_path: Path, config: dict[str, Any], expected: int | None) -> None:
    assert codec_of(write_model(tmp_path, config=config)).context_length == expected


def test_a_tokenizer_of_another_model(tmp_path: Path) -> None:
    size = codec_of(write_model(tmp_path / "a")).vocab_size
    assert codec_of(write_model(tmp_path / "b", config={"vocab_size": size})).vocab_size == size
    folder = write_model(tmp_path / "c", config={"vocab_size": size - 1})
    with pytest.raises(ModelError) as caught:
        codec_of(folder)
    assert str(caught.value) == (
        f"{folder}: the tokenizer has {size} tokens and the model {size - 1}; they do not belong together"
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", None, "{folder}: has no config.json; a model needs one"),
        ("config.json", "{", "{folder}/config.json: cannot be read as JSON: "),
        ("config.json", "[]", "{folder}/config.json: holds no JSON object"),
        ("generation_config.json", "\x00", "{folder}/generation_config.json: cannot be read as JSON: "),
        ("tokenizer.json", "{", "{folder}: its tokenizer cannot be loaded: "),
        ("tokenizer.json", '{"model": {"type": "new"}}', "{folder}: its tokenizer cannot be loaded: "),
        ("tokenizer.json", None, "{folder}: its tokenizer cannot be loaded: "),
        ("tokenizer_config.json", "[", "{folder}: its tokenizer cannot be loaded: "),
    ],
)
def test_broken_models(tmp_path: Path, byte_level_model: Path, name: str, content: str | None, message: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(byte_level_model, folder)
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
    with pytest.raises(ModelError) as caught:
        codec_of(folder)
    assert str(caught.value).startswith(message.format(folder=folder))
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="has no tokenizer"):
        codec_of(tmp_path)


def test_code_of_a_model_is_never_run(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    settings_path = folder / "tokenizer_config.json"
    settings_path.write_text(
        json.dumps(
            json.loads(settings_path.read_text())
            | {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}}
        )
    )
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Own: pass\n")
    try:
        codec_of(folder)
    except ModelError as error:
        assert "its tokenizer cannot be loaded" in str(error)
    assert not (tmp_path / "ran").exists()


def test_nothing_is_said_while_loading_and_encoding(
    byte_level_model: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        codec = codec_of(byte_level_model, chat=False)
        codec._tokenizer.model_max_length = 3
        decoded_text(
            codec, codec._tokenizer.convert_tokens_to_ids(tokens_of(codec, text("a longer text than three tokens")))
        )
    assert caplog.text == ""
    assert capfd.readouterr() == ("", "")


# Text as mlx-lm shows it, for whatever tokens a model may generate.


def shown_by_mlx_lm(folder: Path, tokens: Sequence[int]) -> str:
    wrapper = mlx_lm.tokenizer_utils.load(folder)
    detokenizer = wrapper.detokenizer
    for token in tokens:
        if token in wrapper.eos_token_ids:
            break
        detokenizer.add_token(token)
    detokenizer.finalize()
    return str(detokenizer.text)


SAMPLES = [
    "hello world",
    "trailing ",
    "naïve café , don 't !",
    "日本語 🎉 emoji",
    "\n\n indented\n  more",
    "a ,b . c",
    "12 + 34 = 46",
]


@pytest.mark.parametrize(
    ("model", "sample"),
    [
        *(("byte_level_model", sample) for sample in [*SAMPLES, " hello", "  two spaces", " "]),
        *(("sentence_piece_model", sample) for sample in SAMPLES),
    ],
)
@pytest.mark.parametrize("ended", [False, True])
def test_decoded_text_is_mlx_lm_s(request: pytest.FixtureRequest, model: str, sample: str, ended: bool) -> None:
    folder: Path = request.getfixturevalue(model)
    codec = codec_of(folder, chat=False)
    tokens = codec._tokenizer.encode(sample, add_special_tokens=False)
    if ended:
        tokens = [*tokens, codec._tokenizer.eos_token_id]
    assert decoded_text(codec, tokens) == shown_by_mlx_lm(folder, tokens)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_tokens_decode_to_mlx_lm_s_text(byte_level_model: Path, data: st.DataObject) -> None:
    codec = codec_of(byte_level_model, chat=False)
    # Special tokens are not shown here; and mlx-lm takes the token of byte 0 for the letter that stands for it.
    left_out = {0, 1, 2, codec._tokenizer.convert_tokens_to_ids("Ā")}
    tokens = data.draw(st.lists(st.integers(0, codec.vocab_size - 1).filter(lambda n: n not in left_out), max_size=12))
    decoded = decoded_text(codec, tokens)
    assert decoded == shown_by_mlx_lm(byte_level_model, tokens)
    decoded.encode()


def test_special_tokens_are_not_shown_and_only_one_end_token_goes(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer()
    plain_end: int = tokenizer.get_vocab()["a"]
    codec = codec_of(write_model(tmp_path, tokenizer, generation={"eos_token_id": plain_end}))
    word = codec._tokenizer.encode("hello", add_special_tokens=False)
    assert decoded_text(codec, [0, *word, 2, 1]) == "hello"
    assert decoded_text(codec, [*word, plain_end, plain_end]) == "helloa"
    assert decoded_text(codec, [plain_end]) == ""
    assert decoded_text(codec, [1]) == decoded_text(codec, []) == ""


THINKING = CHAT_TEMPLATE.replace("[assistant]", "[assistant]<think>\n")


@pytest.mark.parametrize(
    ("template", "completion", "answer", "reasoning"),
    [
        (CHAT_TEMPLATE, "just text", "just text", None),
        (CHAT_TEMPLATE, "<think>\nwhy\n</think>\n\nanswer", "answer", "why"),
        (CHAT_TEMPLATE, "\n<think></think>answer", "answer", ""),
        (CHAT_TEMPLATE, "<think>never closed", "", "never closed"),
        (CHAT_TEMPLATE, "says </think> itself", "says </think> itself", None),
        (CHAT_TEMPLATE, "late <think>x</think>", "late <think>x</think>", None),
        (THINKING, "why\n</think>\n\nanswer </think>", "answer </think>", "why"),
        (THINKING, "never closed", "", "never closed"),
        (THINKING, "<think>again</think>answer", "answer", "again"),
    ],
)
def test_reasoning(tmp_path: Path, template: str, completion: str, answer: str, reasoning: str | None) -> None:
    codec = codec_of(write_model(tmp_path, chat_template=template))
    assert answer_of(codec, completion) == (answer, reasoning)


def test_a_model_that_does_not_think_has_no_reasoning(sentence_piece_model: Path) -> None:
    assert answer_of(codec_of(sentence_piece_model), "<think>a</think>b") == ("<think>a</think>b", None)


def test_thinking_marks_that_are_special_tokens_are_still_seen(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.add_special_tokens(["<think>", "</think>"])
    codec = codec_of(write_model(tmp_path, tokenizer))
    assert answer_of(codec, "<think>why</think>hello</s>") == ("hello", "why")


def test_identity_follows_tokenizer_template_and_end_tokens(tmp_path: Path, byte_level_model: Path) -> None:
    def changed(name: str, change: dict[str, Any] | str, **keys: Any) -> list[str]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        shutil.copytree(byte_level_model, folder)
        path = folder / name
        if isinstance(change, str):
            path.write_text(change)
        else:
            path.write_text(json.dumps(json.loads(path.read_text()) | change))
        new = codec_of(folder, **keys).identity
        return [key for key, value in codec_of(byte_level_model).identity.items() if new[key] != value]

    assert changed("config.json", {"architectures": ["X"]}) == []
    assert changed("config.json", {"eos_token_id": 9}) == ["eos_token_ids"]
    assert changed("chat_template.jinja", CHAT_TEMPLATE + "!") == ["tokenizer", "chat_template"]
    assert changed("tokenizer_config.json", {"extra": 1}) == ["tokenizer"]
    assert changed("config.json", {}, chat=False) == ["chat", "chat_template"]


def test_a_template_that_asks_for_the_date_is_told_the_pinned_one(tmp_path: Path) -> None:
    template = "{{ strftime_now('%d %b %Y') }}:{% for message in messages %}{{ message.content }}{% endfor %}"
    codec = codec_of(write_model(tmp_path, chat_template=template))
    codec.pin_time("2030-05-06T23:59:00+00:00")
    assert codec.render(Prompt(row=0, text="hi")) == "06 May 2030:hi"


def test_a_template_whose_date_cannot_be_pinned_is_refused(tmp_path: Path) -> None:
    template = "{% set form = '%d' %}{{ strftime_now(form) }}{{ messages[0].content }}"
    with pytest.raises(ModelError, match="asks for the date in a form that cannot be held still"):
        codec_of(write_model(tmp_path, chat_template=template))

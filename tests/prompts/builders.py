"""Small Parquet files, and model folders with a tokenizer trained on a few lines, for tests."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from batchgen.job.spec import InputSpec, SamplingSpec
from batchgen.prompts.encode import Codec
from batchgen.prompts.read import InputTable
from batchgen.types import Prompt, Sampling

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'developer' %}{{ raise_exception('no developers here') }}{% endif %}"
    "[{{ message.role }}{% if message.name is defined %} {{ message.name }}{% endif %}]{{ message.content }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
THINKING_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}[assistant]"
    "{% if enable_thinking is defined %}{{ '<think>\n' if enable_thinking else '<think>\n\n</think>\n\n' }}{% endif %}"
)
"""Opens a thinking block if told to think, writes an empty one if told not to, and leaves it open to the model else."""
LINES = ["the cat sat on the mat, and the dog too", "Summarize: hello hello world", "naïve café 12 + 34 = 46"]


def write(path: Path, columns: Mapping[str, Any] | pa.Table, row_group_size: int | None = None) -> Path:
    """Writes a Parquet file of these columns, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = columns if isinstance(columns, pa.Table) else pa.table(dict(columns))
    pq.write_table(table, path, row_group_size=row_group_size)
    return path


def invalid_text(values: Sequence[bytes | None], kind: pa.DataType | None = None) -> pa.Array:
    """A string column that holds these bytes, valid UTF-8 or not."""
    return pa.array(values, pa.binary()).view(pa.string()).cast(kind or pa.string())


def open_table(
    path: Path | Sequence[Path], *, sampling: Mapping[str, Any] = MappingProxyType({}), **keys: Any
) -> InputTable:
    """Opens an input as a job with these keys under `input`, and those under `sampling`, would."""
    given = str(path) if isinstance(path, Path) else [str(each) for each in path]
    spec = InputSpec.model_validate({"path": given} | keys)
    return InputTable.open(spec, SamplingSpec.model_validate(dict(sampling)))


def prompts_of(path: Path | Sequence[Path], **keys: Any) -> list[Prompt]:
    return list(open_table(path, **keys).prompts())


def decoded_text(codec: Codec, tokens: Sequence[int]) -> str:
    """The text of a completion's tokens, thinking and all, without an end token and other special tokens."""
    return codec._text.text(codec._without_end(tokens, Sampling()))


def outcomes(prompts: Sequence[Prompt]) -> list[str]:
    """For each prompt its text, or the kind of its error."""
    return [prompt.error.kind if prompt.error else str(prompt.text) for prompt in prompts]


def byte_level_tokenizer(markers: Sequence[str] = ("<think>", "</think>")) -> Tokenizer:
    """GPT-2's way; `markers` are tokens of their own that are shown."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<s>", "</s>", "<pad>"]
    trainer = trainers.BpeTrainer(
        vocab_size=340, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(LINES * 5, trainer)
    tokenizer.add_tokens([AddedToken(marker, special=False) for marker in markers])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


def sentence_piece_tokenizer() -> Tokenizer:
    """Laid out like Llama's: spaces are `▁`, unknown bytes have tokens of their own, a leading space is added."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(?=▁)"), "isolated")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(LINES * 5, trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if not token["content"].startswith("<0x")]
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def write_model(
    folder: Path,
    tokenizer: Tokenizer | None = None,
    *,
    chat_template: str | None = CHAT_TEMPLATE,
    config: Mapping[str, Any] | None = None,
    generation: Mapping[str, Any] | None = None,
    **special: str,
) -> Path:
    """A model folder as far as text goes: config, tokenizer, and a weight file that nobody reads."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 512} | dict(config or {})))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    (tokenizer or byte_level_tokenizer()).save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>"} | special
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": True} | names
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if chat_template is not None:
        (folder / "chat_template.jinja").write_text(chat_template)
    (folder / "model.safetensors").write_bytes(b"never read")
    return folder

"""What a drafter's config.json is read as, and what it is refused for."""

import json

import pytest

from batchgen.engine.drafters.config import DrafterConfig, LayerKind, check_pair
from batchgen.errors import ModelError
from tests.engine import builders

FULL, SLIDING = builders.FULL, builders.SLIDING
MISSING = object()


@pytest.fixture
def folders(tmp_path):
    target = builders.tiny_hybrid(tmp_path / "target", 1)
    return target, builders.tiny_drafter(tmp_path / "drafter", 2, target, 2, (FULL, SLIDING))


def _edit(folder, changes):
    """Changes keys of config.json; a dot leads into an object, MISSING deletes."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for key, value in changes.items():
        *parents, last = key.split(".")
        section = config
        for parent in parents:
            section = section[parent]
        if value is MISSING:
            del section[last]
        else:
            section[last] = value
    path.write_text(json.dumps(config))
    return folder


def test_every_figure_is_read(folders):
    config = DrafterConfig.from_folder(folders[1])
    assert config.version == 2
    assert (config.hidden_size, config.intermediate_size, config.vocab_size) == (64, 96, 96)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (8, 4, 16)
    assert config.layer_kinds == (LayerKind(None, False), LayerKind(8, True))
    assert (config.block_size, config.target_layer_ids, config.mask_token_id) == (8, (1, 3), 95)
    assert (config.conv_kernel_size, config.conv_group_size) == (3, 16)
    assert (config.selector_rank, config.selector_top_k) == (16, 6)
    assert (config.input_embedding_scale, config.output_multiplier) == (1.0, 1.0)
    assert config.final_logit_softcapping is None
    assert (config.rope_theta, config.rope_scaling) == (10000.0, None)


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"architectures": MISSING}, "version", 1),
        ({"architectures": ["DFlashDraftModel"]}, "selector_top_k", 0),
        ({"is_causal": True}, "layer_kinds", (LayerKind(None, True), LayerKind(8, True))),
        ({"is_causal": False}, "layer_kinds", (LayerKind(None, False), LayerKind(8, False))),
        ({"layer_types": MISSING}, "layer_kinds", (LayerKind(None, False), LayerKind(None, False))),
        ({"block_size": MISSING}, "block_size", 16),
        ({"dflash_config.block_size": 5}, "block_size", 5),
        ({"rope_theta": MISSING}, "rope_theta", 10000.0),
        ({"rope_theta": MISSING, "rope_scaling": {"rope_theta": 5000}}, "rope_theta", 5000.0),
        ({"rope_parameters": {"rope_theta": 5}, "rope_theta": 7}, "rope_theta", 7.0),
        ({"rope_parameters": {}, "rope_scaling": {"type": "linear", "factor": 2}}, "rope_scaling",
         {"type": "linear", "factor": 2}),
        ({"final_logit_softcapping": 30}, "final_logit_softcapping", 30.0),
        ({"final_logit_softcapping": 3, "dflash_config.final_logit_softcapping": None},
         "final_logit_softcapping", None),
        ({"final_logit_softcapping": 0}, "final_logit_softcapping", None),
        ({"dflash_config.output_multiplier": 2}, "output_multiplier", 2.0),
        ({"attention_bias": True, "hidden_act": "gelu"}, "rms_norm_eps", 1e-6),
    ],
)  # fmt: skip
def test_optional_keys(folders, changes, field, value):
    assert getattr(DrafterConfig.from_folder(_edit(folders[1], changes)), field) == value


REFUSALS = [
    ("hidden_size", MISSING, " is missing, expected an integer of at least 1"),
    ("architectures", 5, " is 5, expected a list of names"),
    ("rope_theta", 0, " is 0, expected a number above 0"),
    ("head_dim", 0, " is 0, expected a multiple of 2 of at least 1"),
    ("head_dim", 15, " is 15, expected a multiple of 2 of at least 1"),
    ("vocab_size", True, " is True, expected an integer of at least 1"),
    ("rms_norm_eps", "1e-6", " is '1e-6', expected a number above 0"),
    ("num_key_value_heads", 3, " is 3, expected a divisor of num_attention_heads (8)"),
    ("layer_types", [FULL], f" is ['{FULL}'], expected a list of 2 names (num_hidden_layers)"),
    ("layer_types", [FULL, "chunked"], f" is ['{FULL}', 'chunked'], expected only {FULL} and {SLIDING}"),
    ("sliding_window", MISSING, " is missing, expected an integer of at least 2"),
    ("sliding_window", 1, " is 1, expected an integer of at least 2"),
    ("is_causal", "yes", " is 'yes', expected true, false or null"),
    ("block_size", 1, " is 1, expected an integer of at least 2"),
    ("rope_scaling", {"type": "dynamic", "factor": 2}, ".type is 'dynamic', expected one of default, linear, llama3"),
    ("rope_parameters", {"rope_type": "mrope"}, ".rope_type is 'mrope', expected one of default, linear, llama3"),
    ("rope_scaling", {"type": "yarn"}, ".factor is missing, expected a value, since the rope type is yarn"),
    ("rope_scaling", 8, " is 8, expected an object"),
    ("quantization", {"bits": 4}, " is {'bits': 4}, expected no such key: quantized drafter checkpoints"),
    ("dflash_config", MISSING, " is missing, so this is no DFlash drafter"),
    ("dflash_config.block_size", 1, " is 1, expected an integer of at least 2"),
    ("dflash_config.mask_token_id", 96, " is 96, expected an integer of at least 0 and at most 95"),
    ("dflash_config.mask_token_id", MISSING, " is missing, expected an integer of at least 0 and at most 95"),
    ("dflash_config.target_layer_ids", [], " is [], expected a list of layer numbers"),
    ("dflash_config.target_layer_ids", [1, 4], " is [1, 4], expected numbers from 0 to 3 (num_target_layers)"),
    ("dflash_config.target_layer_ids", [-1], " is [-1], expected numbers from 0 to 3 (num_target_layers)"),
    ("dflash_config.conv_group_size", 12, " is 12, expected a divisor of hidden_size (64)"),
    ("dflash_config.conv_kernel_size", MISSING, " is missing, expected an integer of at least 1"),
    ("dflash_config.selector_rank", 0, " is 0, expected an integer of at least 1"),
    ("dflash_config.selector_top_k", 0, " is 0, expected an integer of at least 1 and at most 96"),
    ("dflash_config.selector_top_k", 97, " is 97, expected an integer of at least 1 and at most 96"),
    ("dflash_config.output_multiplier", -1, " is -1, expected a number above 0"),
]


@pytest.mark.parametrize(("key", "value", "message"), REFUSALS)
def test_refusals_name_file_key_found_and_expected(folders, key, value, message):
    folder = _edit(folders[1], {key: value})
    with pytest.raises(ModelError) as caught:
        DrafterConfig.from_folder(folder)
    assert str(caught.value).startswith(f"{folder}/config.json: {key}{message}")


@pytest.mark.parametrize("text", ["[1]", "{", None])
def test_a_folder_without_a_usable_config_is_refused(tmp_path, text):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=f"^{tmp_path}/config.json: "):
        DrafterConfig.from_folder(tmp_path)


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "num_hidden_layers"])
def test_a_pair_that_does_not_fit_is_refused_with_both_figures(folders, key):
    target, drafter = folders
    config = json.loads((target / "config.json").read_text())
    check_pair(DrafterConfig.from_folder(drafter), config)
    check_pair(DrafterConfig.from_folder(drafter), config["text_config"])

    made_for = config["text_config"][key]
    config["text_config"][key] = 1000
    drafter_key = {"num_hidden_layers": "num_target_layers"}.get(key, key)
    with pytest.raises(ModelError) as caught:
        check_pair(DrafterConfig.from_folder(drafter), config)
    assert str(caught.value) == (
        f"{drafter}/config.json: {drafter_key} is {made_for}, but the target's {key} is 1000: "
        "this drafter was made for another target"
    )

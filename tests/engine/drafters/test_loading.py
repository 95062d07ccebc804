"""Checkpoints in the reference layout load as they are; anything else is refused by name."""

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from batchgen.engine.drafters.loading import load_model
from batchgen.errors import ModelError
from tests.engine import builders
from tests.engine.drafters.conftest import bind


@pytest.fixture
def target(tmp_path):
    return builders.tiny_dense(tmp_path / "target", 1)


@pytest.fixture
def folder(tmp_path, target):
    return builders.tiny_drafter(tmp_path / "drafter", 2, target)


def _rewrite(folder, change):
    path = folder / "model.safetensors"
    weights = dict(mx.load(str(path)))
    mx.eval(weights)
    change(weights)
    mx.save_safetensors(str(path), weights)


def test_tensor_names_are_those_of_the_reference(folder):
    names = sorted(name for name, _ in tree_flatten(load_model(folder).parameters()))
    layer = ["input_layernorm.weight", "post_attention_layernorm.weight"]
    layer += [f"mlp.{name}.weight" for name in ("gate_proj", "up_proj", "down_proj")]
    layer += [f"self_attn.{name}.weight" for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")]
    for conv in ("attention_conv", "mlp_conv"):
        layer += [f"{conv}.base_kernel", f"{conv}.kernel_projection.weight"]
    expected = ["fc.weight", "hidden_norm.weight", "norm.weight", "candidate_selector.predecessor_codebook"]
    expected += ["candidate_selector.successor_codebook", "candidate_selector.hidden_projection.weight"]
    expected += [f"layers.{index}.{name}" for index in range(2) for name in layer]
    assert names == sorted(expected)


def test_all_files_of_a_folder_are_read(folder):
    weights = dict(mx.load(str(folder / "model.safetensors")))
    mx.eval(weights)
    names = sorted(weights)
    (folder / "model.safetensors").unlink()
    for part, chosen in enumerate((names[::2], names[1::2])):
        mx.save_safetensors(str(folder / f"model-{part}.safetensors"), {name: weights[name] for name in chosen})
    loaded = dict(tree_flatten(load_model(folder).parameters()))
    assert all(mx.array_equal(loaded[name], weights[name]) for name in names)


def test_missing_and_extra_tensors_are_named(folder):
    def change(weights):
        weights["candidate_selector.predecessor_codebook.weight"] = weights.pop(
            "candidate_selector.predecessor_codebook"
        )

    _rewrite(folder, change)
    with pytest.raises(ModelError) as caught:
        load_model(folder)
    assert str(caught.value) == (
        f"{folder}: the checkpoint lacks candidate_selector.predecessor_codebook and has also "
        "candidate_selector.predecessor_codebook.weight, which does not fit its config.json"
    )


def test_many_missing_tensors_are_counted(folder):
    _rewrite(folder, lambda weights: [weights.pop(name) for name in list(weights) if name.startswith("layers.1.")])
    with pytest.raises(ModelError, match=r"lacks layers\.1\.attention_conv\.base_kernel, .* and 12 more, which"):
        load_model(folder)


def test_a_wrong_shape_is_named(folder):
    _rewrite(folder, lambda weights: weights.update({"fc.weight": mx.zeros((64, 64))}))
    with pytest.raises(ModelError, match=r"fc\.weight has shape \[64, 64\], but config\.json makes it \[64, 128\]$"):
        load_model(folder)


def test_quantized_weights_are_refused(folder):
    _rewrite(folder, lambda weights: weights.update({"fc.scales": mx.zeros((64, 2))}))
    with pytest.raises(ModelError, match="the weights are quantized"):
        load_model(folder)


def test_a_folder_without_readable_weights_is_refused(folder):
    (folder / "model.safetensors").write_bytes(b"\x00" * 4)
    with pytest.raises(ModelError, match=r"model\.safetensors: is not a readable safetensors file"):
        load_model(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"holds no \*\.safetensors file"):
        load_model(folder)


def test_weights_take_the_dtype_of_the_target_or_the_one_asked_for(target, folder):
    _rewrite(folder, lambda weights: weights.update({name: a.astype(mx.float16) for name, a in weights.items()}))
    for options, dtype in (({}, mx.float32), ({"dtype": mx.bfloat16}, mx.bfloat16)):
        drafter = bind(target, folder, **options)
        assert sorted({str(array.dtype) for _, array in tree_flatten(drafter.model.parameters())}) == [str(dtype)]
        context = drafter.make_context(1)
        drafter.extend(context, mx.ones((1, 3, 128)), mx.array([3]))
        drafts = drafter.propose(context, mx.array([7]), 4)
        assert [array.dtype for array in context.arrays()] == [mx.int32] + [dtype] * 4
        assert (drafts.shape, drafts.dtype) == ((1, 3), mx.int32)


def test_the_target_is_no_part_of_the_drafter(target, folder):
    """Saving or quantizing a bound drafter must not touch the target."""
    drafter = bind(target, folder)
    drafter.propose(drafter.make_context(1), mx.array([1]), 4)
    shapes = sorted(array.shape for _, array in tree_flatten(drafter.model.parameters()))
    assert shapes == sorted(array.shape for array in mx.load(str(folder / "model.safetensors")).values())


def test_a_padded_head_never_yields_ids_past_the_vocabulary(tmp_path, target):
    for version in (1, 2):
        folder = builders.tiny_drafter(tmp_path / f"v{version}", 2, target, version)
        drafter = bind(target, folder)
        head = drafter._head
        drafter._head = lambda hidden, head=head: mx.pad(head(hidden), [(0, 0), (0, 0), (0, 32)], constant_values=1e4)
        drafts = drafter.propose(drafter.make_context(2), mx.array([1, 2]), 6)
        assert mx.max(drafts).item() < builders.VOCAB

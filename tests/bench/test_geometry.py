"""Measuring a geometry: shapes, floors against figures made by hand, and whole measurements of the tiny ones.

Nothing is asserted about time.
"""

import json
import math

import mlx.core as mx
import pytest

from batchgen.bench import geometry_floor, geometry_models, geometry_prefill
from batchgen.bench.geometry import bench_geometry
from batchgen.bench.geometry_floor import Traffic, bandwidth_of, drafted_traffic, target_traffic
from batchgen.bench.geometry_models import RandomPair, make_pair, parameters_of, within_memory
from batchgen.bench.geometry_prefill import PrefillPlan, bench_prefill
from batchgen.bench.geometry_report import GeometryPlan
from batchgen.bench.geometry_sides import EngineDecoding, random_prompts
from batchgen.bench.geometry_specs import GEOMETRIES, drafter_config, target_config
from batchgen.errors import EngineError

NUM_PARAMETERS = {
    "qwen3.5-27b": 26_895_998_464,
    "qwen3.5-4b": 4_205_751_296,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
}


def pair_of(name: str, dtype: str = "float32") -> RandomPair:
    return make_pair(name, 8, dtype, lambda line: None)


def plan_of(name: str, **changes: object) -> GeometryPlan:
    values = {
        "geometry": name,
        "batches": (1, 3),
        "acceptances": (3.0, 5.33),
        "block": 8,
        "context": 20,
        "tokens": 8,
        "repeats": 1,
        "dtype": "float32",
    }
    return GeometryPlan(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NUM_PARAMETERS)
def test_targets_are_as_large_as_the_published_ones(name: str) -> None:
    """Counted on models whose weights are never evaluated."""
    model = geometry_models.build_target(GEOMETRIES[name].target)
    assert sum(array.size for array in parameters_of(model).values()) == NUM_PARAMETERS[name]


@pytest.mark.parametrize("name", GEOMETRIES)
def test_configs_fit_each_other(name: str) -> None:
    geometry = GEOMETRIES[name]
    config, target = drafter_config(geometry, 8), target_config(geometry.target)
    text = target.get("text_config", target)
    assert (config.hidden_size, config.vocab_size) == (text["hidden_size"], text["vocab_size"])
    ids = config.target_layer_ids
    assert sorted(set(ids)) == list(ids)
    assert 1 <= ids[0] < ids[-1] <= text["num_hidden_layers"] - 2
    assert config.hidden_size % config.conv_group_size == 0


def test_weights_are_random_where_they_should_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(geometry_models, "_PIECE", 1000)  # so that most are drawn in pieces
    pair = pair_of("tiny-hybrid", "bfloat16")
    target = parameters_of(pair.target.model)
    for name, array in target.items():
        assert array.dtype == (mx.float32 if name.endswith("A_log") else mx.bfloat16), name
    spread = mx.std(target["language_model.model.embed_tokens.weight"].astype(mx.float32)).item()
    assert spread == pytest.approx(0.02, rel=0.1)
    assert mx.all(target["language_model.model.norm.weight"] == 1).item()
    drafter = parameters_of(pair.drafter.model)
    for name in ("candidate_selector.successor_codebook", "layers.0.mlp_conv.kernel_projection.weight", "fc.weight"):
        assert mx.std(drafter[name].astype(mx.float32)).item() == pytest.approx(0.02, rel=0.1)
    again = parameters_of(pair_of("tiny-hybrid", "bfloat16").target.model)
    assert all(mx.array_equal(target[name], again[name]).item() for name in target)


def test_floor_of_a_dense_target() -> None:
    """tiny-dense: 4 layers of 2 key heads of 16, the embedding tied to the head; a drafter of 2 layers alike."""
    pair = pair_of("tiny-dense")
    target, drafted = target_traffic(pair), drafted_traffic(pair)
    layer = 64 * 64 * 2 + 64 * 32 * 2 + 16 * 2 + 64 * 2 + 3 * 64 * 96
    assert target == Traffic(weights=4 * (256 * 64 + 4 * layer + 64), per_token=4 * 4 * 2 * 2 * 16, per_row=0)
    convolutions = 2 * (2 * 4 * 64 + 64 * 2 * 4 * 4)
    drafter = 2 * 64 * 64 + 64 + 2 * (layer + convolutions) + 64 + 16 * 64
    assert drafted.weights == target.weights + 4 * (drafter + 256 * 64)
    assert drafted.per_token == target.per_token + 4 * 2 * 2 * 2 * 16
    assert target.bytes(3, 10.0) == target.weights + 3 * 10 * 1024


def test_floor_of_a_hybrid_target() -> None:
    """tiny-hybrid: 6 of 8 layers recurrent with 4 heads of 16 x 16 in float32; the embedding isn't the head."""
    pair = pair_of("tiny-hybrid", "bfloat16")
    traffic = target_traffic(pair)
    assert traffic.weights == pair.target_bytes - 256 * 64 * 2
    assert traffic.per_token == 2 * 2 * 2 * 2 * 16
    assert traffic.per_row == 6 * 2 * 4 * 16 * 16 * 4
    assert drafted_traffic(pair).per_row == traffic.per_row


def test_bandwidth_is_stated_or_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bandwidth_of("NVIDIA H200").bytes_per_s == 4.8e12
    assert bandwidth_of("NVIDIA H100 80GB HBM3").bytes_per_s == 3.35e12
    assert bandwidth_of("NVIDIA H100 PCIe").bytes_per_s == 2.0e12
    assert bandwidth_of("Apple M3 Max") == geometry_floor.Bandwidth(4.0e11, "stated for Apple M3 Max")
    measured = bandwidth_of("abacus", copy_bytes=1 << 16)
    assert measured.source == "measured by copying"
    assert 0 < measured.bytes_per_s < math.inf


def test_prompts_are_the_same_in_every_run_and_leave_the_mask_out() -> None:
    prompts = random_prompts(3, 500, 8)
    assert prompts == random_prompts(3, 500, 8)
    assert [len(tokens) for tokens in prompts] == [500] * 3
    assert {token for tokens in prompts for token in tokens} == set(range(7))


def test_rows_join_one_after_the_other_and_lengths_are_those_of_the_tokens() -> None:
    """Eleven long prompts are read in several groups, so early rows are longer when the last has come."""
    pair = pair_of("tiny-dense")
    prompts = random_prompts(11, 500, 256)
    timed = EngineDecoding(pair, 8, 3.0).decode(prompts, 16)
    assert timed.tokens_per_round == pytest.approx(3.0, abs=0.05)
    assert len(timed.round_s) == 2
    warm, half = 9 * 3.0, 16 * 3.0 / 2
    assert 500 + warm + half - 4 < timed.mean_length < 500 + warm + half + 8


@pytest.mark.parametrize("name", ["tiny-hybrid", "tiny-dense"])
def test_all_sides_are_measured(name: str) -> None:
    said: list[str] = []
    report = bench_geometry(plan_of(name), said.append)
    drafted = ["with drafter, 3 a round", "with drafter, 5.33 a round", "without drafter"]
    assert [one.side for one in report.measured if one.num_rows == 1] == [
        *drafted,
        "mlx_lm generate_step",
        "mlx_lm BatchGenerator",
    ]
    assert [one.side for one in report.measured if one.num_rows == 3] == [*drafted, "mlx_lm BatchGenerator"]
    assert len(said) == 1 + 5 + 4
    for one in report.measured:
        assert one.tokens_per_row_and_round == pytest.approx(one.wanted_acceptance or 1.0, abs=0.1)
        assert one.efficiency == pytest.approx(one.speedup / one.tokens_per_row_and_round)
        assert one.tokens_per_s == pytest.approx(1e3 * one.num_rows * one.tokens_per_row_and_round / one.ms_per_round)
        assert one.floor_share == pytest.approx(one.floor_ms / one.ms_per_round)
        assert min(one.prefill_s, one.peak_bytes, *one.window_ms) > 0
    for num_rows in (1, 3):
        best = max(one.speedup for one in report.measured if one.num_rows == num_rows and "mlx_lm" in one.side)
        assert best == 1.0


def test_report_puts_ratios_first_and_json_holds_everything() -> None:
    report = bench_geometry(plan_of("tiny-dense", batches=(2,), acceptances=(4.0,)), lambda line: None)
    text = "\n".join(report.lines())
    assert " ".join(text.splitlines()[0].split()) == (
        "2 rows times as fast efficiency tokens/round of floor ms/round rounds/s tokens/s prefill s peak GB"
    )
    assert "tiny-dense with random weights in float32" in text
    assert "bandwidth " in text
    assert text.splitlines()[-1].startswith("device ")
    written = json.loads(json.dumps(report.to_json()))
    assert set(written) == {"plan", "models", "bandwidth", "machine", "measured"}
    assert set(written["models"]) == {"geometry", "dtype", "block", "target_bytes", "drafter_bytes"}
    assert [one["wanted_acceptance"] for one in written["measured"]] == [4.0, None, None]
    assert set(written["measured"][0]) >= {
        "speedup",
        "efficiency",
        "tokens_per_row_and_round",
        "ms_per_round",
        "rounds_per_s",
        "tokens_per_s",
        "floor_ms",
        "floor_share",
        "prefill_s",
        "peak_bytes",
        "window_ms",
    }


def test_prefill_alone() -> None:
    report = bench_prefill(PrefillPlan("tiny-hybrid", (256, 40), 8, 1, "float32"), lambda line: None)
    cases = list(dict.fromkeys((one.num_rows, one.length) for one in report.measured))
    assert cases == [(1, 40), (1, 256), (8, 256)]
    assert len(report.measured) == 9
    assert all(one.speedup is not None and one.prefill_s and one.peak_bytes for one in report.measured)
    written = json.loads(json.dumps(report.to_json()))
    assert set(written) == {"plan", "models", "machine", "measured"}
    assert set(written["measured"][0]) >= {"prefill_s", "tokens_per_s", "speedup", "peak_bytes", "seconds"}
    assert report.lines()[0].splitlines()[0].split()[:4] == ["1", "row", "of", "40"]


def test_mlx_lm_is_skipped_where_it_would_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(geometry_prefill, "_MOST_MLX_LM_S", 0.0)
    report = bench_prefill(PrefillPlan("tiny-dense", (10, 20, 40), 8, 1, "float32"), lambda line: None)
    first, second, third = (one for one in report.measured if one.side == "mlx_lm generate_step")
    assert (first.expected_s, second.prefill_s, third.prefill_s) == (None, None, None)
    assert first.prefill_s is not None
    assert second.expected_s == pytest.approx(2 * first.prefill_s)
    assert third.expected_s == pytest.approx(4 * first.prefill_s)
    assert [one.speedup for one in report.measured if one.length == 40] == [None] * 3
    assert sum("mlx_lm generate_step was skipped" in line for line in report.lines()) == 2


def test_what_does_not_fit_is_named() -> None:
    message = r"^a large model does not fit the device's memory \(\[malloc\] no\)$"
    with pytest.raises(EngineError, match=message), within_memory("a large model"):
        raise RuntimeError("[malloc] no\nmore")
    with pytest.raises(RuntimeError, match="another fault"), within_memory("a large model"):
        raise RuntimeError("another fault")

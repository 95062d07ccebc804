"""The recipe of the bundled pair, from nothing to measured checkpoints: tokenizer, target, answers, drafter, figures.

Owns the order of things and the folder's layout; how each part is done is the other files' business.
"""

import json
import math
import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn

from batchgen.engine.drafters.dflash2 import DFlash2Model
from batchgen.engine.drafters.loading import load_model as load_drafter
from batchgen.training import drafter as drafters
from batchgen.training import target as targets
from batchgen.training.data import WIDTHS, Example, encode, example_chunks
from batchgen.training.evaluate import acceptance, exact_matches
from batchgen.training.greedy import answer
from batchgen.training.loops import Progress, Settings, train_drafter, train_target
from batchgen.training.optimiser import in_dtype, num_parameters
from batchgen.training.prompts import held_out_samples, read_prompts
from batchgen.training.schedule import Budget, Clock
from batchgen.training.tasks import GENERATORS
from batchgen.training.tokenizer import SPECIAL_TOKENS, TURN_END, load_tokenizer, save_tokenizer, train_tokenizer

TARGET, DRAFTER = "tiny", "tiny-dflash2"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")

# What the drafter is trained to draft; nearer to what the bundled jobs ask than the target's own mix.
DRAFTER_MIX = {"summary": 0.4, "math": 0.25, "code": 0.15, "prose": 0.2}

# Validation samples of one task while training; another seed than the prompts file's.
NUM_VALIDATION = 128


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that a run can be told. Budgets None mean no limit of that kind; seconds 0 skip the training."""

    out: Path
    prompts: Path
    seed: int
    target_budget: Budget
    drafter_budget: Budget
    target_rate: float
    drafter_rate: float
    target_batch_tokens: int
    drafter_batch_tokens: int
    num_answers: int
    num_anchors: int
    num_workers: int
    dtype: mx.Dtype
    report_every_s: float
    resume: Path | None = None


@dataclass(slots=True)
class Log:
    """Lines for the reader and figures for metrics.json."""

    say: Callable[[str], None]
    figures: dict[str, Any] = field(default_factory=dict)


def make_pair(recipe: Recipe, clock: Clock, say: Callable[[str], None]) -> dict[str, Any]:
    """Makes or goes on with the pair in `recipe.out` and returns its figures, as written to metrics.json there."""
    log = Log(say, {"device": str(mx.default_device()), "seed": recipe.seed})
    _place_tokenizer(recipe)
    model, config = _target(recipe, clock, log)
    rows = _prompt_examples(recipe)
    log.figures["exact_match"] = {task: _share(exact_matches(model, rows[task])) for task in rows if task != "prose"}
    log.say(f"held-out rows right: {_percent(log.figures['exact_match'])}")
    _write_figures(recipe, log)
    _drafter(recipe, model, config, rows, clock, log)
    _write_figures(recipe, log)
    return log.figures


def _place_tokenizer(recipe: Recipe) -> None:
    """Takes the tokenizer of the pair that is gone on with, keeps the one that is there, or trains one."""
    folder = recipe.out / TARGET
    source = None if recipe.resume is None else recipe.resume / TARGET
    if source is not None and source != folder:
        folder.mkdir(parents=True, exist_ok=True)
        for name in TOKENIZER_FILES:
            shutil.copyfile(source / name, folder / name)
    elif not all((folder / name).exists() for name in TOKENIZER_FILES):
        save_tokenizer(train_tokenizer(recipe.seed), folder)


def _target(recipe: Recipe, clock: Clock, log: Log) -> tuple[nn.Module, dict[str, Any]]:
    """Trains the target, saves it, and returns what was saved, in float32."""
    folder, config = recipe.out / TARGET, targets.target_config()
    saved = None if recipe.resume is None else recipe.resume / TARGET
    if saved is not None and (saved / "model.safetensors").exists():
        model, config = targets.load_target(saved)
    else:
        model = targets.build_target(config)
        targets.initialise(model, config, recipe.seed)
    log.figures["target"] = {"num_parameters": num_parameters(model), "curve": []}
    validation = {
        task: encode(load_tokenizer(folder), held_out_samples(task, recipe.seed + 1, NUM_VALIDATION))
        for task in GENERATORS
        if task != "prose"
    }

    def watch(progress: Progress) -> None:
        right = {task: _share(exact_matches(model, examples)) for task, examples in validation.items()}
        _report("target", progress, _percent(right), right, log)

    settings = _settings(recipe, recipe.target_budget, recipe.target_rate, recipe.target_batch_tokens)
    with closing(example_chunks(folder, recipe.seed, recipe.num_workers)) as chunks:
        train_target(model, chunks, settings, clock, watch)
    targets.save_target(model, config, folder)
    return _in_float32(targets.load_target(folder)[0]), config


def _drafter(
    recipe: Recipe, target: nn.Module, config: dict[str, Any], rows: dict[str, list[Example]], clock: Clock, log: Log
) -> None:
    """Answers prompts, trains the drafter on the answers, saves it and measures what was saved."""
    folder, draft_config = recipe.out / DRAFTER, drafters.drafter_config(config)
    saved = None if recipe.resume is None else recipe.resume / DRAFTER
    started = clock()
    answered_rows = {task: _answers(target, config, recipe, examples) for task, examples in rows.items()}
    answered = _answers(target, config, recipe, _drafter_prompts(recipe))
    log.say(f"drafter: {len(answered)} answers in {clock() - started:.1f} s")
    model = drafters.build_drafter(draft_config, folder)
    if saved is not None and (saved / "model.safetensors").exists():
        model.update(load_drafter(saved).parameters())
    else:
        drafters.initialise(model, recipe.seed)
    log.figures["drafter"] = {"num_parameters": num_parameters(model), "num_answers": len(answered), "curve": []}

    def watch(progress: Progress) -> None:
        lengths = _lengths(model, target, draft_config, {task: part[:32] for task, part in answered_rows.items()})
        _report("drafter", progress, _plain(lengths), lengths, log)

    target.update(in_dtype(target.parameters(), recipe.dtype))
    settings = _settings(recipe, recipe.drafter_budget, recipe.drafter_rate, recipe.drafter_batch_tokens)
    train_drafter(model, target, draft_config, answered, recipe.num_anchors, settings, recipe.seed, clock, watch)
    drafters.save_drafter(model, folder)
    trained = load_drafter(folder, mx.float32)
    assert isinstance(trained, DFlash2Model)
    _in_float32(target)
    figures = {task: acceptance(trained, target, draft_config, part) for task, part in answered_rows.items()}
    log.figures["acceptance"] = {task: asdict(value) for task, value in figures.items()}
    for task, value in figures.items():
        recall = " ".join(f"{share:.2f}" for share in value.recall)
        log.say(
            f"held-out {task}: acceptance length {value.selector_length:.2f} (plain top-1 {value.top1_length:.2f}), "
            f"candidate recall {recall}"
        )


def _drafter_prompts(recipe: Recipe) -> list[Example]:
    # A seed of its own, so that these are not the samples that the target has just been trained on.
    chunks = example_chunks(recipe.out / TARGET, recipe.seed + 1_000_000, recipe.num_workers, DRAFTER_MIX)
    with closing(chunks):
        return list(islice((example for chunk in chunks for example in chunk), recipe.num_answers))


def _answers(target: nn.Module, config: dict[str, Any], recipe: Recipe, prompts: Sequence[Example]) -> list[Example]:
    """The target's answers, but for those of one token, in which there is nothing to draft."""
    answered = answer(target, config, prompts, SPECIAL_TOKENS.index(TURN_END), WIDTHS[-1])
    return [example for example in answered if len(example.tokens) > example.start + 1]


def _prompt_examples(recipe: Recipe) -> dict[str, list[Example]]:
    samples, tokenizer = read_prompts(recipe.prompts), load_tokenizer(recipe.out / TARGET)
    return {task: encode(tokenizer, [sample for sample in samples if sample.task == task]) for task in GENERATORS}


def _lengths(
    model: DFlash2Model, target: nn.Module, config: dict[str, Any], answered: dict[str, list[Example]]
) -> dict[str, float]:
    return {task: acceptance(model, target, config, part).selector_length for task, part in answered.items()}


def _settings(recipe: Recipe, budget: Budget, rate: float, batch_tokens: int) -> Settings:
    return Settings(budget, rate, batch_tokens, recipe.dtype, recipe.report_every_s)


def _in_float32(model: nn.Module) -> nn.Module:
    model.update(in_dtype(model.parameters(), mx.float32))
    mx.eval(model.parameters())
    return model


def _report(name: str, progress: Progress, text: str, values: dict[str, float], log: Log) -> None:
    log.say(
        f"{name} {progress.fraction:4.0%} step {progress.step} {progress.elapsed_s:.0f} s "
        f"(data {progress.waited_s:.1f} s) {progress.num_tokens / max(progress.elapsed_s, 1e-9) / 1000:.0f}k tokens/s "
        f"loss {'-' if progress.loss is None else f'{progress.loss:.4f}'} | {text}"
    )
    log.figures[name]["curve"].append({**asdict(progress), **values})


def _share(hits: Sequence[bool]) -> float:
    return sum(hits) / len(hits)


def _percent(shares: dict[str, float]) -> str:
    return ", ".join(f"{task} {share:.1%}" for task, share in shares.items())


def _plain(lengths: dict[str, float]) -> str:
    return "accept " + ", ".join(f"{task} {length:.2f}" for task, length in lengths.items())


def _write_figures(recipe: Recipe, log: Log) -> None:
    text = json.dumps(_finite(log.figures), indent=1)
    (recipe.out / "metrics.json").write_text(text + "\n")


def _finite(value: Any) -> Any:
    """The same with None for numbers that JSON does not know."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

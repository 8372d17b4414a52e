"""Training from a ready space: the start equals the ready space, and the penalty keeps the heads near it."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.conftest import have_identical_weights
from tests.training.cases import load_batch, with_training
from triptych import checkpoint
from triptych.data import manifest
from triptych.errors import RecipeError, TrainingError
from triptych.interfaces import Source
from triptych.recipe import Recipe
from triptych.settings import Component
from triptych.space import Space
from triptych.training import loop
from triptych.training.distributed import SINGLE_PROCESS
from triptych.training.hold_selection import start_from_ready_space
from triptych.training.loop import train
from triptych.training.metrics_log import read_metrics
from triptych.training.objective_set import ObjectiveSet
from triptych.training.step import backward
from triptych.training.warm_start import (
    adopt_init,
    hold_terms,
    make_recipe,
    raise_epochs,
    read_hold,
    residual_heads,
    set_hold,
)


@pytest.fixture
def warm_recipe(run_dir, tiny_recipe):
    """The default recipe for the space of a finished run, short."""
    recipe = make_recipe(str(run_dir)).with_manifests([tiny_recipe.data.manifest])
    return adopt_init(with_training(recipe, epochs=2, min_steps=0, batch_size=16, hold=1.0))


def embed_all(space, rows):
    """Return the embeddings of some images, audio files and texts."""
    sources = [s for row in rows[:6] for s in (Source("image", row.image), Source("audio", row.audio))]
    sources += [Source("text", row.texts[0]) for row in rows[:6]]
    return torch.cat([space.embed([source], source.modality).features.embedding for source in sources])


@pytest.mark.parametrize("head", ["linear", "mlp", "none"])
@pytest.mark.parametrize("geometry", ["sphere", "ball", "free"])
def test_before_the_first_step_embeddings_equal_those_of_the_ready_space(tiny_recipe, tmp_path, head, geometry):
    torch.manual_seed(3)
    config = replace(tiny_recipe.space, head=Component(head), geometry=geometry, shared_hidden_dim=8)
    ready = Space(replace(tiny_recipe, space=config)).eval()
    rows = manifest.read(tiny_recipe.data.manifest).rows
    ready.encoder("text").fit_vocabulary(Source("text", text) for row in rows for text in row.texts)
    checkpoint.save(ready, tmp_path / "ready.safetensors")
    recipe = make_recipe(str(tmp_path / "ready.safetensors")).with_manifests([tiny_recipe.data.manifest])
    space = start_from_ready_space(adopt_init(with_training(recipe, hold=1.0)), rows[:20]).eval()
    assert set(residual_heads(space)) == {"image", "audio", "text"}
    assert torch.equal(embed_all(space, rows), embed_all(ready, rows))


@pytest.mark.slow
def test_training_moves_the_space_and_a_stronger_hold_moves_it_less(warm_recipe, run_dir, tmp_path):
    rows = manifest.read(warm_recipe.data.manifest).rows
    start = embed_all(checkpoint.load(run_dir), rows)
    distances = []
    for hold in (0.0, 100.0, math.inf):
        space = train(with_training(warm_recipe, hold=hold), tmp_path / f"{hold}", show_progress=False)
        assert read_hold(space) == hold
        distances.append((embed_all(space, rows) - start).norm().item())
    assert distances[0] > distances[1] > distances[2] == 0.0
    first, *_ = read_metrics(tmp_path / "100.0")
    assert {"hold.image", "hold.audio", "hold.text"} <= set(first)
    assert "hold.image" not in read_metrics(tmp_path / "0.0")[0]
    encoders = {n: p for n, p in space.named_parameters() if n.startswith("encoders")}
    ready = dict(checkpoint.load(run_dir).named_parameters())
    assert all(torch.equal(p, ready[name]) for name, p in encoders.items())


@pytest.mark.slow
def test_the_run_loads_without_the_ready_space(warm_recipe, run_dir, tmp_path):
    moved = tmp_path / "ready.safetensors"
    moved.write_bytes((run_dir / "space.safetensors").read_bytes())
    recipe = with_training(warm_recipe, init=str(moved))
    space = train(recipe, tmp_path / "run", show_progress=False)
    moved.unlink()
    rows = manifest.read(recipe.data.manifest).rows
    loaded = checkpoint.load(tmp_path / "run")
    assert torch.equal(embed_all(loaded, rows), embed_all(space, rows))
    loaded.save_pretrained(tmp_path / "shared")
    assert str(tmp_path) not in (tmp_path / "shared" / "recipe.toml").read_text()
    assert torch.equal(embed_all(checkpoint.load(tmp_path / "shared"), rows), embed_all(space, rows))


@pytest.mark.slow
def test_training_on_from_a_warm_start_starts_at_its_embeddings(warm_recipe, tmp_path):
    first = train(warm_recipe, tmp_path / "first", show_progress=False)
    recipe = with_training(warm_recipe, init=str(tmp_path / "first"))
    rows = manifest.read(recipe.data.manifest).rows
    space = start_from_ready_space(recipe, rows).eval()
    assert torch.equal(embed_all(space, rows), embed_all(first, rows))
    assert [term.item() for term in hold_terms(space).values()] == [0.0] * len(hold_terms(space))
    assert all(head.initial.any() for head in residual_heads(space).values())


@pytest.mark.slow
def test_an_interrupted_warm_start_resumes_to_the_same_weights(warm_recipe, tmp_path, monkeypatch):
    recipe = with_training(warm_recipe, hold="auto", epochs=3, min_steps=2)
    uninterrupted = train(recipe, tmp_path / "uninterrupted", show_progress=False)
    save_epoch, calls = loop.RunDirectory.save_epoch, []

    def interrupted(self, *arguments):
        save_epoch(self, *arguments)
        calls.append(1)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop.RunDirectory, "save_epoch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, tmp_path / "killed", show_progress=False)
    assert calls
    monkeypatch.setattr(loop, "start_from_ready_space", None)  # the chosen hold is stored in the run
    assert have_identical_weights(train(recipe, tmp_path / "killed", show_progress=False), uninterrupted)
    names = ("last.safetensors", "space.safetensors")
    for name in names:
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "uninterrupted" / name).read_bytes()


def test_the_penalty_adds_its_gradient_once(warm_recipe):
    space = start_from_ready_space(warm_recipe, manifest.read(warm_recipe.data.manifest).rows)
    with torch.no_grad():
        for head in residual_heads(space).values():
            head.correction.normal_()
    set_hold(space, 2.0)
    objectives, batch = ObjectiveSet(warm_recipe), load_batch(warm_recipe, space)
    gradients = []
    for hold in (2.0, 0.0):
        set_hold(space, hold)
        space.zero_grad()
        values = backward(space, objectives, batch, context=SINGLE_PROCESS)
        assert ("hold.text" in values) == (hold > 0)
        grads = {m: head.correction.grad for m, head in residual_heads(space).items()}
        gradients.append({m: grad.clone() for m, grad in grads.items() if grad is not None})
    for modality, head in residual_heads(space).items():
        expected = 2.0 * 2 * head.correction.detach() / head.correction.shape[1]
        assert torch.allclose(gradients[0][modality] - gradients[1][modality], expected, atol=1e-5)


def test_a_modality_without_rows_keeps_its_embeddings(warm_recipe, run_dir, tmp_path, capsys):
    rows = manifest.read(warm_recipe.data.manifest).rows
    data = [{"image": str(row.image), "text": row.texts[0]} for row in rows[:20]]
    space = train(with_training(warm_recipe, hold=0.1), tmp_path / "run", data=data)
    assert "no row has audio: audio keeps its embeddings" in capsys.readouterr().err
    ready = checkpoint.load(run_dir)
    audio, text = Source("audio", Path(str(rows[0].audio))), Source("text", rows[0].texts[0])
    assert torch.equal(space.embed_one(audio).embedding, ready.embed_one(audio).embedding)
    assert not torch.equal(space.embed_one(text).embedding, ready.embed_one(text).embedding)


@pytest.mark.parametrize("count", [1, 5])
def test_too_few_pairs_keep_the_ready_space_with_a_notice(warm_recipe, run_dir, tmp_path, capsys, count):
    rows = manifest.read(warm_recipe.data.manifest).rows
    data = [{"image": str(row.image), "text": row.texts[0], "split": "train"} for row in rows[:count]]
    for _ in range(2):  # the second time, the complete run is loaded
        space = train(None, tmp_path / "run", init=run_dir, data=data)
        assert torch.equal(embed_all(space, rows), embed_all(checkpoint.load(run_dir), rows))
    assert f"{count} pairs are too few to train on: the run keeps the ready space" in capsys.readouterr().err


def test_data_of_one_modality_and_unknown_spaces_raise_errors(run_dir, tmp_path):
    with pytest.raises(RecipeError, match="the data has only text; the recipe trains on audio–text"):
        train(init=run_dir, output=tmp_path / "run", data=[{"text": "a"}, {"text": "b"}], show_progress=False)
    with pytest.raises(RecipeError, match=r"training\.hold = -1\.0: must be a number of at least 0"):
        Recipe.load("clap", ["training.hold=-1.0"])
    assert Recipe.load("clap", ["training.hold=inf"]).training.hold == math.inf
    with pytest.raises(TrainingError, match="no batch can be formed"):
        train(
            init=run_dir,
            output=tmp_path / "one",
            data=[{"image": str(p), "text": "a"} for p in _images(run_dir)],
            overrides=["training.hold=1"],
            show_progress=False,
        )


def _images(run_dir):
    recipe = Recipe.load(run_dir / "recipe.toml")
    return [manifest.read(recipe.data.manifest).rows[0].image]


def test_the_recipe_keeps_its_objectives_and_takes_the_space_of_init(run_dir, tiny_recipe):
    recipe = adopt_init(Recipe.load("align_uniform", [f"training.init={run_dir}"]))
    assert recipe.space == replace(tiny_recipe.space, residual=True)
    assert "encoders" in recipe.training.freeze
    assert Recipe.parse(recipe.to_toml()) == recipe


def test_few_rows_get_more_epochs(warm_recipe):
    rows = manifest.read(warm_recipe.data.manifest).rows  # 80 rows, 5 steps per epoch
    assert raise_epochs(with_training(warm_recipe, min_steps=0), rows).training.epochs == 2
    assert raise_epochs(with_training(warm_recipe, min_steps=21), rows).training.epochs == 5
    assert raise_epochs(with_training(warm_recipe, min_steps=21), rows[:3]).training.epochs == 21

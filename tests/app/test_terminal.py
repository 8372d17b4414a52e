"""Terminal output of results."""

import json
import shlex
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace
from typing import cast

import pytest
from rich.console import Console

from triptych.app import terminal
from triptych.evaluation.retrieval import RetrievalResult
from triptych.interfaces import Source
from triptych.search.item import Hit, Item
from triptych.settings import Component


def print_and_split_hits(monkeypatch, *hits):
    output = StringIO()
    monkeypatch.setattr(terminal, "stdout", Console(file=output, soft_wrap=True))
    terminal.print_hits(hits)
    return [line.split("\t") for line in output.getvalue().splitlines()]


def test_text_file_hit_shows_name_and_excerpt(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    excerpts = {"note 1.txt": "milk and eggs " * 100, "other.txt": None}
    (tmp_path / "other.txt").write_text("written after it was indexed")
    hits = [Hit(Item(Source("text", tmp_path / name), excerpt=text), 0.5) for name, text in excerpts.items()]
    lines = print_and_split_hits(monkeypatch, *hits, Hit(Item(Source("text", "a dog barks")), 0.4))
    assert [line[3] for line in lines] == ["note 1.txt", "other.txt", ""]
    assert lines[0][4].startswith("milk and eggs milk")
    assert len(lines[0][4]) == terminal.EXCERPT_CHARACTERS
    assert [line[4] for line in lines[1:]] == ["", "a dog barks"]


def training_advice(monkeypatch, capsys, folder, recipe):
    output = StringIO()
    monkeypatch.setattr(terminal, "stderr", Console(file=output, soft_wrap=True, markup=False))
    terminal.print_training_advice(folder, recipe)
    return capsys.readouterr().err, output.getvalue()


def write_scores(folder, *scores):
    lines = [{"epoch": i + 1, "steps": 3} | ({} if s is None else {"valid": s}) for i, s in enumerate(scores)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("scores", "pretrained", "hint"),
    [
        ((None, None), False, True),  # nothing was validated
        ((10.0, 20.0), False, True),  # the last epoch is the best: more epochs may help
        ((20.0, 10.0), False, False),  # validation selected an earlier epoch
        ((10.0, 20.0), True, False),  # projections on pretrained encoders need few steps
    ],
)
def test_more_epochs_are_suggested_only_when_improving(
    tiny_recipe, synthetic_manifest, tmp_path, monkeypatch, capsys, scores, pretrained, hint
):
    write_scores(tmp_path, *scores)
    encoders = {"image": Component("efficientnet_lite0"), "text": Component("minilm")}
    recipe = replace(tiny_recipe, space=replace(tiny_recipe.space, encoders=encoders)) if pretrained else tiny_recipe
    message, _ = training_advice(monkeypatch, capsys, tmp_path, recipe)
    assert ("only 6 steps" in message) == hint
    assert ("training.epochs=100 --restart" in message) == hint


@pytest.mark.parametrize(
    ("splits", "suggested"),
    [
        (["train", "valid", "test"], "test"),
        (["train", "valid", "kitchen"], "kitchen"),
        (["train", "valid"], None),
        ([""], None),
    ],
)
def test_suggested_command_is_shell_quoted(
    tiny_recipe, synthetic_manifest, tmp_path, monkeypatch, capsys, splits, suggested
):
    folder, table = tmp_path / "my run", synthetic_manifest.parent / f"my pairs {'-'.join(splits)}.csv"
    folder.mkdir()
    write_scores(folder, None)
    rows = [f"images/{i:06}.png,sound {i},{splits[i % len(splits)]}" for i in range(6)]
    table.write_text("\n".join(["image,text,split", *rows]) + "\n")
    recipe = replace(tiny_recipe, data=replace(tiny_recipe.data, manifest=str(table)))
    _, message = training_advice(monkeypatch, capsys, folder, recipe)
    table.unlink()
    if suggested is None:
        assert message.startswith("next: there is no held-out split to evaluate on; mark some rows as split test")
        assert shlex.quote(str(folder)) in message
    else:
        command = ["triptych", "evaluate", str(folder), "--data", str(table), "--split", suggested]
        assert shlex.split(message.removeprefix("next: ")) == command


@pytest.mark.parametrize(("half_width", "heading"), [(4.0, " median rank "), (16.0, "   rank ")])
def test_recall_of_few_items_is_not_cut_in_80_columns(half_width, heading, monkeypatch):
    interval = SimpleNamespace(half_width=half_width / 100)
    direction = SimpleNamespace(
        query="image", gallery="audio", num_items=450, median_rank=2.0, chance_recall={10: 0.022},
        metrics={"R@1": 0.34, "R@5": 0.75, "R@10": 0.92, "mAP@10": 0.52},
        intervals=dict.fromkeys(("R@1", "R@5", "R@10"), interval),
    )  # fmt: skip
    output = StringIO()
    monkeypatch.setattr(terminal, "stdout", Console(file=output, width=80, soft_wrap=True))
    terminal.stdout.print(terminal.make_recall_table([cast(RetrievalResult, direction)]))
    headings = next(line for line in output.getvalue().splitlines() if "R@10 " in line and "mAP@10" in line)
    assert "…" not in output.getvalue()
    assert heading in headings
    assert output.getvalue().splitlines()[-2].split()[-1] == "450"


@pytest.mark.parametrize(
    ("modalities", "example"),
    [(("image",), "--image one.jpg"), (("image", "audio"), "--audio one.wav"), (("image", "text"), "'some words'")],
)
def test_the_example_search_uses_a_modality_of_the_space(modalities, example, monkeypatch):
    output = StringIO()
    monkeypatch.setattr(terminal, "stderr", Console(file=output, soft_wrap=True))
    terminal.print_search_commands("collection", modalities)
    assert output.getvalue().startswith(f"next: triptych search {example}, or ")

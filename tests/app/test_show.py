"""What a person sees of results on a terminal."""

import json
import shlex
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from triptych.app import show
from triptych.contracts import Hit
from triptych.settings import Part


def printed(monkeypatch, *hits):
    paper = StringIO()
    monkeypatch.setattr(show, "out", Console(file=paper, soft_wrap=True))
    show.hits(hits)
    return [line.split("\t") for line in paper.getvalue().splitlines()]


def test_a_text_file_is_shown_by_its_name_and_how_it_begins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "note 1.txt").write_text("milk and eggs\n" * 100)
    found = [Hit(str(tmp_path / name), "text", 0.5) for name in ("note 1.txt", "gone.txt")]
    lines = printed(monkeypatch, *found, Hit("a dog barks", "text", 0.4))
    assert [line[3] for line in lines] == ["note 1.txt", "gone.txt", ""]
    assert lines[0][4].startswith("milk and eggs milk")
    assert len(lines[0][4]) == show.SHOWN
    assert [line[4] for line in lines[1:]] == ["", "a dog barks"]


def notes_after_training(monkeypatch, capsys, folder, recipe):
    paper = StringIO()
    monkeypatch.setattr(show, "notes", Console(file=paper, soft_wrap=True, markup=False))
    show.trained(folder, recipe)
    return capsys.readouterr().err, paper.getvalue()


def write_scores(folder, *scores):
    lines = [{"epoch": i + 1, "steps": 3} | ({} if s is None else {"valid": s}) for i, s in enumerate(scores)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("scores", "pretrained", "hint"),
    [
        ((None, None), False, True),  # nothing was validated
        ((10.0, 20.0), False, True),  # the last epoch is the best: more may be better
        ((20.0, 10.0), False, False),  # validation has chosen an earlier epoch
        ((10.0, 20.0), True, False),  # heads on pretrained encoders need few steps
    ],
)
def test_more_epochs_are_advised_only_where_they_may_help(
    quick, world, tmp_path, monkeypatch, capsys, scores, pretrained, hint
):
    write_scores(tmp_path, *scores)
    encoders = {"image": Part("efficientnet_lite0"), "text": Part("minilm")}
    recipe = replace(quick, space=replace(quick.space, encoders=encoders)) if pretrained else quick
    said, _ = notes_after_training(monkeypatch, capsys, tmp_path, recipe)
    assert ("only 6 steps" in said) == hint
    assert ("training.epochs=100 --restart" in said) == hint


@pytest.mark.parametrize(
    ("splits", "suggested"),
    [
        (["train", "valid", "test"], "test"),
        (["train", "valid", "kitchen"], "kitchen"),
        (["train", "valid"], None),
        ([""], None),
    ],
)
def test_the_next_step_can_be_pasted_into_a_shell(quick, world, tmp_path, monkeypatch, capsys, splits, suggested):
    folder, table = tmp_path / "my run", world.parent / f"my pairs {'-'.join(splits)}.csv"
    folder.mkdir()
    write_scores(folder, None)
    rows = [f"images/{i:06}.png,sound {i},{splits[i % len(splits)]}" for i in range(6)]
    table.write_text("\n".join(["image,text,split", *rows]) + "\n")
    recipe = replace(quick, data=replace(quick.data, manifest=str(table)))
    _, said = notes_after_training(monkeypatch, capsys, folder, recipe)
    table.unlink()
    if suggested is None:
        assert said.startswith("next: no row is kept out of training to measure on; mark some as split test")
        assert shlex.quote(str(folder)) in said
    else:
        told = ["triptych", "evaluate", str(folder), "--data", str(table), "--split", suggested]
        assert shlex.split(said.removeprefix("next: ")) == told

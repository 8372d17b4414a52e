"""What a person sees of results on a terminal."""

from io import StringIO

from rich.console import Console

from triptych.app import show
from triptych.contracts import Hit


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

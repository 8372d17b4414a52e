"""Progress reports go to stderr; without a terminal they are one final line."""

from triptych.progress import notify, track_progress


def test_without_a_terminal_one_line_is_printed_at_the_end(capsys):
    with track_progress("indexing", 3) as progress:
        progress.advance()
        progress.advance(2, "done")
        assert capsys.readouterr().err == ""
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("indexing: 3/3 in ")
    assert output.err.endswith(" s done\n")


def test_hidden_progress_prints_nothing(capsys):
    with track_progress("indexing", 3, show_progress=False) as progress:
        progress.advance()
    notify("slow", show_progress=False)
    assert capsys.readouterr() == ("", "")


def test_notify_prints_markup_as_it_is(capsys):
    notify("[bold]3 files[/bold]")
    assert capsys.readouterr().err == "[bold]3 files[/bold]\n"

"""The page of a study."""

import pytest

from triptych.studies.page import NOTES_HEADING, Study, StudyResult, write_page


@pytest.mark.slow
def test_notes_on_the_page_are_kept(tmp_path):
    study = Study("Q?", "how", int, lambda *_: result)
    result = StudyResult({"T": [{"a": 1.0}]}, ["one"], lambda figure: None)
    page = write_page(tmp_path, "s", study, "triptych study s", result)
    page.write_text(page.read_text() + f"\n{NOTES_HEADING}\n\nMine.\n")
    changed = StudyResult({"T": [{"a": 2.0}]}, ["two"], lambda figure: None)
    write_page(tmp_path, "s", study, "triptych study s", changed)
    assert page.read_text().endswith(f"{NOTES_HEADING}\n\nMine.\n")
    assert "| 2 |" in page.read_text()
    assert page.read_text().count(NOTES_HEADING) == 1

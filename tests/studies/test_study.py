"""Running a study from the command line."""

import pytest
from typer.testing import CliRunner

from triptych.app.cli import app
from triptych.errors import UsageError
from triptych.studies.experiment import Experiment
from triptych.studies.study import DEFAULT_ENCODERS, StudyRequest, run_study


@pytest.mark.parametrize(
    ("encoders", "message"),
    [
        ({"image": "efficientnet_lite"}, r"frozen image encoder 'efficientnet_lite' is unknown; .*did you mean 'eff"),
        ({"image": "yamnet"}, "image encoder 'yamnet' is for audio; frozen encoders for image: efficientnet_lite0"),
        ({"text": "text_transformer"}, "text encoder 'text_transformer' is not frozen; .*minilm"),
    ],
)
def test_an_unusable_encoder_raises_and_writes_nothing(encoders, message, tmp_path):
    manifest = tmp_path / "pairs.csv"
    manifest.write_text("image,text,split\n")
    with pytest.raises(UsageError, match=message):
        run_study(StudyRequest("objectives", manifest, encoders=DEFAULT_ENCODERS | encoders), tmp_path / "studies", "")
    with pytest.raises(UsageError, match=message):
        Experiment.from_manifest(manifest, DEFAULT_ENCODERS | encoders)
    assert not (tmp_path / "studies").exists()


def test_the_page_shows_the_command(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr("triptych.studies.study.run_study", lambda *a: calls.append(a) or tmp_path / "noise.md")
    data = str(tmp_path / "my pairs.csv")
    (tmp_path / "my pairs.csv").touch()
    options = ["--rows", "20", "--encoder", "audio=soundnet", "--allow-outside", "-o", str(tmp_path / "mine")]
    for more in (options, [], ["--restart"]):
        assert CliRunner().invoke(app, ["study", "noise", "--data", data, *more]).exit_code == 0
    plain = "triptych study noise --data 'my pairs.csv'"
    full = f"{plain} --output mine --rows 20 --encoder audio=soundnet --allow-outside"
    assert [command for _, _, command, _ in calls] == [full, plain, plain]

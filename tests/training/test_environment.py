"""The code revision is that of git."""

import subprocess

from triptych.training import environment


def test_the_code_revision_is_the_git_commit(tmp_path, monkeypatch):
    def run_git(*arguments):
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    monkeypatch.setattr(environment, "PACKAGE_FOLDER", tmp_path)
    assert environment.describe_code_revision() == "installed package"
    run_git("init", "-q")
    (tmp_path / "__init__.py").write_text("")
    assert environment.describe_code_revision() == "installed package", (
        "the package is installed inside another repository"
    )
    run_git("add", ".")
    run_git("commit", "-q", "-m", "first")
    commit = run_git("rev-parse", "HEAD")
    assert environment.describe_code_revision() == commit
    (tmp_path / "__init__.py").write_text("changed")
    assert environment.describe_code_revision() == f"{commit}, changed since"

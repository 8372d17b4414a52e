"""Download models from the Hugging Face hub, and upload spaces."""

import shutil
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from triptych import __version__
from triptych.errors import CheckpointError

HUB_PREFIX = "hf:"
MODEL_PREFIXES = (HUB_PREFIX, "st:")  # of models of transformers and of sentence-transformers
DOWNLOADED = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]  # neither code nor pickled weights
INSTALL_PRETRAINED = "pip install 'triptych[pretrained]'"
INSTALL_SENTENCE_TRANSFORMERS = "pip install 'triptych[sentence-transformers]'"
TIMEOUT = 4.0  # seconds to wait for an answer that is not necessary


@dataclass(frozen=True)
class ModelFacts:
    """What the hub says about a model: the size of the files that `download` fetches, and the licence."""

    num_bytes: int
    licence: str


def download(name: str, revision: str | None = None, prefix: str = HUB_PREFIX) -> Path:
    """Return the folder of a model. Download the model if it is not in the local cache of the hub."""
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name, revision=revision, allow_patterns=DOWNLOADED))
    except Exception as error:  # huggingface_hub raises many exception types for network and name problems
        raise CheckpointError(f"{prefix}{name}: {_describe_hub_error(error)}") from error


def read_model_facts(name: str, timeout: float = TIMEOUT) -> ModelFacts | None:
    """Return facts about a model; None if the hub gives no answer within `timeout` seconds, or if it must not be used.

    The hub must not be used if the environment variable HF_HUB_OFFLINE is set.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return None
    answers: list[ModelFacts] = []

    def ask() -> None:
        from huggingface_hub import HfApi
        from huggingface_hub.utils import filter_repo_objects

        with suppress(Exception):  # without an answer, the model is not offered
            info = HfApi(library_name="triptych", library_version=__version__).model_info(
                name, timeout=timeout, files_metadata=True
            )
            files = filter_repo_objects(info.siblings or (), allow_patterns=DOWNLOADED, key=lambda file: file.rfilename)
            licence = str(getattr(info.card_data, "license", None) or "")
            answers.append(ModelFacts(sum(file.size or 0 for file in files), licence))

    # In a thread, because the timeout does not cover the look-up of the host name, which can take a minute.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(timeout)
    return answers[0] if answers and answers[0].num_bytes else None


def free_cache_bytes() -> int:
    """Return the free disk space of the local cache of the hub in bytes."""
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE)
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def upload(folder: str, name: str, private: bool, token: str | None, branch: str | None) -> str:
    """Upload a folder to a repository in one commit, and return the address of the commit."""
    from huggingface_hub import HfApi

    api = HfApi(token=token, library_name="triptych", library_version=__version__)
    try:
        api.create_repo(name, private=private, exist_ok=True)
        return str(api.upload_folder(repo_id=name, folder_path=folder, revision=branch).commit_url)
    except Exception as error:  # huggingface_hub raises many exception types for network and name problems
        raise CheckpointError(f"{HUB_PREFIX}{name}: {_describe_hub_error(error, 'uploaded to')}") from error


def _describe_hub_error(error: Exception, action: str = "downloaded from") -> str:
    """Explain why a model could not be downloaded or uploaded, and what to do."""
    if isinstance(error, ImportError):
        return f"downloading a model needs huggingface_hub, which cannot be imported; run: {INSTALL_PRETRAINED}"
    from huggingface_hub import errors

    if isinstance(error, errors.HFValidationError):
        return "not a valid model name on the Hugging Face hub; an example is openai/clip-vit-base-patch32"
    if isinstance(error, errors.GatedRepoError):
        return "the model is gated: accept the terms on its page on the hub, then run: hf auth login"
    if isinstance(error, errors.RevisionNotFoundError):
        return "the model has no such revision on the Hugging Face hub; give a branch, a tag or a commit"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "the Hugging Face hub has no public model of this name; if the model is private, run: hf auth login"
    if isinstance(error, errors.HfHubHTTPError) and error.response.status_code in {401, 403}:
        return "the Hugging Face hub refuses access; run: hf auth login, or give a token with the necessary permission"
    if isinstance(error, errors.LocalEntryNotFoundError | ConnectionError):
        return (
            "the Hugging Face hub cannot be reached, and the model has not been downloaded before; "
            "connect to the network once, or give a folder that contains the model"
        )
    reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return f"cannot be {action} the Hugging Face hub: {reason[:200]}"

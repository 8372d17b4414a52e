"""Download models from the Hugging Face hub, and upload spaces."""

from pathlib import Path

from triptych import __version__
from triptych.errors import CheckpointError

HUB_PREFIX = "hf:"
FILES = [
    "*.json",
    "*.safetensors",
    "*.txt",
    "*.model",
    "*.jinja",
]  # files to download: neither code nor pickled weights
INSTALL_PRETRAINED = "pip install 'triptych[pretrained]'"


def download(name: str, revision: str | None = None, prefix: str = HUB_PREFIX) -> Path:
    """Return the folder of a model. Download the model if it is not in the local cache of the hub."""
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name, revision=revision, allow_patterns=FILES))
    except Exception as error:  # huggingface_hub raises many exception types for network and name problems
        raise CheckpointError(f"{prefix}{name}: {_describe_hub_error(error)}") from error


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

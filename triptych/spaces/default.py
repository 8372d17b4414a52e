"""Choose the space of a command or call that names none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from triptych import hub
from triptych.errors import CheckpointError, UsageError
from triptych.progress import notify
from triptych.spaces.hub_cache import list_cached_models
from triptych.spaces.known import RECOMMENDED, STARTER, KnownSpace, find_known
from triptych.spaces.presence import check_space
from triptych.spaces.user_config import USE_COMMAND, read_configured_space

HOW_TO_CHOOSE = f"choose another with --space NAME or `{USE_COMMAND}`; `triptych spaces` lists them"
ALL_MODALITIES = 3
NOTHING_BETTER = "packaged encoders, because no larger model is on this machine"
MAX_FRACTION_OF_DISK = 0.9  # a download may fill this fraction of the free disk space


@dataclass(frozen=True)
class DefaultSpace:
    """The space that is used if none is named, and why."""

    name: str  # as in `--space` and `triptych.load`
    reason: str


def choose_default_space(confirm: Callable[[str], bool] | None = None, show_progress: bool = True) -> str:
    """Return the name of the default space, and print one line that says which space it is and why.

    The first of these: the space in the environment variable TRIPTYCH_SPACE, the space of `triptych spaces use`, a
    model of images, audio and texts in the local cache of the Hugging Face hub, and the starter space.

    Args:
        confirm: Asks the user a question. If it is given, and only the starter space is left, and the hub can be
            reached, the user is asked whether to download the recommended model. By default nothing is downloaded.
        show_progress: Print the line, and the progress of a download, to stderr.
    """
    default = find_default_space()
    if default.name == STARTER and default.reason == NOTHING_BETTER and confirm is not None:
        default = _offer_download(confirm) or default
    notify(f"space: {default.name} ({default.reason}); {HOW_TO_CHOOSE}", show_progress)
    return default.name


def find_default_space() -> DefaultSpace:
    """Return the default space, without any question, message or use of the network."""
    if configured := read_configured_space():
        name, origin = configured
        try:
            check_space(name)
        except CheckpointError as error:
            remedy = f"set {origin} to another space" if origin.isupper() else f"run: {USE_COMMAND}"
            raise UsageError(f"the space in {origin} does not exist: {error}; or {remedy}") from error
        return DefaultSpace(name, f"from {origin}")
    if find_spec("transformers") is not None:
        models = [model for model in list_cached_models() if len(model.modalities) == ALL_MODALITIES]
        models.sort(key=lambda model: hub.HUB_PREFIX + model.name != RECOMMENDED)
        if models:
            return DefaultSpace(hub.HUB_PREFIX + models[0].name, "in the cache of the Hugging Face hub")
    return DefaultSpace(STARTER, NOTHING_BETTER)


def _offer_download(confirm: Callable[[str], bool]) -> DefaultSpace | None:
    """Ask whether to download the recommended model. Return None if it cannot be used, or the user declines."""
    known = find_known(RECOMMENDED)
    if known is None or find_spec("transformers") is None:
        return None
    facts = hub.read_model_facts(RECOMMENDED.removeprefix(hub.HUB_PREFIX))
    if facts is None or facts.num_bytes > MAX_FRACTION_OF_DISK * hub.free_cache_bytes():
        return None
    if not confirm(f"{describe_model(known, facts)}: download it? Otherwise, the starter space is used"):
        return None
    try:
        hub.download(RECOMMENDED.removeprefix(hub.HUB_PREFIX))
    except CheckpointError as error:
        raise CheckpointError(f"{error}. Run the same command to resume, or add --space {STARTER}") from error
    return DefaultSpace(RECOMMENDED, "downloaded")


def describe_model(known: KnownSpace, facts: hub.ModelFacts) -> str:
    """Return the name, modalities, size and licence of a model on the hub."""
    licence = facts.licence or known.licence
    modalities = f"{', '.join(known.modalities[:-1])} and {known.modalities[-1]}"
    return f"{known.name} ({modalities}; {facts.num_bytes / 1e9:.1f} GB, licence {licence})"

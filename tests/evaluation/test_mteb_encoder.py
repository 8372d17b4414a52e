"""The mteb encoder: its protocol, and a retrieval task on synthetic data."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

from triptych.checkpoint import load
from triptych.data import manifest
from triptych.errors import UsageError
from triptych.evaluation.evaluate import evaluate
from triptych.evaluation.mteb_encoder import MTEBEncoder
from triptych.interfaces import Source

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def encoder(run_dir):
    return MTEBEncoder(run_dir)


@pytest.fixture(scope="module")
def rows(synthetic_manifest):
    return manifest.read(synthetic_manifest).rows[:12]


def test_batches_embed_like_their_files(encoder, run_dir, rows):
    space = load(run_dir)
    samples, rate = soundfile.read(rows[1].audio, dtype="float32")
    batches = [
        {"text": [rows[0].texts[0], rows[1].texts[0]]},
        {"image": [Image.open(rows[0].image), Image.open(rows[1].image)]},
        {"audio": [{"array": samples, "sampling_rate": rate}]},
        {"audio": [{"array": np.stack([samples, samples]), "sampling_rate": rate}]},
    ]
    embeddings = encoder.encode(batches, task_metadata=None, hf_split="test", hf_subset="default")
    sources = [
        Source("text", rows[0].texts[0]),
        Source("text", rows[1].texts[0]),
        Source("image", rows[0].image),
        Source("image", rows[1].image),
        Source("audio", rows[1].audio),
        Source("audio", rows[1].audio),
    ]
    expected = np.concatenate([space.embed_one(source).embedding.numpy() for source in sources])
    assert np.allclose(embeddings, expected, atol=1e-5)


def test_several_modalities_give_one_mean_embedding(encoder, rows):
    both = encoder.encode([{"text": [rows[0].texts[0]], "image": [Image.open(rows[0].image)]}])
    separate = np.concatenate(
        [encoder.encode([{"text": [rows[0].texts[0]]}]), encoder.encode([{"image": [Image.open(rows[0].image)]}])]
    )
    mean = separate.mean(axis=0)
    assert np.allclose(both[0], mean / np.linalg.norm(mean), atol=1e-5)


def test_scores_equal_the_similarity_of_the_space(encoder):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(300, 32)).astype(np.float32), rng.normal(size=(300, 32)).astype(np.float32)
    scores = encoder.similarity(a, b)
    for i, j in ((0, 0), (7, 2), (299, 150)):
        cosine = a[i] @ b[j] / np.linalg.norm(a[i]) / np.linalg.norm(b[j])
        assert scores[i, j].item() == pytest.approx(float(cosine), abs=1e-5)
    assert torch.allclose(encoder.similarity_pairwise(a, b), scores.diagonal(), atol=1e-5)
    assert encoder.similarity(a[0], b[0]).shape == (1, 1)


def test_unsupported_input_raises(encoder, run_dir):
    with pytest.raises(UsageError, match="the batch has video, but no image"):
        encoder.encode([{"video": [1]}])
    with pytest.raises(UsageError, match="is not available; available:"):
        MTEBEncoder(run_dir, device="cuda")


def test_revision_is_the_weights_fingerprint(encoder, run_dir):
    from triptych.checkpoint import compute_fingerprint

    assert encoder.revision == compute_fingerprint(run_dir)


TASK = """
import sys, json, warnings
warnings.filterwarnings("ignore")
import mteb
from datasets import Dataset, Image as ImageFeature
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models.models_protocols import EncoderProtocol
from triptych.data import manifest
from triptych.evaluation.mteb_encoder import MTEBEncoder

run, manifest_path = sys.argv[1:]
rows = manifest.read(manifest_path).rows

class Scenes(AbsTaskRetrieval):
    metadata = TaskMetadata(
        name="Scenes", description="captions to their images", type="Any2AnyRetrieval", category="t2i",
        dataset={"path": "none/none", "revision": "1"}, modalities=["text", "image"], eval_splits=["test"],
        eval_langs=["eng-Latn"], main_score="hit_rate_at_10", date=("2026-01-01", "2026-01-02"), domains=["Scene"],
        license="apache-2.0", bibtex_citation="",
    )
    k_values = (1, 5, 10)

    def load_data(self, *args, **kwargs):
        queries = [{"id": f"{r.id}-{i}", "text": t} for r in rows for i, t in enumerate(r.texts)]
        corpus = Dataset.from_list([{"id": r.id, "image": str(r.image)} for r in rows])
        corpus = corpus.cast_column("image", ImageFeature())
        relevant = {f"{r.id}-{i}": {r.id: 1} for r in rows for i in range(len(r.texts))}
        data = {"corpus": corpus, "queries": Dataset.from_list(queries), "relevant_docs": relevant, "top_ranked": None}
        self.dataset = {"default": {"test": data}}
        self.data_loaded = True

encoder = MTEBEncoder(run)
assert isinstance(encoder, EncoderProtocol)
result = mteb.evaluate(encoder, Scenes(), cache=None, show_progress_bar=False, co2_tracker=False)
scores = result.task_results[0].scores["test"][0]
print("SCORES", json.dumps({k: v for k, v in scores.items() if isinstance(v, float)}))
"""


def test_mteb_scores_equal_evaluate(run_dir, synthetic_manifest, tmp_path):
    """In a separate process, because mteb imports many modules and emits warnings."""
    if find_spec("mteb") is None:
        pytest.skip("mteb is not installed: pip install 'triptych[mteb]'")
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", TASK, str(run_dir), str(synthetic_manifest)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout.partition("SCORES ")[2])
    directions = {
        (d.query, d.gallery): d
        for d in evaluate(
            load(run_dir), manifest.read(synthetic_manifest).rows, show_progress=False, num_resamples=0
        ).directions
    }
    ours = directions["text", "image"]
    assert scores["recall_at_10"] == pytest.approx(ours.recall[10], abs=1e-3)
    assert scores["ndcg_at_10"] == pytest.approx(ours.metrics["nDCG@10"], abs=1e-3)

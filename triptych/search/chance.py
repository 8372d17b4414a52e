"""What random questions score with random items of a collection, for each kind of question and item."""

from __future__ import annotations

import numpy as np
import torch

from triptych.contracts import Features, Modality, Source
from triptych.search.entry import tells_embedding, unpacked
from triptych.search.gallery import SAMPLE, Gallery
from triptych.search.relevance import PHRASES, Kind
from triptych.search.store import SCORING, Store, Version
from triptych.space import Space, alone

QUESTIONS = 100
FEW = 8  # with fewer items than this, a modality cannot stand for questions
PARTS = (40, 100)  # questions and items, where a score compares parts


class Chance:
    """Scores of random pairs, worked out once for each kind of question, kind of item and version of the store."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self._exact = space.similarity.exact
        self._tells = tells_embedding(space.similarity, space.recipe.space.width) and not space.similarity.reads_parts
        self._phrases: Features | None = None
        self._known: dict[tuple[Version, Modality, Modality], Kind] = {}

    def kind(
        self,
        store: Store,
        version: Version,
        question: tuple[Modality, Gallery],
        items: tuple[Modality, Gallery],
        own: Features,
    ) -> Kind:
        """What random questions of a kind score with random items; own is asked, where no other question can be had."""
        (question_is, questions), (item_is, gallery) = question, items
        key = (version, question_is, item_is)
        if key not in self._known:
            self._known = {k: v for k, v in self._known.items() if k[0] == version}
            asked, bank = self._bank(store, question_is, questions)
            numbers, keys = gallery.sample(SAMPLE if self._exact else PARTS[1])
            found = self._score(store, bank if bank is not None else own, question_is, numbers, keys, item_is)
            found[asked[:, None] == numbers] = np.nan
            if bank is None:
                return Kind(found)
            self._known[key] = Kind(found)
        return self._known[key]

    def _bank(self, store: Store, modality: Modality, questions: Gallery) -> tuple[np.ndarray, Features | None]:
        """The numbers and features of random questions of a modality: items of the collection, else plain phrases."""
        if len(questions) >= FEW:
            numbers, keys = questions.sample(QUESTIONS if self._exact else PARTS[0])
            return numbers, self._features(store, numbers, keys)
        if modality != "text":
            return np.array([-1]), None
        if self._phrases is None:
            sources = [Source("text", phrase) for phrase in PHRASES]
            self._phrases = self.space.embed(sources, "text", parts=self.space.similarity.reads_parts).features
        return np.full(len(self._phrases.embedding), -1), self._phrases

    def _score(
        self,
        store: Store,
        asked: Features,
        asked_is: Modality,
        numbers: np.ndarray,
        keys: np.ndarray,
        item_is: Modality,
    ) -> np.ndarray:
        if self._exact:
            return self.space.similarity.query(asked).float().numpy() @ keys.T
        features = self._features(store, numbers, keys)
        return self.space.scores(asked, asked_is, features, item_is).float().numpy().copy()

    def _features(self, store: Store, numbers: np.ndarray, keys: np.ndarray) -> Features:
        if self._tells:
            return alone(torch.from_numpy(np.array(keys)))
        rows = store.numbered(SCORING, numbers)
        return unpacked([rows[int(number)] for number in numbers], self.space.recipe.space.width)

"""Queries from the inputs and options of the command line."""

from pathlib import Path

import pytest

from triptych.errors import UsageError
from triptych.interfaces import Source
from triptych.search.query import (
    Query,
    QueryInputs,
    QueryPart,
    StoredItem,
    parse_modalities,
    parse_pairs,
    parse_weights,
)


def test_inputs_become_weighted_parts_in_order():
    inputs = QueryInputs(
        "rain", [Path("a.wav")], [Path("b.png")], items=["id"], negatives=["speech"], weights={"audio": 0.5, "not": 2.0}
    )
    expected = (
        QueryPart(Source("text", "rain")),
        QueryPart(Source("audio", Path("a.wav")), 0.5),
        QueryPart(Source("image", Path("b.png"))),
        QueryPart(StoredItem("id")),
        QueryPart(Source("text", "speech"), -2.0),
    )
    assert inputs.make_query(("image", "audio", "text")) == Query(expected)


def test_inputs_must_not_be_empty():
    QueryInputs(negatives=["speech"]).check_not_empty()
    with pytest.raises(UsageError, match="nothing to look for"):
        QueryInputs(weights={"audio": 1.0}).check_not_empty()


def test_weights_are_parsed_and_checked():
    assert parse_weights(["audio=0.5", "not=2"]) == {"audio": 0.5, "not": 2.0}
    for pair in ("audio=0", "audio=-1", "audio=inf", "audio=nan", "audio=loud"):
        with pytest.raises(UsageError, match=f"--weight {pair}: give a number above 0"):
            parse_weights([pair])


def test_pairs_and_modalities_are_parsed():
    assert parse_pairs(["split=test", "note=a=b"], "--where") == {"split": "test", "note": "a=b"}
    with pytest.raises(UsageError, match="--where =x: write NAME=VALUE"):
        parse_pairs(["=x"], "--where")
    assert parse_modalities(" audio, image,") == parse_modalities("image,audio")
    assert parse_modalities("") == []

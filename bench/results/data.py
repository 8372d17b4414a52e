"""The data of the results, each made by one command from local copies in $TRIPTYCH_DATA."""

from __future__ import annotations

from bench.results.plan import HOME, Made

FOLDS = (1, 2, 3, 4, 5)

ALL = [
    Made("gcompris", ("triptych", "data", "gcompris", "$TRIPTYCH_DATA/gcompris", "-o", "{data}")),
    Made(
        "flickr8k-spoken",
        ("triptych", "data", "speak", "{flickr8k}", "--allow-outside", "--each", "1", "-o", "{data}"),
        needs=("flickr8k",),
    ),
    Made("world", ("triptych", "world", f"{HOME}/data/world", "--scenes", "2000"), file="world/manifest.csv"),
    Made(
        "films", ("triptych", "world", f"{HOME}/data/films", "--films", "--scenes", "1000"), file="films/manifest.csv"
    ),
    Made("flickr8k", ("triptych", "data", "flickr8k", "$TRIPTYCH_DATA/flickr8k", "-o", "{data}")),
    *(
        Made(f"esc50-fold{n}", ("triptych", "data", "esc50", "$TRIPTYCH_DATA/esc50", "-o", "{data}", "--fold", str(n)))
        for n in FOLDS
    ),
    *(
        Made(
            f"esc50-classes{n}",
            ("triptych", "data", "esc50", "$TRIPTYCH_DATA/esc50", "-o", "{data}", "--classes", str(n)),
        )
        for n in FOLDS
    ),
]
DATA = {made.name: made for made in ALL}

"""The recipes that say where and when, or go by way of pictures: damsm, davenet, shre, video."""

from __future__ import annotations

from bench.results.plan import COST, EVALUATE, HOME, Column, Found, Page, Row, Table, recall, recalls

IMAGE, AUDIO, TEXT = (
    "space.encoders.image={name='image_cnn', width=32}",
    "space.encoders.audio={name='audio_cnn', width=32, mels=32}",
    "space.encoders.text={name='text_transformer', width=32, layers=1}",
)
SPEECH = "space.encoders.audio={name='speech_cnn', width=128}"
LOCALISE = ("triptych", "localise", "{run}", "--world", f"{HOME}/data/world", "--json")
BOTH = {"recall": EVALUATE, "places": LOCALISE}


def located(query: str, gallery: str, about: str = "all") -> list[Column]:
    """Where the heat falls, as `triptych localise --json` prints it."""

    def column(title: str, name: str, headline: bool = False) -> Column:
        def read(found: Found) -> float:
            rows = found["places"]
            one = next(r for r in rows if (r["query"], r["gallery"], r["about"]) == (query, gallery, about))
            return 100 * one[name]

        return Column(title, read, headline=headline)

    words = "" if about == "all" else f" ({about})"
    return [
        column(f"{query} → {gallery}{words}: hottest part on it", "hit", headline=True),
        column("chance", "hit_chance"),
        column("heat inside it", "mass"),
        column("chance", "mass_chance"),
        column("told apart (chance 50)", "apart"),
    ]


def lift(query: str, gallery: str, measure: str = "recall") -> Column:
    """R@10 as a multiple of chance on the same items."""

    def read(found: Found) -> float:
        one = next(d for d in found[measure] if (d["query"], d["gallery"]) == (query, gallery))
        return one["recall"]["10"] / one["chance"]["10"]

    return Column(f"{query} → {gallery} R@10 ÷ chance", read, headline=True)


def on_the_world(recipe: str, label: str, *changes: str, **more: object) -> Row:
    """A recipe with small encoders from scratch, on the made world."""
    small = {"damsm": (IMAGE, TEXT), "davenet": (IMAGE, AUDIO), "shre": (IMAGE, AUDIO, TEXT)}[recipe]
    return Row(
        label,
        recipe,
        ("world",),
        (*small, "space.width=32", "training.learning_rate=3e-3", *changes),
        **{"measures": BOTH, **more},
    )


WORLD = (
    "1,000 made scenes with one or two things each (150 of them test), encoders of width 32 from scratch; pictures are "
    "8 × 8 regions. Asked of every word that speaks of something visible, or of everything that sounds: is the hottest "
    "region on the right thing, how much of the heat lies inside its box, and, where there are two things, is the "
    "right one hotter? Chance is what even heat would give."
)

DAMSM = Page(
    "damsm",
    "Words look for their regions by attention, sentences for their pictures by cosine; both are contrasted.",
    [
        Table(
            "Flickr8k",
            [*recalls("text", "image"), *recalls("image", "text"), *COST],
            [
                Row("words and sentences", "damsm", ("flickr8k",), headline=True),
                Row("sentences alone (cosine)", "damsm", ("flickr8k",), ("space.similarity={name='cosine'}",)),
            ],
            "7 × 7 regions of EfficientNet-lite0 and the word pieces of MiniLM, both frozen; 1,000 test photographs.",
        ),
        Table(
            "The made world",
            [
                recall("text", "image", 10),
                *located("text", "image"),
                located("text", "image", "thing")[0],
                located("text", "image", "colour")[0],
                *COST,
            ],
            [
                on_the_world("damsm", "words and sentences", "training.epochs=20", headline=True),
                on_the_world(
                    "damsm", "sentences alone (cosine)", "training.epochs=20", "space.similarity={name='cosine'}"
                ),
            ],
            WORLD,
        ),
    ],
    "Words and regions of frozen encoders come, with 128 dimensions and eight epochs, close to `clap` with 512 and "
    "fifteen. But the sentences do it alone: with cosine, and nothing said about words, text finds pictures as well, "
    "pictures find text better, and it takes a fifteenth of the time. On the made world words find their pictures "
    "too, but they point at what they name only a little better than even heat would, and telling two things apart is "
    "hardly better than a coin. Plain cosine, with no attention at all, finds as much, and its shares of the score "
    "lie better on the thing. So the claim that this attention comes to fall on the named region did not hold on our "
    "data. A reason that can be seen in the maps: each region is first given to the word that fits it best, and empty "
    "ground, which fits no word, goes to any of them at full strength. One seed.",
)

KINDS = ("misa", "sisa", "sima")

DAVENET = Page(
    "davenet",
    "Pictures and speech by matchmaps: every region against every frame, boiled down to one score in three ways.",
    [
        Table(
            "GCompris: pictures and human voices",
            [*recalls("audio", "image"), *recalls("image", "audio"), *COST],
            [
                Row(
                    kind,
                    "davenet",
                    ("gcompris",),
                    (f"space.similarity.kind={kind}", SPEECH, "space.width=128", "training.epochs=20"),
                    headline=kind == "misa",
                )
                for kind in KINDS
            ],
            "One spoken word a picture: 743 to learn from, 243 to be tested on, none of which is heard in training.",
        ),
        Table(
            "Flickr8k and made speech",
            [*recalls("audio", "image"), *recalls("image", "audio"), *COST],
            [
                Row(
                    "misa",
                    "davenet",
                    ("flickr8k-spoken",),
                    (SPEECH, "space.width=128", "training.epochs=6", "training.validate=0"),
                    headline=True,
                )
            ],
            "The first caption of each photograph, read aloud by espeak-ng in six voices.",
        ),
        Table(
            "The made world",
            [recall("audio", "image", 10), *located("audio", "image"), *located("image", "audio")[::4], *COST],
            [
                on_the_world(
                    "davenet",
                    kind,
                    f"space.similarity.kind={kind}",
                    "training.epochs=20",
                    "training.batch=32",
                    "training.validate=0",
                    seeds=(0, 1, 2),
                    headline=kind == "misa",
                )
                for kind in KINDS
            ],
            WORLD,
        ),
    ],
    "GCompris asks for words that were never heard in training, and 743 spoken words do not teach what an unheard "
    "word is: recall stays at chance (4.1% at R@10). Captions read aloud do teach: after six epochs on 6,000 of them a "
    "photograph is found at 6.6 times chance, and `shre`, with pooled cosines and every negative of the batch, finds "
    "twice as many in eight. On the made world, where the same few things sound again and again, three seeds say that "
    "sima finds most and points best. That misa is the best of the three, as published, did not hold here: it differs "
    "most from seed to seed, and in two seeds of three its hottest region was never on what sounds. We suspect "
    "that regions which see far tell the picture as well as the thing itself does; the best of them is all that misa "
    "asks for.",
)

WITHOUT = {
    "distillation and ranking": (),
    "without distillation": ("objectives.0.weight=0.0",),
    "without ranking": ("objectives.1.weight=0.0",),
}

SHRE = Page(
    "shre",
    "Pictures teach words and sounds. No loss ever sees a text beside a sound: they meet only through pictures.",
    [
        Table(
            "Flickr8k and made speech",
            [
                lift("text", "audio"),
                recall("text", "audio", 10),
                recall("audio", "text", 10),
                recall("text", "image", 10),
                recall("audio", "image", 10),
                *COST,
            ],
            [
                Row(
                    label,
                    "shre",
                    ("flickr8k-spoken",),
                    (SPEECH, "training.epochs=8", "training.validate=0", *changes),
                    headline=not changes,
                )
                for label, changes in WITHOUT.items()
            ],
            "The first caption of each photograph, as text and read aloud by espeak-ng; teacher EfficientNet-lite0.",
        ),
        Table(
            "The made world",
            [
                lift("text", "audio"),
                recall("text", "audio", 10),
                recall("audio", "text", 10),
                recall("text", "image", 10),
                recall("audio", "image", 10),
                *COST,
            ],
            [
                on_the_world(
                    "shre",
                    label,
                    "space.shared=64",
                    "objectives.0.width=32",
                    "training.epochs=20",
                    "training.batch=32",
                    "training.validate=0",
                    *changes,
                    measures={"recall": EVALUATE},
                    seeds=(0, 1, 2) if not changes else (0,),
                    headline=not changes,
                )
                for label, changes in WITHOUT.items()
            ],
            "1,000 made scenes; what a text and a sound share there is thing, count and height. Encoders from scratch.",
        ),
    ],
    "Texts and sounds that no loss ever saw together find each other. Of Flickr8k's captions, read aloud, a text "
    "finds its speech among the first ten at 33 times chance (the goal was ten times), more often than the speech "
    "finds its photograph: both tell the same sentence, and the photograph that taught them only stood between. "
    "Each photograph of the training set has both a text and a speech here, so this is easier than pairs from "
    "different collections would be. On the made world it is about eight times chance, where among 150 scenes 15 "
    "times is all there is.\n\n"
    "Ranking does most of the work. Distillation alone brings texts to 28 times chance on photographs and to five on "
    "speech it never met, less on the made world, whose scenes are no photographs and whose things no classes of the "
    "teacher; added to ranking it gains a point or two. All of that by one seed, but for the first row of the made "
    "world. It needs the one class head that all modalities speak through, as published: with a head for each "
    "(`--set objectives.0.heads=2`) nothing holds the sides together and recall stays at chance.",
)

VIDEO = Page(
    "video",
    "Pictures and sounds of films find each other: the frame in the middle of a film and all that is heard in it.",
    [
        Table(
            "Made films",
            [*recalls("image", "audio"), *recalls("audio", "image"), *COST],
            [
                Row(
                    "small encoders from scratch",
                    "video",
                    ("films",),
                    (
                        *(IMAGE, AUDIO, "space.width=32", "training.learning_rate=3e-3", "training.epochs=15"),
                        *("training.batch=32", "training.validate=0"),
                    ),
                    seeds=(0, 1, 2),
                    headline=True,
                )
            ],
            "600 films of two seconds, in which things hop while they sound (90 of them test).",
        )
    ],
    "Nothing but films goes in, and no caption: what is seen in a film finds what is heard in it. Recall at ten is six "
    "times chance (11.1% of 90 films), at one not yet good: several films show the same things. `triptych index` "
    "takes a folder of films with this space, and `triptych search --sound`, `--picture` or `--video` finds the film "
    "by either half of it.",
)

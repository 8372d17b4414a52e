"""PAGES: all pages of results."""

from __future__ import annotations

from bench.results.contrastive import ALIGN_UNIFORM, CLAP, SIGLIP, WANG_CONTRASTIVE
from bench.results.grounding import DAMSM, DAVENET, SHRE, VIDEO
from bench.results.schema import Page
from bench.results.transport import MLTM, PARTIAL

PAGES: dict[str, Page] = {
    page.recipe: page
    for page in (CLAP, SIGLIP, ALIGN_UNIFORM, WANG_CONTRASTIVE, MLTM, PARTIAL, DAMSM, DAVENET, SHRE, VIDEO)
}

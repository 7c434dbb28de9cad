"""BABILong (Kuratov et al., 2024): facts of bAbI stories hidden in books, and a question at the end.

    stories = load_stories(path)                        # or generated_stories("qa1", 1000, seed=0)
    background = Background.of(sentences(book), encode) # encode: texts -> lists of token ids
    task = BabiLong(stories, background, encode)
    task.sample(7, length=4096, seed=0)                 # always the same sample

Samples have any length in tokens of the given tokenizer, from the facts alone to millions of tokens. The published
generator is `babilong/babilong_utils.py` of booydar/babilong; `docs/babilong.md` lists the differences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mnemo.lazy import lazy_names

if TYPE_CHECKING:
    from mnemo.data.babilong.answers import is_right, wilson_interval
    from mnemo.data.babilong.background import Background, sentences
    from mnemo.data.babilong.folder import BabiLongData, load_data, prepare_babilong
    from mnemo.data.babilong.generated import generated_sentences, generated_stories
    from mnemo.data.babilong.samples import BabiLong, Sample
    from mnemo.data.babilong.stories import Story, load_stories, parse_stories

__all__ = [
    "BabiLong",
    "BabiLongData",
    "Background",
    "Sample",
    "Story",
    "generated_sentences",
    "generated_stories",
    "is_right",
    "load_data",
    "load_stories",
    "parse_stories",
    "prepare_babilong",
    "sentences",
    "wilson_interval",
]

__getattr__ = lazy_names(
    __name__,
    {
        "mnemo.data.babilong.answers": ("is_right", "wilson_interval"),
        "mnemo.data.babilong.background": ("Background", "sentences"),
        "mnemo.data.babilong.folder": ("BabiLongData", "load_data", "prepare_babilong"),
        "mnemo.data.babilong.generated": ("generated_sentences", "generated_stories"),
        "mnemo.data.babilong.samples": ("BabiLong", "Sample"),
        "mnemo.data.babilong.stories": ("Story", "load_stories", "parse_stories"),
    },
)

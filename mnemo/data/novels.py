"""The corpus `novels`: 95 books of a public collection of 100 English novels, made for stylometric benchmarks.

https://github.com/computationalstylistics/100_english_novels, whose files are named by author, title and year. No book
is in two splits. Of the five that are left out, two were published after 1930.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mnemo.data.text_parts import BYTE_ORDER_MARK, Part
from mnemo.errors import MnemoError

TRAIN = """
Anon_Clara_1864 Barclay_Ladies_1917 Barclay_Postern_1911 Barclay_Rosary_1909 Bennet_Babylon_1902 Bennet_Helen_1910
Bennet_Imperial_1930 Blackmore_Erema_1877 Blackmore_Lorna_1869 Blackmore_Springhaven_1887 Braddon_Audley_1862
Braddon_Phantom_1883 Braddon_Quest_1871 Burnett_Lord_1886 Burnett_Princess_1905 Cbronte_Jane_1847
Cbronte_Shirley_1849 Cbronte_Villette_1853 Chesterton_Innocence_1911 Chesterton_Napoleon_1904 Conrad_Almayer_1895
Conrad_Rover_1923 Corelli_Innocent_1914 Corelli_Romance_1886 Corelli_Satan_1895 Dickens_Bleak_1853
Dickens_Oliver_1839 Doyle_Hound_1902 Doyle_Micah_1889 Eliot_Adam_1859 Eliot_Daniel_1876 Ford_Girl_1907
Ford_Post_1926 Ford_Soldier_1915 Forster_Angels_1905 Forster_Howards_1910 Galsworthy_Man_1906
Galsworthy_Saints_1919 Gaskell_Lovers_1863 Gaskell_Wives_1865 Gissing_Unclassed_1884 Gissing_Warburton_1903
Gissing_Women_1893 Haggard_Mines_1885 Haggard_She_1887 Haggard_Sheallan_1921 Hardy_Jude_1895 Hardy_Madding_1874
James_Ambassadors_1903 James_Roderick_1875 James_Tragic_1890 Kipling_Captains_1896 Kipling_Light_1891
Lawrence_Peacock_1911 Lawrence_Serpent_1926 Lawrence_Women_1920 Lee_Albany_1884 Lee_Brown_1884 Lee_Penelope_1903
Lytton_Kenelm_1873 Lytton_Novel_1853 Lytton_What_1858 Meredith_Feverel_1859 Meredith_Marriage_1895
Meredith_Richmond_1871 Morris_Roots_1890 Morris_Water_1897 Morris_Wood_1894 Schreiner_Farm_1883
Schreiner_Trooper_1897 Schreiner_Undine_1929 Stevenson_Arrow_1888 Stevenson_Catriona_1893 Thackeray_Esmond_1852
Thackeray_Pendennis_1850 Thackeray_Virginians_1859 Trollope_Angel_1881 Trollope_Phineas_1869 Trollope_Warden_1855
Ward_Ashe_1905 Ward_Harvest_1920 Ward_Milly_1881 Wcollins_Legacy_1889 Wcollins_Woman_1860 Woolf_Night_1919
"""
VALID = "Chesterton_Thursday_1908 Eliot_Felix_1866 Forster_View_1908 Stevenson_Treasure_1883 Wcollins_Basil_1852"
TEST = "Burnett_Garden_1911 Doyle_Lost_1912 Gaskell_Ruth_1855 Hardy_Tess_1891 Woolf_Lighthouse_1927"
BOOKS = {split: tuple(names.split()) for split, names in {"train": TRAIN, "valid": VALID, "test": TEST}.items()}

WANTED = f"books of the collection 100_english_novels, a folder or zip with {BOOKS['train'][0]}.txt and others"
"""What is taken instead of files with the finished splits, for a message"""
MOST_NAMED = 3
"""Missing books in a message"""


def has_books(parts: Sequence[Part]) -> bool:
    """Whether some of the files are books of the collection."""
    return bool({part.name for part in parts} & {_file(book) for books in BOOKS.values() for book in books})


def join_books(parts: Sequence[Part], folder: Path) -> list[Part]:
    """Write the text of each split to a file in `folder`: its books by name, with a NUL byte between two."""
    by_name = {part.name: part for part in parts}
    missing = [_file(book) for books in BOOKS.values() for book in books if _file(book) not in by_name]
    if missing:
        more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
        raise MnemoError(f"novels: the collection lacks {', '.join(missing[:MOST_NAMED])}{more}")
    return [Part(_write(folder / f"novels.{split}.txt", books, by_name)) for split, books in BOOKS.items()]


def _write(path: Path, books: Sequence[str], by_name: Mapping[str, Part]) -> Path:
    path.write_bytes(b"\0".join(_text(by_name[_file(book)]) for book in books))
    return path


def _text(part: Part) -> bytes:
    """A book without byte-order mark and empty lines around it; lines end with a newline alone."""
    data = part.load().tobytes().removeprefix(BYTE_ORDER_MARK)
    return data.replace(b"\r\n", b"\n").strip(b"\n") + b"\n"


def _file(book: str) -> str:
    return f"{book}.txt"

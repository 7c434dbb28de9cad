"""Load tensors from untrusted files: safetensors, .npz, and pickles, the latter in a restricted process."""

from __future__ import annotations

import _compat_pickle
import json
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mnemo.errors import MnemoError, one_line
from mnemo.files.safe_load import tensors_problem
from mnemo.files.tensor_file import load_tensors
from mnemo.interop.convert import restricted_loader

PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".tar")
VOCABULARY_PICKLES = ("vocab.bin", "vocab.pkl", "corpus.bin", "cache.pkl", "cache.pt", "corpus-info.pkl", "vocab.pt")
"""Files in which the published code stores its vocabulary or its whole corpus."""
TAKE_VOCABULARY = (
    "import json, pickle, torch; v = {load}; "
    "v = v.vocab if hasattr(v, 'vocab') else v; "
    "json.dump(v['idx2sym'] if isinstance(v, dict) else v.idx2sym, open('vocab.json', 'w'))"
)

SAVE_STATE_DICT = "torch.save(model.state_dict(), 'state_dict.pt')"
PYTHONS_OWN = sys.stdlib_module_names | _compat_pickle.IMPORT_MAPPING.keys()
"""Modules of the standard library, including their Python 2 names, which old pickles use."""
NUMPY_DATA = {
    *("numpy.ndarray", "numpy.dtype"),
    *(f"numpy.{core}.multiarray.{name}" for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
}


@dataclass(frozen=True, kw_only=True)
class WeightsFile:
    """The content of a file of weights."""

    tensors: dict[str, Tensor]
    key: str | None = None
    """The entry of the checkpoint that holds the tensors; None for a bare state dict."""
    others: dict[str, Any] = field(default_factory=dict)
    """The other entries, as far as they are plain values."""


def load_weights(path: Path) -> WeightsFile:
    """Load the tensors of a file. No code in the file is ever run."""
    refuse_vocabulary_pickle(path)
    if not path.is_file():
        raise MnemoError(f"{path} does not exist" if not path.exists() else f"{path} is not a file")
    if path.suffix in (".index", ".meta") or ".data-0" in path.name or path.name == "checkpoint":
        raise MnemoError(
            f"{path} belongs to a TensorFlow checkpoint: save its variables as .npz, on a machine with TensorFlow, by "
            "np.savez(OUT, **{n: tf.train.load_variable(CKPT, n) for n, _ in tf.train.list_variables(CKPT)})"
        )
    if path.suffix == ".safetensors":
        return WeightsFile(tensors=load_tensors(path))
    if path.suffix == ".npz":
        return WeightsFile(tensors=_load_npz(path))
    if path.suffix in PICKLES:
        return _load_pickle(path)
    problem = tensors_problem(path)
    if problem is None:
        return WeightsFile(tensors=load_tensors(path))
    raise MnemoError(f"{path} is not a file of weights: use .safetensors, .npz or one of {', '.join(PICKLES)}")


def refuse_vocabulary_pickle(path: Path) -> None:
    if path.name not in VOCABULARY_PICKLES:
        return
    load = f"torch.load('{path.name}', weights_only=False)"
    if path.suffix == ".pkl":
        load = f"pickle.load(open('{path.name}', 'rb'))"
    raise MnemoError(
        f"{path} is a pickle: loading it can run any code (CVE-2023-6730, CVE-2023-7018), so mnemo refuses it. If you "
        f"trust it, run this with the code that wrote it, then use --vocab vocab.json: "
        f"{TAKE_VOCABULARY.format(load=load)}"
    )


def _load_npz(path: Path) -> dict[str, Tensor]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: torch.from_numpy(np.ascontiguousarray(archive[name])) for name in archive.files}
    except (ValueError, OSError, EOFError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        reason = "it holds pickled objects" if "allow_pickle" in str(error) else one_line(error)
        raise MnemoError(f"{path} is damaged or not an .npz file of plain arrays: {reason}") from None


def _load_pickle(path: Path) -> WeightsFile:
    with tempfile.TemporaryDirectory(prefix="mnemo-convert-") as folder:
        command = [sys.executable, "-P", restricted_loader.__file__, str(path.resolve()), folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        try:
            rest = json.loads((Path(folder) / restricted_loader.REST).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise MnemoError(f"{path} cannot be loaded: the restricted process failed ({reason})") from None
        if "problem" in rest:
            raise _refusal(path, rest)
        tensors = load_tensors(Path(folder) / restricted_loader.WEIGHTS)
    tensors |= {alias: tensors[name] for alias, name in rest["aliases"].items()}
    return WeightsFile(tensors=tensors, key=rest["key"], others=rest["others"])


def _refusal(path: Path, rest: dict[str, Any]) -> MnemoError:
    problem, name = rest["problem"], rest.get("name", "")
    if problem == "memory":
        return MnemoError(f"{path} needs far more memory than its size explains: it is refused")
    if problem == "damaged":
        return MnemoError(f"{path} is damaged, truncated or not written by torch.save")
    if problem == "pickle":
        return MnemoError(
            f"{path} is a Python pickle, not a state dict written by torch.save: loading it could run code, so it is "
            f"refused. Save the weights with the code that wrote it, and convert the new file: {SAVE_STATE_DICT}"
        )
    if problem == "content":
        article = "an" if name[:1].lower() in "aeiou" else "a"
        return MnemoError(f"{path} holds {article} {name}, not a state dict: {SAVE_STATE_DICT} writes one")
    if not (_may_be_data(name) or _may_be_module(name)):
        return MnemoError(f"{path} would call {name} when loaded, which no weights need: it is refused")
    return _offer_two_lines(path, name)


def _may_be_module(name: str) -> bool:
    """Return whether a global of a pickle could be the class of a model: not part of Python's standard library."""
    module, _, member = name.rpartition(".")
    top = module.partition(".")[0]
    return bool(top) and top not in PYTHONS_OWN and member.lstrip("_")[:1].isupper()


def _may_be_data(name: str) -> bool:
    """Return whether a global of a pickle is data that checkpoints commonly store beside tensors."""
    return name.startswith(("collections.", "argparse.Namespace")) or name in NUMPY_DATA


def _offer_two_lines(path: Path, name: str) -> MnemoError:
    make = SAVE_STATE_DICT
    what, loaded = f"a whole pickled module, or holds one ({name})", "model"
    if _may_be_data(name) or name.startswith("utils."):
        make = "torch.save({k: checkpoint[k] for k in ('model_state', 'model_config')}, 'state_dict.pt')"
        what, loaded = f"a pickle with more than tensors in it ({name})", "checkpoint"
    return MnemoError(
        f"{path} is {what}: loading it can run any code, so it is refused. If you trust it, run these two lines with "
        f"the code that wrote it, and convert the new file: {loaded} = torch.load('{path.name}', map_location='cpu', "
        f"weights_only=False); {make}"
    )

"""The public interface: exactly these names, each loadable, none in the way of a module."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import mnemo

PUBLIC = """
Batch CheckFailed Compressive ContiguousStream Corpus DataConfig DecodeState Decoder DropoutConfig EmbeddingConfig
EvalConfig Infinite InitConfig LSTM Learned LoadedRun Lookahead MemoryTokens MnemoError Model ModelConfig NoPositions
Output Plan QRNN Recipe Relative Rotary Run Score SentenceStream Session Shaw Sinusoidal Split TrainConfig XL create_run
load_memory open_run prepare preset relative_attention relative_attention_reference save_memory evaluate generate train
""".split()


def test_the_public_interface_is_pinned():
    assert sorted(mnemo.__all__) == sorted(PUBLIC)
    assert dir(mnemo) == sorted(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_loads_from_its_home(name: str):
    value = getattr(mnemo, name)
    home = next(module for module, names in mnemo._HOME.items() if name in names)
    assert value is getattr(importlib.import_module(home), name)


def test_no_name_hides_a_module():
    modules = {module.name for module in pkgutil.iter_modules(mnemo.__path__)}
    assert not modules & set(PUBLIC)


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'Transformer'"):
        _ = mnemo.Transformer  # type: ignore[attr-defined]

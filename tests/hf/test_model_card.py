"""The page in a saved folder, and other libraries' view of a model with memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.hf_backbones import llama, tokens
from helpers.real_models import TINY_LLAMA, tiny_llama

from mnemo import MnemoError
from mnemo.hf import MemoryConfig, add_memory, load_adapter, save_adapter


def front(folder: Path) -> dict[str, Any]:
    return yaml.safe_load((folder / "README.md").read_text().split("---")[1])


def test_saving_writes_a_card_that_says_how_to_load_the_model(tmp_path: Path) -> None:
    model = add_memory(tiny_llama(), tokens=4, segment=16, start="overlap")
    model.save_pretrained(tmp_path)
    page = (tmp_path / "README.md").read_text()
    for words in ("pip install", "import mnemo.hf", "4 recurrent memory tokens", "segments of 16", TINY_LLAMA.name):
        assert words in page
    assert str(TINY_LLAMA.parent) not in page and 'AutoTokenizer.from_pretrained("THIS FOLDER")' in page
    for words in ("vLLM", "llama.cpp", "GGUF", "trust_remote_code", "| start | overlap |"):
        assert words in page
    assert front(tmp_path)["license"] == "other"
    model.save_card(tmp_path, training="600 steps on stories", scores={"accuracy at 4 segments": 0.99})
    page = (tmp_path / "README.md").read_text()
    assert "600 steps on stories" in page and "| accuracy at 4 segments | 0.99 |" in page
    (tmp_path / "README.md").write_text("my own page")
    model.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "my own page"


def test_cards_of_adapters_and_of_models_of_the_hub(tmp_path: Path) -> None:
    model: Any = add_memory(llama(), tokens=2, segment=8)
    model.config.text_config._name_or_path = "owner/name"
    save_adapter(model, tmp_path / "adapter")
    page = (tmp_path / "adapter" / "README.md").read_text()
    assert 'load_adapter("THIS FOLDER", AutoModelForCausalLM.from_pretrained("owner/name"))' in page
    assert 'AutoTokenizer.from_pretrained("owner/name")' in page and front(tmp_path / "adapter")["license"] == "other"
    model.save_card(tmp_path, licence="apache-2.0")
    assert front(tmp_path) == front(tmp_path / "adapter") | {"license": "apache-2.0", "base_model": "owner/name"}


def test_the_licence_of_a_local_backbone_is_kept(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path / "backbone")
    (tmp_path / "backbone" / "README.md").write_text("---\nlicense: apache-2.0\n---\n# A model\n")
    model: Any = add_memory(type(llama()).from_pretrained(tmp_path / "backbone"), tokens=2, segment=8)
    model.save_pretrained(tmp_path / "saved")
    assert front(tmp_path / "saved")["license"] == "apache-2.0"


LOADS_WITH_MNEMO = """
import sys
from transformers import AutoConfig, AutoModelForCausalLM
try:
    AutoConfig.from_pretrained(sys.argv[1])
except ValueError as error:
    print(error)
import mnemo.hf
AutoModelForCausalLM.from_pretrained(sys.argv[1])
"""


@pytest.mark.thorough
def test_a_folder_without_mnemo_names_the_type_that_the_card_explains(tmp_path: Path) -> None:
    add_memory(llama(), tokens=2, segment=8).save_pretrained(tmp_path)
    done = subprocess.run([sys.executable, "-c", LOADS_WITH_MNEMO, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0 and "mnemo-memory" in done.stdout, done.stderr


def test_the_configuration_has_the_sizes_of_the_backbone(tmp_path: Path) -> None:
    model = add_memory(tiny_llama(), tokens=2, segment=16)
    model.save_pretrained(tmp_path)
    for config in (model.config, MemoryConfig.from_pretrained(tmp_path)):
        found = (config.vocab_size, config.hidden_size, config.num_hidden_layers, config.max_position_embeddings)
        assert found == (2048, 128, 2, 512)
        assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (1, 2, None)
    model.config.pad_token_id = 0
    assert model.config.text_config.pad_token_id == 0


def test_lora_without_the_memory_warns_once() -> None:
    peft = pytest.importorskip("peft")
    x = tokens(1, 12)
    model = peft.get_peft_model(
        add_memory(llama(), tokens=2, segment=8), peft.LoraConfig(r=2, target_modules=["q_proj"])
    ).train()
    with pytest.warns(UserWarning, match="the memory is frozen") as caught:
        for _ in range(2):
            model(input_ids=x, labels=x)
    assert len(caught) == 1


def test_an_adapter_of_a_gguf_backbone_says_how_to_load_it(tmp_path: Path) -> None:
    backbone = llama()
    save_adapter(add_memory(backbone, tokens=2, segment=8), tmp_path / "adapter")
    description = tmp_path / "adapter" / "mnemo_adapter.json"
    folder = tmp_path / "gguf"
    folder.mkdir()
    (folder / "model.Q4.gguf").write_bytes(b"GGUF")
    saved = json.loads(description.read_text())
    saved["backbone"]["name"] = str(folder)
    saved.pop("checksum", None)
    description.write_text(json.dumps(saved))
    with pytest.raises(MnemoError, match="is a GGUF file: pass it as load_adapter"):
        load_adapter(tmp_path / "adapter")

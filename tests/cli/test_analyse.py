"""`mnemo analyse`: a page about a text, for every tokenizer and memory, and clear words where there is none."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers.tiny_runs import MODEL, SEGMENT, sample_text, tiny_run

from mnemo import analysis
from mnemo.analysis import Gain
from mnemo.cli import main
from mnemo.cli.analyse_text import compared
from mnemo.data.corpus import Corpus
from mnemo.data.known_corpora import Option
from mnemo.memory import LSTM, XL, Lookahead, MemoryTokens, Plan
from mnemo.model import ModelConfig
from mnemo.model.positions import NoPositions
from mnemo.report import shaded_text
from mnemo.report.analysis_page import binned
from mnemo.report.results import read_results
from mnemo.storage.checkpoint import checkpoint_steps
from mnemo.storage.run_folder import open_run

LIMIT = 60
LOSSES = {"losses-along-the-text", "gain-along-the-text", "gain-by-position"}
FIGURES = LOSSES | {"attention-by-layer", "attention-by-head"}


def text_file(folder: Path, text: str | None = None, name: str = "my book.txt") -> Path:
    path = folder / name
    path.write_text(sample_text(3) if text is None else text, encoding="utf-8")
    return path


def analyse(folder: Path, *options: object, run: Path | None = None, text: object = None) -> int:
    text = text_file(folder) if text is None else text
    words = ["analyse", run or tiny_run(), text, "--device", "cpu", "--out", folder / "out", "--limit", LIMIT]
    return main(list(map(str, [*words, *options])))


def answer(capsys: pytest.CaptureFixture[str], folder: Path, *options: object, **more: Any) -> dict[str, Any]:
    assert analyse(folder, "--json", *options, **more) == 0
    return json.loads(capsys.readouterr().out)


def page(folder: Path) -> str:
    return (folder / "out" / "report.html").read_text()


def drawn(folder: Path) -> set[str]:
    return {path.stem for path in (folder / "out" / "report-files").glob("*.svg")}


@pytest.mark.parametrize(
    ("data", "warning"),
    [
        (bytes(range(256)) * 2, "is binary data, not text: its bytes are read as they are"),
        ("café ".encode("latin-1") * 60, "is not UTF-8 text: its bytes are read as they are"),
        ("café ".encode() * 60, None),
    ],
    ids=["binary", "latin-1", "text"],
)
def test_what_is_not_text_is_named(
    data: bytes, warning: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_bytes(data)
    assert analyse(tmp_path, text=tmp_path / "file") == 0
    warned = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert warned == ([] if warning is None else [f"mnemo: warning: {tmp_path / 'file'} {warning}"])


@pytest.mark.parametrize("tokenizer", ["bytes", pytest.param("chars", marks=pytest.mark.thorough), "words"])
def test_a_page_for_every_tokenizer(tokenizer: Option, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, tmp_path, run=tiny_run(tokenizer))
    run, ids = open_run(tiny_run(tokenizer), device="cpu"), Corpus.open(f"tiny-{tokenizer}").tokenizer
    tokens = ids.encode(text_file(tmp_path).read_bytes())[:LIMIT]
    gain = analysis.gain_from_memory(run.model, tokens, segment=SEGMENT)
    assert found["loss"] == pytest.approx(gain.with_memory.mean())
    assert found["loss_without_memory"] == pytest.approx(gain.without.mean())
    assert drawn(tmp_path) == FIGURES
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out/report-files/tokens.csv").read_text())))
    assert [int(row["id"]) for row in rows] == tokens[1:].tolist()
    assert [float(row["gain"]) for row in rows] == pytest.approx(gain.gain.tolist())


def test_a_page_of_byte_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tokenizers")
    assert answer(capsys, tmp_path, run=tiny_run("bpe", model=replace(MODEL, vocab_size=300)))["gain"] is not None


def test_the_page_is_whole_and_loads_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert analyse(tmp_path) == 0
    out, err = capsys.readouterr()
    html = page(tmp_path)
    assert out.splitlines()[-1] == str(tmp_path / "out" / "report.html")
    assert f"read the first {LIMIT} of" in err
    assert "<script" not in html and not re.findall(r'(?:src|href)="https?:', html)
    assert "nothing measured yet" not in html
    for link in re.findall(r'<a href="([^"#]+)"', html):
        assert (tmp_path / "out" / link).is_file()
    for name in drawn(tmp_path):
        ElementTree.parse(tmp_path / "out" / "report-files" / f"{name}.svg")
    shown = re.sub("<[^>]+>", "", re.findall(r"<pre[^>]*>(.*?)</pre>", html, re.DOTALL)[-1])
    assert shown == sample_text(3).encode()[:LIMIT].decode()


def test_without_out_the_page_is_in_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tiny_run()
    assert main(["analyse", str(run), str(text_file(tmp_path)), "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["page"] == str(run / "analyses" / "my-book" / "report.html") and Path(found["page"]).is_file()
    assert found["tokens"] == found["tokens_in_text"] == len(sample_text(3).encode())


def test_a_text_from_a_pipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    by_file = answer(capsys, tmp_path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text_file(tmp_path).read_bytes())))
    assert answer(capsys, tmp_path, text="-") == by_file
    assert "<h1>stdin</h1>" in page(tmp_path)


def lookahead() -> ModelConfig:
    return replace(MODEL, memory=Plan(long=Lookahead(length=SEGMENT)))


def test_alpha_of_a_look_ahead_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, tmp_path, run=tiny_run(model=lookahead()))
    assert drawn(tmp_path) == FIGURES | {"alpha", "alpha-by-layer"}
    assert found["alpha"]["layers"] == [0] and len(found["alpha"]["mean"][0]) == SEGMENT
    assert all(0 < value < 1 for value in found["alpha"]["mean"][0])
    short = answer(capsys, tmp_path, "--memory-length", 200, run=tiny_run(model=lookahead()))
    assert short["alpha"] is None and short["left_out"] == ["alpha: the text is too short to fill the memory"]
    assert drawn(tmp_path) == FIGURES


def test_memory_tokens_have_a_column_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = replace(MODEL, tokens=MemoryTokens(num=2), memory=Plan(long=XL(length=0)))
    found = answer(capsys, tmp_path, run=tiny_run(model=model))
    assert all(0 < value < 1 for value in found["attention"]["memory_tokens"])
    assert "memory tokens" in (tmp_path / "out/report-files/attention-by-layer.csv").read_text().splitlines()[0]


def test_recurrent_layers_have_losses_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tiny_run(model=replace(MODEL, memory=Plan(long=LSTM()), positions=NoPositions()))
    found = answer(capsys, tmp_path, run=run)
    assert found["attention"] is None and found["gain"] != 0
    (said,) = found["left_out"]
    assert "LSTM layers have none" in said and said in page(tmp_path)
    assert drawn(tmp_path) == LOSSES


def test_a_loss_by_memory_is_no_negative_saving() -> None:
    assert compared(2, 1) == "2.0000 bits each with memory, 1.0000 without: memory costs 1.0000"
    assert compared(1, 2).endswith("memory saves 1.0000")


def test_a_model_without_memory_gains_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, tmp_path, run=tiny_run(model=replace(MODEL, memory=Plan(long=XL(length=0)))))
    assert found["gain"] == pytest.approx(0, abs=1e-6) and found["passages"] == []
    assert "keeps nothing" in found["left_out"][0] and drawn(tmp_path) == FIGURES


def test_options_change_what_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    usual = answer(capsys, tmp_path)
    longer = answer(capsys, tmp_path, "--memory-length", 30, "--segment", 4)
    assert usual["segment"] == SEGMENT and longer["segment"] == 4
    assert usual["attention"]["distances"][-1] == "8-15" and longer["attention"]["distances"][-1] == "32-33"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--limit", -1), "limit -1 is negative"),
        (("--segment", 0), "segment 0 is not positive"),
        (("--memory-length", -2), "memory length -2 is negative"),
        (("--limit", SEGMENT), "and a segment 8, but memory has no effect"),
        (("--segment", 59), "and a segment 59, but memory has no effect"),
    ],
)
def test_wrong_options(
    options: tuple[object, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert analyse(tmp_path, *options) == 2
    err = capsys.readouterr().err.strip().splitlines()
    assert len(err) == 1 and message in err[0]
    assert not (tmp_path / "out").exists()


def test_wrong_files(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def said(*options: object, **more: Any) -> str:
        assert analyse(tmp_path, *options, **more) == 2
        return capsys.readouterr().err

    assert "no run 'nowhere'" in said(run=Path("nowhere"))
    assert "nothing.txt is not a file" in said(text=tmp_path / "nothing.txt")
    assert "it contains no text" in said(text=text_file(tmp_path, "", "empty.txt"))
    assert "the text has 9 bytes and a segment 8 tokens, but memory has no effect" in said(
        text=text_file(tmp_path, 9 * "a")
    )
    assert "and a segment 8, but memory has no effect" in said(
        text=text_file(tmp_path, "the cat\n", "b.txt"), run=tiny_run("words")
    )
    assert "not in the vocabulary" in said(run=tiny_run("chars"), text=text_file(tmp_path, "the cat Ω" * 9, "odd.txt"))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert "the text from the pipe: it contains no text" in said(text="-")
    (tmp_path / "file").touch()
    assert "is not a folder" in said("--out", tmp_path / "file")


def test_shades_tell_help_from_harm() -> None:
    assert [shaded_text.shade(bits) for bits in (0, 0.2, 0.25, 1.5, -2.5, -9)] == [None, None, "p1", "p2", "n3", "n4"]
    text = shaded_text.shaded(["<", "a", "b", "\0", "c"], np.array([3.0, 3.0, 0.0, -1.0]), segment=3)
    assert text == [("<", None, False), ("ab", "p3", False), ("␀", None, False), ("c", "n2", True)]


def test_passages_are_the_unusual_ones() -> None:
    """Memory saves 5 at each segment's start; one stretch elsewhere stands out, another is the second."""
    without = np.zeros(10 * 40)
    without[::40] = 5.0
    usual = Gain(with_memory=np.zeros(400), without=without.copy(), segment=40)
    assert shaded_text.passages(usual, "word") == []
    without[210:220] += 1.0
    without[330:340] += 0.5
    found = shaded_text.passages(Gain(with_memory=np.zeros(400), without=without, segment=40), "word")
    assert len(found) >= 2
    for passage, begin in zip(found, (210, 330), strict=False):
        assert passage.begin - 1 <= begin and passage.end - 1 >= begin + 10
    spans = sorted((passage.begin, passage.end) for passage in found)
    assert all(end <= begin for (_, end), (begin, _) in zip(spans, spans[1:], strict=False))


def test_short_texts_are_ranked_by_the_gain_itself() -> None:
    gain = Gain(with_memory=np.zeros(60), without=np.arange(60.0), segment=20)
    assert shaded_text.passages(gain, "word")[0][:2] == (45, 61)
    assert (shaded_text.unusual(gain)[:20] == 0).all()


def test_curves_are_means_of_neighbours() -> None:
    assert binned(np.array([1.0, 3.0, 5.0, 7.0]), first=1, most=2) == [(1.5, 2.0), (3.5, 6.0)]
    assert binned(np.array([1.0, 3.0]), most=5) == [(0.0, 1.0), (1.0, 3.0)]


def test_growth_shows_every_kept_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, text = tiny_run(), text_file(tmp_path)
    words = ["analyse", str(run), str(text), "--growth", "--device", "cpu", "--limit", str(LIMIT)]
    words += ["--out", str(tmp_path / "out")]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    steps = checkpoint_steps(run)
    assert [each["step"] for each in found["steps"]] == steps and len(steps) == 2
    assert json.loads(Path(found["saved"]).read_text())["steps"] == found["steps"]
    assert found["steps"][0]["weights"] != found["steps"][1]["weights"]
    notes: list[str] = []
    assert list(read_results(tmp_path / "out", notes).growth) == steps and found["kind"] == "growth" and not notes
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [int(line.split()[0]) for line in lines[2:-1]] == steps and lines[-1] == found["saved"]


def test_growth_of_a_shipped_model_is_one_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["analyse", "novels-small", str(text_file(tmp_path)), "--growth", "--device", "cpu", "--limit", str(LIMIT)]
    assert main(words) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_growth_of_a_ruined_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ruined(*words: Any) -> Any:
        run = open_run(*words)
        if run.step:
            run.model.embedding.tables[0].data.fill_(float("nan"))  # type: ignore[union-attr]
        return run

    monkeypatch.setattr("mnemo.cli.analyse_growth.open_run", ruined)
    words = ["analyse", str(tiny_run()), str(text_file(tmp_path)), "--growth", "--device", "cpu", "--limit", str(LIMIT)]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    first, last = capsys.readouterr().out.splitlines()[2:4]
    assert "nan" not in first and "inf after stage 0" in last and "infx embedding.tables.0" in last
    saved = json.loads((tmp_path / "out" / "growth.json").read_text())
    assert saved["steps"][1]["loss"] is None
    assert main([*words, "--which", "last"]) == 2

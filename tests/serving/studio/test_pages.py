"""JSON of the pages Runs, Memory and Papers, and the headers of the shell."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from helpers.run_folders import make_run, recipe, score, write_result
from helpers.studio_server import studio_server
from helpers.tiny_runs import tiny_run

from mnemo.serving.studio import StudioSettings, memory_pages
from mnemo.serving.studio.run_pages import CurveFollower
from mnemo.storage.run_folder import locked

ROOT = Path(__file__).resolve().parents[3]
NASTY = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studio")
    runs = folder / "runs"
    make_run(runs / "first", recipe())
    make_run(runs / "second", recipe(0), floor=1.8, steps=100)
    make_run(runs / NASTY, recipe())
    make_run(runs / "nested" / "inner", recipe())
    make_run(runs / "broken", recipe())
    (runs / "broken" / "recipe.json").write_text("{")
    shutil.copytree(tiny_run(), runs / "tiny")
    for name in ("xl-context-length", "long-profile"):
        results = folder / "results" / name / "small"
        results.mkdir(parents=True)
        shutil.copy(ROOT / "results" / name / "small" / "results.json", results)
    return folder


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[httpx2.Client]:
    studio = StudioSettings(runs=folder / "runs", results=(folder / "none", folder / "results"))
    with studio_server(folder, studio) as server, httpx2.Client(base_url=server.url, timeout=120) as client:
        yield client


def get(client: httpx2.Client, path: str, **query: Any) -> Any:
    answer = client.get(f"/studio/api/{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(answer: httpx2.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    return answer.json()["error"]["message"]


def test_every_page_is_the_shell_with_a_strict_policy(client: httpx2.Client) -> None:
    answer = client.get("/studio/runs")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "script-src 'self' 'sha256-" in policy
    assert client.get("/", follow_redirects=False).headers["location"] == "/studio/playground"
    assert client.get("/studio/assets/studio.js").headers["content-type"].startswith("text/javascript")
    assert client.get("/studio/assets/vendor/preact.mjs").headers["content-type"].startswith("text/javascript")
    assert "data-theme=dark" in client.get("/studio/colors.css").text
    assert client.get("/studio/assets/../shell.py").status_code == 404
    assert client.get("/studio/assets/%2e%2e/shell.py").status_code == 404


def test_runs_are_listed_with_states(client: httpx2.Client) -> None:
    runs = {run["name"]: run for run in get(client, "runs")["runs"]}
    assert set(runs) == {"first", "second", NASTY, "nested/inner", "broken", "tiny", "novels-small"}
    assert runs["broken"]["state"] == "damaged" and "recipe.json" in runs["broken"]["note"]
    assert runs["tiny"]["state"] == "finished" and runs["tiny"]["best"]["value"] > 0
    assert runs["novels-small"]["shipped"] and runs["novels-small"]["best"]["step"] == 6000
    assert runs["first"]["memory"] == "64 in all 4 layers"


def test_a_run_in_detail(client: httpx2.Client, folder: Path) -> None:
    write_result(folder / "runs" / "first", "sweep", kind="sweep", scores=[score(0, 2.0), score(64, 1.5)])
    found = get(client, "run", name="first")
    assert len(found["curve"]["train"]) == 40 and found["curve"]["unit"] == "bpc"
    assert [slots for slots, _ in found["sweeps"][0]] == [0, 64]
    assert dict(found["facts"])["Corpus"] == "python (bytes)"
    assert json.loads(found["recipe"])["preset"] == "tiny-bytes"


@pytest.mark.parametrize("name", ["nosuch", "../runs/first", "/etc", "first/../first", ""])
def test_only_listed_names_are_opened(client: httpx2.Client, name: str) -> None:
    assert "there is no run" in refused(client.get("/studio/api/run", params={"name": name}), 404)
    body = {"run": name, "text": "hello"}
    assert "there is no run" in refused(client.post("/studio/api/memory/read", json=body), 404)


def test_commands_depend_on_the_state(client: httpx2.Client, folder: Path) -> None:
    def commands(name: str) -> dict[str, str]:
        return {each["label"]: each["command"] for each in get(client, "run", name=name)["commands"]}

    runs = folder / "runs"
    assert commands("tiny")["Train longer"] == f"mnemo train --resume tiny --runs {runs} --train.steps 4"
    assert commands("second")["Resume"] == f"mnemo train --resume second --runs {runs}"
    assert commands("second")["Repeat"].startswith(
        f"mnemo train --config {runs}/second/recipe.json --name second-again"
    )
    assert commands("broken") == {"Check": f"mnemo verify {runs}/broken"}
    assert commands("novels-small")["Chat"] == "mnemo chat novels-small"
    assert f"'{runs}/{NASTY}'" in commands(NASTY)["Score"]  # quoted for a shell
    with locked(runs / "first"):
        assert commands("first")["Watch"] == f"mnemo watch {runs}/first"


def read_events(client: httpx2.Client, count: int, **query: Any) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    with client.stream("GET", "/studio/api/runs/events", params=query) as answer:
        kind = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            if line.startswith("data: "):
                found.append((kind, json.loads(line.removeprefix("data: "))))
            if len(found) == count:
                return found
    raise AssertionError(found)


def test_the_stream_begins_with_curves_and_the_list(client: httpx2.Client) -> None:
    (first, curve), (second, runs) = read_events(client, 2, name="second")
    assert (first, second) == ("curve", "runs") and curve["name"] == "second" and len(curve["train"]) == 10
    assert "tiny" in {run["name"] for run in runs}
    assert "at most 16" in refused(
        client.get("/studio/api/runs/events", params={"name": [f"run{i}" for i in range(17)]}), 400
    )


def test_only_new_points_are_sent(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", recipe(), steps=100)
    follower = CurveFollower("run")
    ((_, whole),) = follower.news(folder)
    assert len(whole["train"]) == 10 and follower.news(folder) == []
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 110, "split": "train", "loss": 2.0, "lr": 0.001}\n{"step": 120, "spl')
    ((_, grown),) = follower.news(folder)
    assert grown["append"] and [step for step, _ in grown["train"]] == [110] and grown["valid"] == []
    lines = (folder / "metrics.jsonl").read_text().splitlines()[:5]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")  # as a resume cuts it back
    ((_, cut),) = follower.news(folder)
    assert not cut["append"] and len(cut["train"]) == 5
    assert follower.news(None) == [("gone", {"name": "run"})]


def test_memory_of_a_text(client: httpx2.Client) -> None:
    choices = get(client, "memory/choices")
    assert choices["first"] == "novels-small" and {"tiny", "novels-small"} <= set(choices["runs"])
    text = choices["sample"] + "café"
    found = client.post("/studio/api/memory/read", json={"run": "novels-small", "text": text, "memory": 64}).json()
    assert "".join(found["pieces"]) == text and found["tokens"] == len(text.encode())
    closed = found["tokens"] - found["open"]
    long = [layer for layer in found["layers"] if layer["long"]]
    assert [layer["ranges"] for layer in long] == [[{"begin": closed - 64, "end": closed, "slots": 64, "rows": 1}]] * 2
    assert 0 < found["loss"] < 3 and found["left_out"] == 0


def test_a_long_text_is_cut_and_says_so(client: httpx2.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_pages, "MOST_TOKENS", 200)
    found = client.post("/studio/api/memory/read", json={"run": "tiny", "text": "abcd " * 50}).json()
    assert (found["tokens"], found["left_out"]) == (200, 50)


def test_attention_over_distance(client: httpx2.Client) -> None:
    body = {"run": "tiny", "text": "the cat sat under a tree " * 10}
    found = client.post("/studio/api/memory/attention", json=body).json()
    assert found["layers"] == [1, 2] and found["distances"][:3] == ["0", "1", "2-3"]
    assert [sum(shares) for shares in found["shares"]] == pytest.approx([1, 1])
    assert found["alpha"] is None and found["why_no_alpha"] == ""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"run": "tiny"}, "'text' is empty"),
        ({"run": "tiny", "text": 3}, "'text' must be a string"),
        ({"run": "tiny", "text": "a", "memory": -1}, "'memory' is -1"),
        ({"run": "broken", "text": "a"}, "recipe.json"),
        ({"run": "first", "text": "a"}, "checkpoint"),
    ],
)
def test_wrong_requests_for_memory(client: httpx2.Client, body: dict[str, Any], message: str) -> None:
    assert message in refused(client.post("/studio/api/memory/read", json=body), 400)


def test_memory_of_a_session(client: httpx2.Client) -> None:
    session = client.post("/v1/sessions", json={"model": "novels-small"}).json()["id"]
    text = "It was the best of times, it was the worst of times. " * 20
    assert client.post(f"/v1/sessions/{session}/read", content=text.encode()).status_code == 200
    assert session in {each["id"] for each in get(client, "memory/choices")["sessions"]}
    found = get(client, "memory/session", id=session)
    assert found["tokens"] == len(text) and found["layers"][0]["filled"] == 128
    assert found["pieces"] == []  # another client read it, so that the studio knows its memory only
    assert "not known" in refused(client.get("/studio/api/memory/session/attention", params={"id": session}), 400)
    assert client.get("/studio/api/memory/session", params={"id": "nosuch"}).status_code == 404


def test_papers(client: httpx2.Client) -> None:
    found = get(client, "papers")["experiments"]
    assert [(each["name"], each["budget"]) for each in found] == [
        ("xl-context-length", "small"),
        ("long-profile", "small"),
    ]
    assert len(found[0]["verdicts"]) == 3 and found[0]["data"] == "WikiText-103 claim, measured on novels"
    main = get(client, "papers/main")
    assert [row["page"] for row in main["headlines"]] == ["long-profile"] and main["figures"] == []
    page = get(client, "paper", name="xl-context-length", budget="small")
    assert page["lead"] == ""  # only a self-test says something else than its claim
    assert page["figures"] and page["tables"] and page["command"] == "mnemo reproduce xl-context-length --budget small"
    figure = {"name": "xl-context-length", "budget": "small", "slug": page["figures"][0]["slug"]}
    light, dark = (
        client.get("/studio/api/figure", params={**figure, "theme": theme}).text for theme in ("light", "dark")
    )
    assert "#ffffff" in light and "#191e28" in dark and "var(--" not in light + dark
    assert refused(client.get("/studio/api/paper", params={"name": "nosuch", "budget": "small"}), 404)
    assert refused(client.get("/studio/api/figure", params={**figure, "slug": "nosuch"}), 404)


def test_results_that_are_written_later_appear(client: httpx2.Client, folder: Path) -> None:
    source = ROOT / "results" / "laptop-xl" / "laptop" / "results.json"
    target = folder / "none" / "laptop-xl" / "laptop"
    target.mkdir(parents=True)
    shutil.copy(source, target)
    speed = folder / "none" / "xl-evaluation-speed" / "small"
    speed.mkdir(parents=True)
    shutil.copy(ROOT / "results" / "xl-evaluation-speed" / "small" / "results.json", speed)
    assert [each["slug"] for each in get(client, "papers/main")["figures"]] == ["evaluation-speed"]
    drawn = client.get("/studio/api/figure", params={"slug": "evaluation-speed", "theme": "dark"})
    assert drawn.headers["content-type"].startswith("image/svg") and "1,874x" in drawn.text
    assert refused(client.get("/studio/api/figure", params={"slug": "nosuch"}), 404)
    assert "laptop-xl" in {each["name"] for each in get(client, "papers")["experiments"]}
    shutil.rmtree(folder / "none")
    time.sleep(0.01)
    assert "laptop-xl" not in {each["name"] for each in get(client, "papers")["experiments"]}

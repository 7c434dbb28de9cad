"""Kill a server at random moments while clients use sessions, start it again, and compare all sessions.

    python tests/campaign/session_kills.py --kills 200

Clients read texts, write, fork, change and delete sessions, each its own ones, through HTTP. A life of the server ends
by SIGKILL at a random time, or at a random file operation. After the next start every session must have all requests
that were answered, and at most the one that was not. Its state, its random numbers and its continuation must be those
of a session in this process that was never saved, bit for bit.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import httpx2
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from helpers import session_process
from helpers.serial_engine import SerialEngine
from helpers.sessions import TEXT

from mnemo.inference.sampling_options import Sampling
from mnemo.memory.state import leaves
from mnemo.serving.session_data import Facts, Session
from mnemo.serving.session_model import RunSessions
from mnemo.serving.session_work import Work

Operation = dict[str, Any]
GONE = (httpx2.TransportError,)
"""Errors of a client whose server was killed."""


class Reference:
    """The model in this process, which carries out the same operations without saving anything."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        opened = session_process.small_run()
        engine = SerialEngine(opened.run.model, opened.run.recipe.train.segment)
        self.model, self.encode = RunSessions("tiny", opened, engine), opened.tokenizer.encode

    def new(self, seed: int) -> Session:
        facts = Facts(model="tiny", fingerprint="", created=0.0, changed=0.0, seed=seed)
        return Session(facts, self.model.empty(None))

    def after(self, session: Session, operation: Operation) -> tuple[Session, str]:
        """The session after an operation, and the text that it wrote."""
        work, written = Work(self.model, session), ""
        match operation["kind"]:
            case "read":
                work.read(self.encode(operation["text"]).tolist())
            case "write":
                written = self._write(work, operation)
            case "change":
                self._change(work, operation["fields"])
        return work.session, written

    def _write(self, work: Work, wanted: Operation) -> str:
        if wanted["prompt"] or not work.session.facts.tokens:
            start = self.encode(wanted["prompt"]).tolist() or self.model.start_ids().tolist()
            work.read(start)
        facts, sampling = work.session.facts, Sampling(wanted["temperature"])
        ids = work.write(wanted["tokens"], sampling, facts.seed, facts.draws)
        return self.model.opened.tokenizer.decode(ids)

    def _change(self, work: Work, fields: dict[str, Any]) -> None:
        facts = work.session.facts
        if "memory" in fields or "memory_length" in fields:
            work.set_memory(fields.get("memory_length", facts.lengths), fields.get("memory", facts.memory_on))
        if "name" in fields:
            work.describe(fields["name"], 0.0)


@dataclass
class Known:
    """A session as a client knows it."""

    id: str
    session: Session
    """Of the reference, after all operations that were answered"""
    requests: int
    pending: Operation | None = None
    """Sent, and not answered"""
    is_deleted: bool = False


@dataclass
class Client:
    """Sends random operations on its own sessions until the server is gone."""

    chance: random.Random
    reference: Reference
    known: list[Known] = field(default_factory=list)
    unknown: int = 0
    """Requests for new sessions that were not answered"""
    counts: Counter[str] = field(default_factory=Counter)
    error: BaseException | None = None

    def live(self, url: str) -> None:
        try:
            with httpx2.Client(base_url=f"{url}/v1", timeout=60) as http:
                while True:
                    self.act(http)
        except GONE:
            pass
        except BaseException as error:  # shown by the main thread
            self.error = error

    def act(self, http: httpx2.Client) -> None:
        alive = [each for each in self.known if not each.is_deleted]
        if len(alive) < 2:
            self.create(http)
            return
        session, kind = self.chance.choice(alive), self.chance.choice(KINDS)
        {"fork": self.fork, "delete": self.delete}.get(kind, self.change)(http, session, kind)
        self.counts[kind] += 1

    def create(self, http: httpx2.Client) -> None:
        seed = self.chance.randrange(1 << 40)
        self.unknown += 1
        made = answered(http.post("/sessions", json={"seed": seed}))
        self.unknown -= 1
        self.known.append(Known(made["id"], self.reference.new(seed), 0))

    def fork(self, http: httpx2.Client, source: Known, kind: str) -> None:
        if len([each for each in self.known if not each.is_deleted]) > 5:
            self.delete(http, source, kind)
            return
        seed = self.chance.randrange(1 << 40)
        self.unknown += 1
        made = answered(http.post(f"/sessions/{source.id}/fork", json={"seed": seed, "name": "forked"}))
        self.unknown -= 1
        work = Work(self.reference.model, source.session)
        work.describe("forked", 0.0, seed)
        self.known.append(Known(made["id"], work.session, source.requests + 1))

    def delete(self, http: httpx2.Client, session: Known, kind: str) -> None:
        session.pending = {"kind": "delete"}
        answered(http.delete(f"/sessions/{session.id}"))
        session.is_deleted, session.pending = True, None

    def change(self, http: httpx2.Client, known: Known, kind: str) -> None:
        """An operation that moves a session forward."""
        operation = known.pending = self.drawn(kind, known.session.facts)
        found = answered(send(http, known.id, operation))
        known.session, written = self.reference.after(known.session, operation)
        known.requests, known.pending = known.requests + 1, None
        if kind == "write":
            assert found["choices"][0]["text"] == written, f"{known.id} has written another text"

    def drawn(self, kind: str, facts: Facts) -> Operation:
        chance = self.chance
        if kind == "read":
            return {"kind": kind, "text": random_text(chance, chance.choice([3, 9, 30, 100]))}
        if kind == "write":
            prompt, temperature = random_text(chance, chance.randint(0, 5)), chance.choice([0.0, 0.8])
            return {"kind": kind, "prompt": prompt, "tokens": chance.randint(1, 12), "temperature": temperature}
        changes = [{"name": f"name {chance.random()}"}, {"memory": not facts.memory_on}, {"memory_length": 2}]
        return {"kind": kind, "fields": chance.choice([*changes, {"memory_length": None, "memory": True}])}


KINDS = ("read", "read", "write", "write", "write", "change", "fork", "delete")


def random_text(chance: random.Random, length: int) -> str:
    return "".join(chance.choice(TEXT) for _ in range(length))


def send(http: httpx2.Client, session: str, operation: Operation) -> httpx2.Response:
    if operation["kind"] == "read":
        return http.post(f"/sessions/{session}/read", content=operation["text"])
    if operation["kind"] == "change":
        return http.patch(f"/sessions/{session}", json=operation["fields"])
    return http.post("/completions", json=completion(session, operation))


def completion(session: str, operation: Operation) -> dict[str, Any]:
    wanted = {"max_tokens": operation["tokens"], "temperature": operation["temperature"]}
    return {"model": "tiny", "prompt": operation["prompt"], "session": session, **wanted}


def answered(answer: httpx2.Response) -> dict[str, Any]:
    assert answer.status_code < 300, f"{answer.status_code}: {answer.text}"
    return answer.json()


def compare(http: httpx2.Client, client: Client, folder: Path) -> None:
    """Every session of a client is what its answers say; operations without an answer may be missing as a whole."""
    for known in [each for each in client.known if not each.is_deleted]:
        answer = http.get(f"/sessions/{known.id}")
        operation, known.pending = known.pending, None  # the answer shows whether it was kept
        if operation == {"kind": "delete"} and answer.status_code == 404:
            known.is_deleted = True
            continue
        shown = answered(answer)
        if operation not in (None, {"kind": "delete"}) and shown["requests"] == known.requests + 1:
            known.session, _ = client.reference.after(known.session, operation)
            known.requests += 1
        assert shown["requests"] == known.requests, f"{known.id}: {shown['requests']} requests, not {known.requests}"
        compare_session(http, client.reference, known, shown, folder)


def compare_session(
    http: httpx2.Client, reference: Reference, known: Known, shown: dict[str, Any], folder: Path
) -> None:
    facts, state = known.session
    for name in ("tokens", "seed", "draws", "name"):
        assert shown[name] == getattr(facts, name), f"{known.id}: {name} {shown[name]} is not {getattr(facts, name)}"
    assert shown["memory"]["on"] == facts.memory_on and shown["memory"]["length"] == facts.lengths
    if facts.tokens:
        path = folder / "compared.memory"
        path.write_bytes(http.get(f"/sessions/{known.id}/memory").content)
        pairs = zip(leaves(reference.model.load(path).state), leaves(state), strict=True)
        differing = [name for (name, mine), (_, theirs) in pairs if not torch.equal(mine, theirs)]
        assert not differing, f"{known.id} has other numbers in {differing[:3]}"
    wanted = {"kind": "write", "prompt": "", "tokens": 5, "temperature": 1.0}
    looked = answered(http.post("/completions", json=completion(known.id, wanted) | {"fork": True}))
    assert looked["choices"][0]["text"] == reference.after(known.session, wanted)[1]


def campaign(kills: int, num_clients: int, seed: int, folder: Path, say: Callable[[str], None]) -> Counter[str]:
    """How often the server was killed, by kind. Raises AssertionError where a session is not what it should be."""
    chance, found, reference = random.Random(seed), Counter[str](), Reference()
    clients = [Client(random.Random(f"{seed} {number}"), reference) for number in range(num_clients)]
    while True:
        kind = chance.choice(["time", "operation", "operation", "start"]) if found.total() < kills else "last"
        operation = chance.randint(1, chance.choice([30, 300]))
        process, url = session_process.start(folder / "store", operation, armed=kind == "start")
        try:
            compare_all(url, clients, folder)
        except GONE:
            assert kind == "start"
        else:
            if kind == "last":
                stop(process)
                return found
            live(clients, process, url, chance, kind)
        stop(process)
        found[kind] += 1
        total = sum((client.counts for client in clients), Counter[str]())
        say(f"{found.total():4} {kind:10} {len(os.listdir(folder / 'store' / 'sessions')):3} sessions  {dict(total)}")


def compare_all(url: str, clients: list[Client], folder: Path) -> None:
    if not url:
        raise httpx2.ConnectError("the server was killed before it had an address")
    with httpx2.Client(base_url=f"{url}/v1", timeout=60) as http:
        for client in clients:
            compare(http, client, folder)
        remove_unknown(http, clients)


def live(clients: list[Client], process: BaseProcess, url: str, chance: random.Random, kind: str) -> None:
    """Let the clients use the server until it is killed."""
    if kind == "operation":
        os.kill(process.pid or 0, signal.SIGUSR1)
    threads = [threading.Thread(target=client.live, args=(url,)) for client in clients]
    for thread in threads:
        thread.start()
    process.join(30 if kind == "operation" else chance.uniform(0.05, 2))
    stop(process)
    for thread in threads:
        thread.join(60)
    for client in clients:
        if client.error is not None:
            raise client.error


def stop(process: BaseProcess) -> None:
    if process.exitcode is None:
        os.kill(process.pid or 0, signal.SIGKILL)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL, process.exitcode


def remove_unknown(http: httpx2.Client, clients: list[Client]) -> None:
    """Sessions whose making was not answered may exist."""
    known = {each.id for client in clients for each in client.known if not each.is_deleted}
    found = {each["id"] for each in answered(http.get("/sessions"))["data"]}
    assert known <= found, f"these sessions are lost: {known - found}"
    assert len(found - known) <= sum(client.unknown for client in clients), "there are sessions of no client"
    for session in found - known:
        answered(http.delete(f"/sessions/{session}"))
    for client in clients:
        client.unknown = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = campaign(args.kills, args.clients, args.seed, Path(folder), lambda line: print(line, flush=True))
    seconds = time.monotonic() - begin
    print(f"{found.total()} kills ({dict(found)}) in {seconds:.0f} s: no session has lost an answered request")


if __name__ == "__main__":
    main()

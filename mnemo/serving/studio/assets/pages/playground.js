// The playground: a model reads a text, shows what surprised it and what its memory saved, and goes on writing.
import { request } from "../api.js";
import { html, useEffect, useMemo, useRef, useState } from "../html.js";
import { Compare } from "../playground/compare.js";
import { API, interruption, Memory } from "../playground/memory.js";
import { MemoryFacts, MemoryNotice, Means, ReadPanel, Work, WritePanel } from "../playground/panels.js";
import { SCALES } from "../playground/scales.js";
import { Legend, TextView } from "../playground/text_view.js";
import { address, go } from "../router.js";
import { bytes, Notice, useData, Waiting } from "../widgets.js";

const EXAMPLE = "/studio/assets/playground/example.txt";
const DOUBLE_CLICK = 500; // milliseconds
const DRAW = 40; // milliseconds between two drawings
const KEPT = "mnemo-playground"; // the sessions of this tab, for a return to the page

export default function Playground({ query }) {
  const { data: start, error } = useData(API);
  if (error) return html`<h1>Playground</h1><${Notice} kind="bad">${error.message}</${Notice}>`;
  if (!start) return html`<h1>Playground</h1><${Waiting} />`;
  if (!start.models.length) {
    return html`<h1>Playground</h1><${Notice}>No model is served. Start the studio with one: <code>mnemo studio RUN</code></${Notice}>`;
  }
  return html`<${Workbench} start=${start} query=${query} />`;
}

function Workbench({ start, query }) {
  const { memories, second, opened, setSecond, chooseModel } = useMemories(start, query);
  const [text, setText] = useState("");
  const [scale, setScale] = useState("surprise");
  const [target, setTarget] = useState("both");
  const [large, setLarge] = useState(null);
  const [forking, setForking] = useState(false);
  const model = start.models.find((one) => one.name === memories[0].model) ?? start.models[0];
  const busy = memories.find((memory) => memory.busy)?.work.kind ?? (opened ? null : "open");
  const chosen = memories.filter((memory) => target === "both" || memory.label === target);
  const each = (action) => Promise.all((memories.length > 1 ? chosen : memories).map(action));
  const empty = !memories[0].info?.tokens;
  // "Stop" takes the place of the button that was pressed: the second click of a double click must not stop the work.
  const stop = () => memories.filter((memory) => performance.now() - memory.started > DOUBLE_CLICK).forEach((memory) => memory.stop());
  const read = (body, name) => {
    const size = typeof body === "string" ? new Blob([body]).size : body.size;
    setLarge(size > start.limits.shown_bytes ? { body, name, size } : null);
    if (size <= start.limits.shown_bytes) each((memory) => memory.read(body, name));
  };
  const readExample = async () => {
    const example = await (await request(EXAMPLE)).text();
    setText(example);
    read(example, "the example");
  };
  const readHidden = () => {
    setLarge(null);
    each((memory) => memory.readHidden(large.body, large.name));
  };
  const fork = async () => {
    setForking(true);
    if (await memories[0].forkInto(second)) setSecond(true);
    setForking(false);
  };
  const colours = html`<${Colours} scale=${scale} setScale=${setScale} edges=${model.edges} />`;
  return html`
    <div class="head"><h1>Playground</h1>
      ${start.models.length > 1 && html`<div class="field inline"><label for="model">Model</label>
        <select id="model" value=${model.name} disabled=${busy} onChange=${(event) => chooseModel(event.target.value)}>
          ${start.models.map((one) => html`<option key=${one.name} value=${one.name}>${one.name}</option>`)}
        </select></div>`}
    </div>
    <p class="lead">Let the model <b>${model.name}</b> read a text: colours show how well it predicted each token, and how much
      its memory of earlier text helped. Then let it continue the text.</p>
    <div class="columns even top">
      <${ReadPanel} text=${text} setText=${setText} busy=${busy} empty=${empty} onRead=${read} onExample=${readExample} onStop=${stop} />
      <${WritePanel} start=${start} busy=${busy} empty=${empty} onWrite=${(settings) => each((memory) => memory.write(settings))} onStop=${stop} />
    </div>
    ${large && html`<${Large} large=${large} limits=${start.limits} onRead=${readHidden} onClose=${() => setLarge(null)} />`}
    ${memories.length > 1 && html`<fieldset class="choice"><legend>Read into and write with</legend>
      ${[["both", "both memories"], ["A", "memory A"], ["B", "memory B"]].map(([value, words]) => html`<label key=${value}>
        <input type="radio" name="target" value=${value} checked=${target === value} onChange=${() => setTarget(value)} /> ${words}</label>`)}
    </fieldset>`}
    ${memories.length > 1 && colours}
    <div class=${memories.length > 1 ? "columns even pair" : ""}>
      ${memories.map((memory) => html`<${Column} key=${memory.label} memory=${memory} start=${start} model=${model} scale=${scale}
        colours=${memories.length === 1 && !(empty && !memories[0].busy) && colours} alone=${memories.length === 1} forking=${forking} onFork=${fork} onClose=${() => setSecond(false)} />`)}
    </div>
    ${memories.length > 1 && html`<${Compare} memories=${memories} edges=${model.edges} unit=${model.unit} busy=${busy} />`}
  `;
}

/** The choice of the colours, and what they mean. */
function Colours({ scale, setScale, edges }) {
  return html`<div class="scale-line">
    <fieldset class="choice"><legend>Colour by</legend>
      ${Object.entries(SCALES).map(([value, words]) => html`<label key=${value}>
        <input type="radio" name="scale" value=${value} checked=${scale === value} onChange=${() => setScale(value)} /> ${words}</label>`)}
    </fieldset>
    <${Legend} scale=${scale} edges=${edges} />
  </div>`;
}

/** One memory with its text. `colours`: the choice of the colours, if it is shown here. */
function Column({ memory, start, model, scale, colours, alone, forking, onFork, onClose }) {
  const chooser = useRef(null);
  const save = () => memory.guarded(async () => download(await memory.file()));
  const load = (event) => {
    const [file] = event.target.files;
    event.target.value = "";
    if (file) memory.load(file);
  };
  const empty = !memory.info?.tokens;
  return html`<section class=${`card memory ${alone ? "alone" : ""}`} aria-label=${`Memory ${memory.label}`}>
    <div class="head"><h2>${alone ? "Memory" : `Memory ${memory.label}`}</h2>
      <div class="buttons small-buttons">
        ${memory.label === "A" && html`<button type="button" disabled=${memory.busy || !alone || forking} onClick=${onFork} title="Copy this memory, and go on with both copies side by side">Fork</button>`}
        <button type="button" disabled=${memory.busy || empty} onClick=${save}>Save memory</button>
        <button type="button" disabled=${memory.busy} onClick=${() => chooser.current.click()}>Load memory</button>
        <input hidden type="file" ref=${chooser} aria-label=${`Memory file for memory ${memory.label}`} onChange=${load} />
        <button type="button" disabled=${memory.busy || (empty && !memory.id)} onClick=${() => memory.guarded(() => memory.forget())}>Start again</button>
        ${memory.label === "B" && html`<button type="button" disabled=${memory.busy} onClick=${onClose}>Close</button>`}
      </div>
    </div>
    <${MemoryNotice} memory=${memory} />
    <${Work} memory=${memory} />
    <${Means} memory=${memory} unit=${model.unit} />
    ${colours}
    <${TextView} memory=${memory} scale=${scale} edges=${model.edges}>
      <${MemoryFacts} memory=${memory} start=${start} />
    </${TextView}>
  </section>`;
}

function Large({ large, limits, onRead, onClose }) {
  const possible = large.size <= limits.upload_bytes;
  return html`<${Notice} kind="warn"><p>${large.name} has ${bytes(large.size)}. The playground shows texts of up to ${bytes(limits.shown_bytes)}
    ${possible
      ? " and can read longer ones without showing them; the memory is then the same."
      : `, and this server accepts files of up to ${bytes(limits.upload_bytes)}. Use mnemo read on the command line.`}</p>
    <div class="buttons">${possible && html`<button type="button" onClick=${onRead}>Read without showing it</button>`}
      <button type="button" onClick=${onClose}>Close</button></div></${Notice}>`;
}

/** One or two memories, whose sessions are in the address, so that a reload or a restarted server loses nothing. */
function useMemories(start, query) {
  const [, setTimes] = useState(0);
  const redraw = useMemo(() => seldom(() => setTimes((times) => times + 1)), []);
  const make = (label) => new Memory(label, { model: start.models[0].name, page: start.limits.page, changed: redraw });
  const made = useMemo(() => ({ A: make("A"), B: make("B") }), []);
  const [second, setShown] = useState(false);
  const [opened, setOpened] = useState(false); // until then, a button would start a new session
  useEffect(() => {
    recover(made, query, setShown).finally(() => setOpened(true));
    const seen = () => document.visibilityState === "visible" && Object.values(made).forEach(look);
    document.addEventListener("visibilitychange", seen);
    return () => {
      document.removeEventListener("visibilitychange", seen);
      Object.values(made).forEach((memory) => memory.stop());
    };
  }, []);
  useEffect(() => keep(made, second), [made.A.id, made.B.id, second]);
  const setSecond = (shown) => {
    setShown(shown);
    if (!shown) made.B.guarded(() => made.B.forget());
  };
  const chooseModel = (name) => {
    for (const memory of Object.values(made)) {
      memory.guarded(() => memory.forget());
      memory.set({ model: name });
    }
    setShown(false);
  };
  return { memories: second ? [made.A, made.B] : [made.A], second: made.B, opened, setSecond, chooseModel };
}

/** Calls at once, but not more often than every few milliseconds: tokens arrive faster than they can be drawn. */
function seldom(draw) {
  let waiting = null;
  let last = -Infinity;
  const now = () => {
    waiting = null;
    last = performance.now();
    draw();
  };
  return () => {
    if (performance.now() - last >= DRAW && waiting === null) now();
    else waiting ??= setTimeout(now, DRAW);
  };
}

async function recover(made, query, setShown) {
  let kept = { a: query.get("a"), b: query.get("b") };
  if (!kept.a) {
    try {
      kept = JSON.parse(sessionStorage.getItem(KEPT)) ?? kept;
    } catch {
      // Storage can be forbidden; the page then begins anew.
    }
  }
  if (kept.a) await made.A.guarded(() => made.A.open(kept.a));
  if (kept.b && (await made.B.guarded(() => made.B.open(kept.b))) && made.B.id) setShown(true);
}

function keep(made, second) {
  const ids = { a: made.A.id, b: second ? made.B.id : null };
  const there = new URLSearchParams(location.search);
  if (!ids.a && there.get("a") && !made.A.touched) return; // not recovered yet
  made.A.touched = true;
  try {
    sessionStorage.setItem(KEPT, JSON.stringify(ids));
  } catch {
    // As above.
  }
  if (there.get("a") !== ids.a || there.get("b") !== ids.b) go(address("playground", ids), { replace: true });
}

/** Another tab may have moved the session forward while this one was hidden. */
function look(memory) {
  if (!memory.id || memory.busy) return;
  memory.guarded(async () => {
    const { tokens } = memory.info;
    await memory.refresh();
    if (memory.info.tokens === tokens || memory.info.busy) return;
    await memory.show(memory.lastPage());
    if (memory.info.interrupted) memory.say("warn", interruption(memory.info.interrupted));
    else memory.say("info", "This session was continued elsewhere, for example in another tab. Its newest text is shown.");
  });
}

function download({ name, blob }) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

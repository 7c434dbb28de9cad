// Controls of the playground: text to read, settings for writing, and what one memory holds.
import { html, useRef, useState } from "../html.js";
import { address } from "../router.js";
import { bytes, count, Notice } from "../widgets.js";

/** `empty`: the model has read nothing yet; the example is then the first step that the page suggests. */
export function ReadPanel({ text, setText, busy, empty, onRead, onExample, onStop }) {
  const [over, setOver] = useState(false);
  const chooser = useRef(null);
  const take = (files) => files?.length && onRead(files[0], files[0].name);
  const drag = (event) => {
    if (![...event.dataTransfer.types].includes("Files")) return;
    event.preventDefault();
    setOver(event.type !== "dragleave");
  };
  const drop = (event) => {
    event.preventDefault();
    setOver(false);
    take(event.dataTransfer.files);
  };
  const submit = (event) => {
    event.preventDefault();
    onRead(text, "the pasted text");
  };
  const keys = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && text && !busy) submit(event);
  };
  return html`<form class=${`card drop ${over ? "over" : ""}`} onSubmit=${submit} onDragEnter=${drag} onDragOver=${drag}
    onDragLeave=${drag} onDrop=${drop} aria-label="Read a text">
    <h2>Read</h2>
    <label class="hidden" for="reading">Text to read</label>
    <textarea id="reading" value=${text} onInput=${(event) => setText(event.target.value)} onKeyDown=${keys}
      placeholder="Paste a text or drop a text file here, for example a chapter of a book" spellcheck="false"></textarea>
    <div class="buttons">
      ${["read", "hidden", "measure"].includes(busy)
        ? html`<button type="button" class="main" onClick=${onStop}>Stop</button>`
        : html`<button type="submit" class="main" disabled=${!text || busy}>Read</button>`}
      <button type="button" disabled=${busy} onClick=${() => chooser.current.click()}>Choose a file</button>
      <button type="button" class=${empty && !text ? "main" : ""} disabled=${busy} onClick=${onExample}>Read the example</button>
      <input hidden type="file" ref=${chooser} aria-label="Text file"
        onChange=${(event) => { take(event.target.files); event.target.value = ""; }} />
    </div>
  </form>`;
}

const LIMITS = {
  tokens: { label: "Tokens", min: 1, step: 1 },
  temperature: { label: "Temperature", min: 0, max: 5, step: 0.05 },
  top_p: { label: "Top p", min: 0.01, max: 1, step: 0.01 },
  seed: { label: "Seed", min: 0, step: 1 },
};

export function WritePanel({ start, busy, empty, onWrite, onStop }) {
  const [settings, set] = useState({ tokens: 200, temperature: 0.8, top_p: 0.95, seed: 1 });
  const submit = (event) => {
    event.preventDefault();
    onWrite(settings);
  };
  return html`<form class="card" onSubmit=${submit} aria-label="Write">
    <h2>Write</h2>
    <p class="small muted">The model continues the text, with everything that is in its memory. The same seed at the same place gives the same words.</p>
    <div class="settings">
      ${Object.entries(LIMITS).map(([name, { label, ...limits }]) => html`<div class="field" key=${name}>
        <label for=${`set-${name}`}>${label}</label>
        <input id=${`set-${name}`} type="number" required value=${settings[name]} ...${limits}
          max=${name === "tokens" ? start.limits.write_tokens : limits.max}
          onInput=${(event) => set({ ...settings, [name]: event.target.valueAsNumber })} />
      </div>`)}
    </div>
    <div class="buttons">
      ${busy === "write"
        ? html`<button type="button" class="main" onClick=${onStop}>Stop</button>`
        : html`<button type="submit" class=${empty ? "" : "main"} disabled=${busy}>Write</button>`}
    </div>
  </form>`;
}

/** Progress of reading and writing. */
export function Work({ memory }) {
  const { work } = memory;
  if (!work) return null;
  const what = { read: "Reading", hidden: "Reading", write: "Writing", measure: "Reading again without memory, to compare" }[work.kind];
  const of = work.total ? ` of ${count.format(work.total)}` : "";
  const share = work.total_bytes ? `, ${bytes(work.bytes)} of ${bytes(work.total_bytes)}` : "";
  const words = `${what}: ${count.format(work.tokens)}${of} tokens${share}`;
  const [value, max] = work.total_bytes ? [work.bytes, work.total_bytes] : [work.tokens, work.total];
  return html`<div class="work">
    <progress max=${max || 1} value=${max ? value : undefined} aria-label=${words}></progress>
    <div class="small muted">${words}</div>
  </div>`;
}

export function MemoryNotice({ memory }) {
  if (!memory.notice) return null;
  const { kind, text } = memory.notice;
  return html`<${Notice} kind=${kind}><div class="closable"><span role=${kind === "bad" ? undefined : "status"}>${text}</span>
    <button type="button" class="icon" aria-label="Close this message" onClick=${() => memory.say(null, null)}>✕</button></div></${Notice}>`;
}

/** Slots filled, tokens, size; and the number of slots as a slider. */
export function MemoryFacts({ memory, start }) {
  const { info } = memory;
  return html`<div class="facts-of-memory">
    ${info && !(memory.busy && !info.tokens) && html`<ul class="slots" aria-label=${`Contents of memory ${memory.label}`}>
      ${info.memory.groups.map((group) => html`<li key=${`${group.mechanism}${group.long}${group.slots}`}>
        <span>${group.layers} ${group.long ? "long-range" : "short-range"} ${group.layers === 1 ? "layer" : "layers"}</span>
        <meter min="0" max=${group.slots} value=${group.filled} aria-label="Slots filled"></meter>
        <span class="number">${count.format(group.filled)} / ${count.format(group.slots)} slots</span></li>`)}
    </ul>
    <p class="small muted">${count.format(info.tokens)} tokens so far, in a state of ${bytes(info.memory.bytes)}: the memory${info.memory.memory_tokens ? ` with ${info.memory.memory_tokens} memory tokens` : ""},
      ${" "}which has a fixed size, and the open segment (${count.format(info.memory.open)} of ${count.format(info.memory.segment)} tokens), which enters it when complete.
      ${info.full ? ` Only the first ${count.format(info.shown)} tokens of the text are shown; reading and writing go on.` : ""}</p>`}
    ${info?.tokens > 0 && html`<p class="small"><a href=${address("memory", { session: info.id })}>See which tokens each layer holds</a></p>`}
    <${Slider} memory=${memory} model=${start.models.find((model) => model.name === memory.model)} />
  </div>`;
}

function Slider({ memory, model }) {
  const [moved, setMoved] = useState(null);
  if (!model || model.lengths.length < 2) return null;
  const kept = memory.info?.memory.length ?? memory.length ?? model.trained;
  const now = memory.resizing ? memory.length : kept;
  const at = moved ?? closest(model.lengths, now);
  const value = moved === null ? now : model.lengths[at];
  const words = `${count.format(value)} slots${value === model.trained ? ", as in training" : ""}`;
  const change = (event) => {
    setMoved(null);
    memory.resize(model.lengths[event.target.valueAsNumber]);
  };
  return html`<div class="field slider">
    <label for=${`slots-${memory.label}`}>Length of the long-range memory: <b>${words}</b></label>
    <input id=${`slots-${memory.label}`} type="range" min="0" max=${model.lengths.length - 1} step="1" value=${at} aria-valuetext=${words}
      disabled=${memory.busy} onInput=${(event) => setMoved(event.target.valueAsNumber)} onChange=${change} />
  </div>`;
}

function closest(lengths, value) {
  return lengths.reduce((best, length, at) => (Math.abs(length - value) < Math.abs(lengths[best] - value) ? at : best), 0);
}

/** Mean losses of the text that is shown. */
export function Means({ memory, unit }) {
  const mean = memory.overview?.mean;
  if (!mean) return null;
  const share = mean.without > 0 ? `: ${Math.round((100 * mean.saved) / mean.without)}\u00a0%` : "";
  const tiles = [["Loss with memory", mean.bits], ["Loss without memory", mean.without], [`Saved${share}`, mean.saved]];
  return html`<dl class="tiles means">${tiles.map(([term, value]) => html`<div class="tile" key=${term}><dt>${term}</dt>
    <dd>${loss(value)} <small>bits/${unit}</small></dd></div>`)}</dl>`;
}

/** A mean loss; tiles beside each other have the same number of decimals. */
function loss(value) {
  return value === null || value === undefined ? "–" : value.toFixed(3).replace("-", "−");
}

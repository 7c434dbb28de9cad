// Memory: a run's plan, what a text leaves in its slots, and how far back its layers look (?run=NAME).
import { getJson, postJson } from "../api.js";
import { LineChart } from "../chart.js";
import { html, useEffect, useState } from "../html.js";
import { HeldText, TokenWords } from "../memory_text.js";
import { emptyContents, extentOf, Timeline } from "../memory_timeline.js";
import { address, go } from "../router.js";
import { amount, bytes, count, Notice, number, Scroll, useData, Waiting } from "../widgets.js";

const MOST_LETTERS = 400_000; // more than the server reads of a text

export default function Memory({ query }) {
  const { data, error } = useData("/studio/api/memory/choices");
  const session = data?.sessions.find(({ id }) => id === query.get("session"));
  const run = session?.run ?? query.get("run") ?? data?.first;
  return html`
    <h1>Memory</h1>
    <p class="lead">A model reads a text segment by segment, and every layer keeps a memory of fixed size: slots with
      hidden states of earlier tokens. See which tokens each layer still holds, and how far back it attends.</p>
    ${error && html`<${Notice} kind="bad">${error.message}</${Notice}>`}
    ${!data && !error && html`<${Waiting} />`}
    ${data && !run && html`<${Notice}>There is no trained run to look at yet.</${Notice}>`}
    ${data && query.has("session") && !session && html`<${Notice} kind="warn">The server no longer has this session. The example is read instead; choose another session, or make one in the playground.</${Notice}>`}
    ${data && run && (session
      ? html`<${SessionMemory} key=${session.id} session=${session} data=${data} />`
      : html`<${RunMemory} key=${run} run=${run} data=${data} />`)}`;
}

/** The memory of a session as it is: nothing is read. */
function SessionMemory({ session, data }) {
  const plan = useData(address("api/memory/plan", { run: session.run }));
  const contents = useData(address("api/memory/session", { id: session.id }));
  return html`
    <div class="card"><div class="fields"><${Selection} value=${session.id} data=${data} /></div>
      <p class="muted small">${session.name || "A session"} of ${session.run}: ${count.format(session.tokens)} tokens so far.${" "}
        <a href=${address("playground", { a: session.id })}>Go on with it in the playground</a></p></div>
    <${Parts} plan=${plan} contents=${contents} attention=${{ path: address("api/memory/session/attention", { id: session.id }) }} />`;
}

function RunMemory({ run, data }) {
  const plan = useData(address("api/memory/plan", { run }));
  const [text, setText] = useState(data.sample);
  const [wanted, setWanted] = useState({ text: data.sample });
  const body = { run, ...wanted };
  const contents = usePost("/studio/api/memory/read", body);
  return html`
    <${Choice} run=${run} data=${data} text=${text} setText=${setText} read=${setWanted} busy=${contents.loading} />
    <${Parts} plan=${plan} contents=${contents} attention=${{ path: "/studio/api/memory/attention", body }} />`;
}

function Parts({ plan, contents, attention }) {
  return html`
    ${plan.error && html`<${Notice} kind="bad">${plan.error.message}</${Notice}>`}
    ${contents.error && html`<${Notice} kind="bad">${contents.error.message}</${Notice}>`}
    ${plan.data && html`<${Picture} plan=${plan.data} contents=${contents.data} loading=${contents.loading} />`}
    ${contents.data && html`<${Attention} ...${attention} />`}`;
}

/** Choose a run or a session; each choice is an address. */
function Selection({ value, data }) {
  const names = data.sessions.some(({ id }) => id === value) || data.runs.includes(value) ? data.runs : [value, ...data.runs];
  const choose = (event) => go(address("memory", { [event.target.selectedOptions[0].dataset.kind]: event.target.value }));
  return html`<div class="field"><label for="run">${data.sessions.length ? "Run or session" : "Run"}</label>
    <select id="run" value=${value} onChange=${choose}>
      <optgroup label="Runs">${names.map((name) => html`<option key=${name} value=${name} data-kind="run" selected=${name === value}>${name}</option>`)}</optgroup>
      ${data.sessions.length > 0 && html`<optgroup label="Sessions">${data.sessions.map(({ id, name, run, tokens }) => html`<option key=${id} value=${id} data-kind="session"
        selected=${id === value}>${name || id.slice(0, 8)}, ${run}: ${count.format(tokens)} tokens</option>`)}</optgroup>`}
    </select></div>`;
}

function Choice({ run, data, text, setText, read, busy }) {
  const [slots, setSlots] = useState("");
  const send = (event) => {
    event.preventDefault();
    read({ text: text.slice(-MOST_LETTERS), memory: slots === "" ? null : Number(slots) });
  };
  const [problem, setProblem] = useState(null);
  const load = async (event) => {
    const [file] = event.target.files;
    if (!file) return;
    const found = await endOfText(file);
    setProblem(found === null ? `${file.name} is not text in UTF-8.` : null);
    if (found !== null) setText(found);
  };
  return html`<form class="card" onSubmit=${send}>
    <div class="fields">
      <${Selection} value=${run} data=${data} />
      <div class="field"><label for="slots">Slots of long-range layers</label>
        <input id="slots" type="number" min="0" max="65536" step="1" placeholder="as trained" value=${slots} onInput=${(event) => setSlots(event.target.value)} /></div>
      <div class="field"><label for="file">Text file</label><input id="file" type="file" accept=".txt,.md,text/*" onChange=${load} /></div>
    </div>
    ${problem && html`<${Notice} kind="bad">${problem}</${Notice}>`}
    <details><summary>Text to read: ${count.format(text.length)} characters</summary>
      <div class="field"><label for="text" class="hidden">Text to read</label>
        <textarea id="text" rows="8" value=${text} onInput=${(event) => setText(event.target.value)}></textarea></div></details>
    <div class="buttons spaced"><button class="main" type="submit" disabled=${busy || !text}>${busy ? "Reading …" : "Read the text"}</button></div>
  </form>`;
}

/** The end of a text file, as much as the server reads; null if it is not text. */
async function endOfText(file) {
  const data = new Uint8Array(await file.slice(Math.max(0, file.size - MOST_LETTERS)).arrayBuffer());
  const isInside = (byte) => (byte & 0xc0) === 0x80; // the cut may be inside of a character
  const begin = file.size > MOST_LETTERS ? data.findIndex((byte) => !isInside(byte)) : 0;
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(data.subarray(begin));
    return text.includes("\0") ? null : text;
  } catch {
    return null;
  }
}

function Picture({ plan, contents, loading }) {
  const [at, setAt] = useState(null);
  const shown = contents ?? emptyContents(plan);
  useEffect(() => setAt(contents ? start(contents) : null), [contents]);
  return html`
    <dl class="tiles">
      <div class="tile"><dt>Size of the state</dt><dd>${bytes(contents?.bytes ?? plan.bytes)} <small>at any length</small></dd></div>
      <div class="tile"><dt>Read</dt><dd>${contents ? count.format(contents.tokens) : "–"} <small>${plan.unit ?? "token"}s</small></dd></div>
      ${Number.isFinite(contents?.loss) && html`<div class="tile"><dt>Mean loss</dt><dd>${number(contents.loss)} <small>${contents.unit}</small></dd></div>`}
      <div class="tile"><dt>Segment</dt><dd>${count.format(plan.segment)} <small>tokens at a time</small></dd></div>
      <div class="tile"><dt>Model</dt><dd>${amount(plan.parameters)} <small>weights</small></dd></div>
    </dl>
    <section class="card" aria-labelledby="slots-title" aria-busy=${loading}>
      <div class="head"><h2 id="slots-title">Tokens in the slots of each layer</h2><span class="muted small">${plan.words}</span></div>
      <${Timeline} contents=${shown} at=${at} choose=${setAt}>
        ${at !== null && html`<label class="label" for="token">Token to look at</label>
          <input id="token" type="range" min=${Math.max(0, extentOf(shown).begin)} max=${shown.tokens - 1} value=${at}
            onInput=${(event) => setAt(Number(event.target.value))} />`}
      </${Timeline}>
      ${contents?.left_out > 0 && html`<${Notice} kind="warn">The text is long: only its last ${count.format(contents.tokens)} tokens were read here. The playground reads all of it.</${Notice}>`}
      ${contents && !contents.exact && html`<p class="small muted">Memory tokens take slots as well, so that ranges begin somewhat too early.</p>`}
      ${contents && html`<${TokenWords} contents=${contents} at=${at} />`}
      ${plan.hints.map((hint, index) => html`<${Notice} key=${index} kind="warn">${hint}</${Notice}>`)}
    </section>
    ${contents?.pieces.length === 0 && contents.tokens > 0 && html`<p class="muted">The text of this session is not known here, only its memory.</p>`}
    ${contents?.pieces.length > 0 && html`<section class="card" aria-labelledby="text-title">
      <div class="head"><h2 id="text-title">Tokens still in memory</h2>
        <span class="muted small held-legend"><span class="level l4">in every layer</span>${" "}
          <span class="level l2">in some layers</span> <span class="level none">forgotten</span> <span class="level open">open segment</span></span></div>
      <p class="small muted">The end of the text. Darker: more layers hold the token. Point at a token to see it above.</p>
      <${HeldText} contents=${contents} at=${at} choose=${setAt} /></section>`}`;
}

/** A token in the middle of the longest memory, which some layers may hold and others not; no white space. */
function start({ layers, tokens, pieces, first_piece: first }) {
  const oldest = layers.flatMap(({ ranges }) => ranges).sort((one, other) => one.begin - other.begin)[0];
  const middle = Math.max(first, oldest ? Math.floor((oldest.begin + oldest.end) / 2) : tokens - 1);
  const shown = pieces.findIndex((piece, at) => at >= middle - first && piece.trim());
  return shown < 0 ? middle : shown + first;
}

/** path: of the data; body: what to send there, if anything. */
function Attention({ path, body }) {
  const { data, error, loading } = usePost(path, body);
  return html`<section class="card" aria-labelledby="attention-title" aria-busy=${loading}>
    <h2 id="attention-title">Attention over distance</h2>
    ${error && html`<${Notice} kind="warn">${error.message}</${Notice}>`}
    ${!data && !error && html`<${Waiting} what="Recording the attention of every layer" />`}
    ${data && html`<${Distances} data=${data} />`}
    ${data?.alpha && html`<${Alpha} alpha=${data.alpha} />`}
    ${data?.why_no_alpha && html`<p class="small muted">No curve of alpha (LaMemo): ${data.why_no_alpha}.</p>`}
  </section>`;
}

function Distances({ data }) {
  const begins = data.distances.map((label) => Number(label.split("-")[0]));
  const series = data.layers.map((layer, at) => ({
    label: `layer ${layer}`,
    color: `c${at % 8}`,
    dashed: at >= 8,
    dots: true,
    points: data.shares[at].map((share, index) => [begins[index] + 1, 100 * share]),
  }));
  const words = data.layers.map((layer, at) => `layer ${layer}: ${count.format(Math.round(data.reach[at]))}`).join(", ");
  return html`<p class="muted small">The share of each layer's attention that goes to tokens at a distance; a point stands for all distances up to the next
      point. Mean distance: ${words} tokens.</p>
    <${LineChart} label=${`Attention over distance. Mean distance in tokens: ${words}`} series=${series} xLabel="distance in tokens + 1 (logarithmic)" yLabel="% of attention" xLog=${true} height=${300} />
    <details><summary>The numbers, and the heads that attend farthest back</summary><${Scroll} label="Attention over distance, in numbers"><table>
      <thead><tr><th>Distance</th>${data.layers.map((layer) => html`<th key=${layer} class="number">Layer ${layer}</th>`)}</tr></thead>
      <tbody>${data.distances.map((label, index) => html`<tr key=${label}><th scope="row">${label}</th>${data.layers.map((layer, at) => html`<td key=${layer} class="number">${(100 * data.shares[at][index]).toFixed(1)} %</td>`)}</tr>`)}</tbody>
    </table></${Scroll}>
    <p class="small spaced">${data.wide_heads.map((head) => `layer ${head.layer}, head ${head.head}: ${number(head.reach)} tokens`).join("; ")}.</p></details>`;
}

function Alpha({ alpha }) {
  const series = alpha.layers.map((layer, at) => ({ label: `layer ${layer}`, color: `c${at % 8}`, points: alpha.mean[at].map((value, slot) => [slot + 1, value]) }));
  return html`<h3 class="spaced">Alpha by slot</h3>
    <p class="muted small">The weight of a slot's old context against what it sees ahead; 1 keeps the old. Slot 1 is the oldest. Mean of ${alpha.segments} segments.</p>
    <${LineChart} label="Alpha by slot, a line for every layer" series=${series} xLabel="slot" yLabel="alpha" height=${260} />`;
}

/** Send a JSON body whenever it changes: {data, error, loading}. Without a body, load the path. */
function usePost(path, body) {
  const [state, set] = useState({ loading: true });
  const sent = JSON.stringify(body);
  useEffect(() => {
    const stop = new AbortController();
    set((before) => ({ data: before.data, loading: true }));
    const answer = body ? postJson(path, body, { signal: stop.signal }) : getJson(path, { signal: stop.signal });
    answer.then(
      (data) => set({ data, loading: false }),
      (error) => error.name === "AbortError" || set({ error, loading: false }),
    );
    return () => stop.abort();
  }, [path, sent]);
  return state;
}

// Runs: a list with live states, curves of the chosen runs, and one run in detail (?run=NAME).
import { getJson, postJson } from "../api.js";
import { html, useEffect, useState } from "../html.js";
import { address, go } from "../router.js";
import { useRunEvents } from "../run_events.js";
import { Badge, bytes, Command, count, duration, Notice, number, Scroll, Waiting } from "../widgets.js";
import { RunCurves } from "../run_curves.js";
import RunDetail from "./run_detail.js";

const DEMO = "/studio/api/demo";
const MOST = 8; // runs in one chart: as many as there are colours
const KINDS = {
  "being trained": "live",
  finished: "good",
  exported: "plain",
  converted: "plain",
  "not trained yet": "plain",
  stopped: "warn",
  "needs an import": "warn",
  diverged: "bad",
  damaged: "bad",
};

export default function Runs({ query }) {
  const open = query.get("run");
  return open === null ? html`<${Overview} chosen=${query.getAll("compare")} />` : html`<${RunDetail} name=${open} />`;
}

export function State({ run }) {
  return html`<${Badge} kind=${KINDS[run.state]}>${run.shipped ? "comes with Mnemo" : run.state}</${Badge}>`;
}

/** The runs that are drawn if none is chosen: those in training, else the newest, with those it can be compared with. */
function firstChoice(runs) {
  const drawn = runs.filter((run) => !run.shipped && run.state !== "damaged");
  const training = drawn.filter((run) => run.state === "being trained");
  if (training.length) return training.slice(0, MOST).map((run) => run.name);
  const like = drawn.filter((run) => run.corpus === drawn[0].corpus);
  return (like.length ? like : runs).slice(0, 3).map((run) => run.name);
}

function Overview({ chosen }) {
  const { runs, curves, error } = useRunEvents(chosen, firstChoice);
  const names = chosen.length ? chosen : runs ? firstChoice(runs) : [];
  const shown = names.filter((name) => runs?.some((run) => run.name === name));
  if (error && !runs) return html`<h1>Runs</h1><${Notice} kind="bad">${error.message}</${Notice}>`;
  if (!runs) return html`<h1>Runs</h1><${Waiting} />`;
  const own = runs.filter((run) => !run.shipped);
  return html`
    <h1>Runs</h1>
    <p class="lead">${summary(own)} Curves grow while a run trains. Losses are in bits per character or byte (bpc, bpb) or as
      perplexity; lower is better.</p>
    ${error && html`<${Notice} kind="bad">${error.message}</${Notice}>`}
    <${Demo} offer=${own.length === 0} />
    <section class="card" aria-labelledby="curves">
      <h2 id="curves">Learning curves</h2>
      <${RunCurves} curves=${shown.map((name) => curves[name]).filter(Boolean)} names=${shown} />
    </section>
    <section class="card" aria-labelledby="list">
      <div class="head"><h2 id="list">All runs</h2>
        <span class="muted small">Tick runs to compare them; open one for its recipe and commands.</span></div>
      <${Table} runs=${runs} shown=${shown} />
    </section>
  `;
}

function summary(own) {
  const training = own.filter((run) => run.state === "being trained").length;
  if (!own.length) return "You have not trained a model yet.";
  return `${own.length} ${own.length === 1 ? "run" : "runs"}, ${training || "none"} in training now.`;
}

/** Offers to train the demo if there is no run, and follows it while it trains. */
function Demo({ offer }) {
  const [demo, setDemo] = useState({ state: "absent" });
  const [error, setError] = useState(null);
  const load = () => getJson(DEMO).then(setDemo, () => {}); // the list reports a lost server
  const start = () => postJson(DEMO, {}).then((now) => (setError(null), setDemo(now)), setError);
  useEffect(() => void load(), []);
  useEffect(() => {
    const again = demo.state === "training" ? setTimeout(load, 2000) : null;
    return () => clearTimeout(again);
  }, [demo]);
  if (error) return html`<${Notice} kind="bad">${error.message}</${Notice}>`;
  if (demo.state === "training") return html`<${Notice}><p><b>The demo is being trained.</b> Its runs appear below, and their curves grow.</p><p class="small muted">${demo.line}</p></${Notice}>`;
  if (demo.state === "failed") return html`<${Notice} kind="bad">The demo ended with an error: ${demo.line}</${Notice}>`;
  if (demo.state === "finished") return html`<${Notice} kind="good">The demo is finished. Start the studio again to use its model in the playground. Its report: ${demo.line}</${Notice}>`;
  return offer && html`<${NoRuns} start=${start} />`;
}

function NoRuns({ start }) {
  return html`<${Notice}>
    <p><b>Train a model and watch it here.</b> The demo trains small models with and without memory, in about three minutes
      on two CPU cores, and needs no download.</p>
    <p><button class="main" type="button" onClick=${start}>Train the demo now</button></p>
    <p>Or in a terminal, in the folder in which the studio was started:</p>
    <${Command} label="The demo">mnemo demo</${Command}>
    <${Command} label="Your own text">mnemo train mybook.txt</${Command}>
  </${Notice}>`;
}

function Table({ runs, shown }) {
  const choose = (name, on) => {
    const next = on ? [...shown, name].slice(-MOST) : shown.filter((each) => each !== name);
    go(address("runs", { compare: next }), { replace: true });
  };
  return html`<${Scroll} label="All runs"><table class="stacked runs">
    <thead><tr><th><span class="hidden">Compare</span></th><th>Run</th><th>State</th><th class="number">Steps</th>
      <th class="number">Best validation loss</th><th>Memory</th><th>Corpus</th><th class="number">Size</th><th>Last change</th></tr></thead>
    <tbody>${runs.map((run) => html`<${Row} key=${run.name} run=${run} at=${shown.indexOf(run.name)} choose=${choose} />`)}</tbody>
  </table></${Scroll}>`;
}

function Row({ run, at, choose }) {
  const steps = run.steps && run.steps !== run.step ? `${count.format(run.step)} of ${count.format(run.steps)}` : count.format(run.step);
  return html`<tr>
    <td class="tick"><input type="checkbox" checked=${at >= 0} aria-label=${`Compare ${run.name}`}
      onChange=${(event) => choose(run.name, event.target.checked)} /></td>
    <th scope="row" class="name">${at >= 0 && html`<span class=${`dot c${at % 8}`}></span>`}
      <a href=${address("runs", { run: run.name })}>${run.name}</a></th>
    <td class="state" data-label="State"><${State} run=${run} />${run.note && html`<div class="small muted note">${run.note}</div>`}
      ${run.state === "being trained" && html`<progress aria-label=${`Steps of ${run.name}`} max=${run.steps} value=${run.step} />`}</td>
    <td class="number steps" data-label="Steps">${steps}</td>
    <td class="number best" data-label="Best validation loss">${run.best ? `${number(run.best.value)} ${run.unit}` : "–"}</td>
    <td class="words" data-label="Memory">${run.memory ?? "–"}</td>
    <td class="corpus" data-label="Corpus">${run.corpus ?? "–"}</td>
    <td class="number size" data-label="Size">${bytes(run.bytes)}</td>
    <td class="small muted written" data-label="Last change"><time datetime=${run.written}>${ago(run.written)}</time></td>
  </tr>`;
}

function ago(written) {
  const seconds = (Date.now() - new Date(written)) / 1000;
  if (seconds < 20) return "just now";
  return seconds < 86400 ? `${duration(seconds)} ago` : new Date(written).toLocaleDateString("en-CA");
}

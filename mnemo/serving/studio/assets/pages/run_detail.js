// One run: what it is, its curves, plan, scores, samples, and the commands that go on from it.
import { LineChart } from "../chart.js";
import { html } from "../html.js";
import { emptyContents, Timeline } from "../memory_timeline.js";
import { address } from "../router.js";
import { RunCurves } from "../run_curves.js";
import { useRunEvents } from "../run_events.js";
import { Command, count, duration, Notice, number, Scroll, useData, Waiting } from "../widgets.js";
import { State } from "./runs.js";

export default function RunDetail({ name }) {
  const { data, error } = useData(address("api/run", { name }));
  const live = useRunEvents([name], () => []);
  if (error) return html`<h1>${name}</h1><${Notice} kind="bad">${error.message}</${Notice}><p><a href="/studio/runs">All runs</a></p>`;
  if (!data) return html`<h1>${name}</h1><${Waiting} />`;
  const run = { ...data, ...live.runs?.find((each) => each.name === name) };
  const curve = live.curves[name] ?? { name, ...data.curve };
  return html`
    <p class="small"><a href="/studio/runs">All runs</a></p>
    <div class="head"><h1>${name}</h1><${State} run=${run} /></div>
    ${run.note && html`<${Notice} kind=${run.state === "damaged" ? "bad" : "warn"}>${run.note}</${Notice}>`}
    <${Tiles} run=${run} curve=${curve} />
    <div class="columns">
      <div>
        <section class="card"><h2>Learning curves</h2><${RunCurves} curves=${[curve]} names=${[name]} /></section>
        <${Plan} name=${name} />
        ${data.sweeps.length > 0 && html`<${Sweeps} data=${data} />`}
        ${data.scores.length + data.answers.length > 0 && html`<${Scores} data=${data} />`}
        <section class="card"><h2>Facts</h2><dl class="facts">
          ${data.facts.map(([term, value]) => html`<dt key=${`${term}-term`}>${term}</dt><dd key=${term}>${value}</dd>`)}
          ${data.card && html`<dt>Data</dt><dd>${data.card.data}</dd><dt>Licence</dt><dd>${data.card.licence}</dd>`}
        </dl></section>
        ${data.samples.length > 0 && html`<${Samples} samples=${data.samples} />`}
      </div>
      <div>
        <section class="card"><h2>Commands</h2>
          ${data.commands.map((each) => html`<${Command} key=${each.label} label=${each.label}>${each.command}</${Command}>`)}
          <p class="buttons"><a class="button" href=${address("memory", { run: name })}>See its memory on a text</a></p>
        </section>
        <${Lines} title="Rollbacks" lines=${data.rollbacks} />
        <${Lines} title="Notes about its files" lines=${data.notes} />
      </div>
    </div>
    ${data.recipe && html`<details class="card"><summary>Recipe and environment as recorded (recipe.json)</summary>
      <pre class="small" tabindex="0">${data.recipe}</pre></details>`}
  `;
}

function Tiles({ run, curve }) {
  const now = curve.status;
  const training = run.state === "being trained";
  const step = Math.max(run.step, training ? (now?.step ?? 0) : 0);
  return html`<dl class="tiles">
    <div class="tile"><dt>Step</dt><dd>${count.format(step)} ${run.steps && html`<small>of ${count.format(run.steps)}</small>`}</dd></div>
    <div class="tile"><dt>Best validation loss</dt><dd>${run.best ? number(run.best.value) : "–"} <small>${run.best ? run.unit : "none yet"}</small></dd></div>
    <div class="tile"><dt>Last training loss</dt><dd>${curve.train.length ? number(curve.train.at(-1)[1]) : "–"} <small>${run.unit}</small></dd></div>
    ${training && now && html`<div class="tile"><dt>Speed</dt><dd>${number(now.tokens_per_second)} <small>tokens/s</small></dd></div>
      <div class="tile"><dt>Time left</dt><dd>${duration(now.seconds_left ?? NaN)}</dd></div>`}
  </dl>`;
}

function Plan({ name }) {
  const { data } = useData(address("api/memory/plan", { run: name }));
  if (!data) return null;
  return html`<section class="card"><div class="head"><h2>Memory plan</h2><span class="muted small">${data.words}</span></div>
    <p class="muted small">Memory slots of each layer before a text; the model reads ${count.format(data.segment)} tokens at a time.</p>
    <${Timeline} contents=${emptyContents(data)} at=${null} choose=${() => {}} />
  </section>`;
}

function Sweeps({ data }) {
  const points = data.sweeps.at(-1);
  return html`<section class="card"><h2>Loss by memory length</h2>
    <p class="muted small">The same weights with more or fewer slots of memory.</p>
    <${LineChart} label=${`Loss by memory length: ${points.map(([slots, value]) => `${slots} slots ${number(value)}`).join(", ")}`}
      series=${[{ label: data.curve.unit_words, color: "c0", points, dots: true }]} xLabel="slots of memory"
      yLabel=${data.curve.unit_words} height=${240} /></section>`;
}

function Scores({ data }) {
  return html`<section class="card"><h2>Scores</h2><${Scroll} label="Scores"><table>
    <thead><tr><th>Split</th><th class="number">${data.curve.unit_words}</th><th class="number">Memory</th><th class="number">Segment</th><th class="number">Tokens</th></tr></thead>
    <tbody>${data.scores.map(
      (score, at) => html`<tr key=${at}><td>${score.split}${score.kind && `, ${score.kind}`}</td><td class="number">${number(score.value)}</td>
        <td class="number">${count.format(score.memory)}</td><td class="number">${count.format(score.segment)}</td><td class="number">${count.format(score.tokens)}</td></tr>`,
    )}${data.answers.map(
      (score, at) => html`<tr key=${`answers${at}`}><td>${score.split}: right answers</td><td class="number">${number(100 * score.answers)} %</td>
        <td class="number">–</td><td class="number">–</td><td class="number">${count.format(score.samples)}</td></tr>`,
    )}</tbody></table></${Scroll}></section>`;
}

function Samples({ samples }) {
  return html`<section class="card"><h2>Samples</h2>${samples.map(
    (sample, at) => html`<div key=${at}><p class="muted small">${sample.settings}</p>
      ${sample.texts.map((text, index) => html`<pre key=${index} class="small">${text}</pre>`)}</div>`,
  )}</section>`;
}

function Lines({ title, lines }) {
  if (!lines.length) return null;
  return html`<section class="card"><h2>${title}</h2><ul>${lines.map((line, at) => html`<li key=${at}>${line}</li>`)}</ul></section>`;
}

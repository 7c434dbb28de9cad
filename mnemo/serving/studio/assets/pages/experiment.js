// One experiment: its claim, verdicts, figures and tables.
import { request } from "../api.js";
import { html, useEffect, useState } from "../html.js";
import { address } from "../router.js";
import { useTheme } from "../theme_switch.js";
import { Command, Notice, number, Scroll, useData, Waiting } from "../widgets.js";
import { Answer, Counts } from "./papers.js";

const MOST_ROWS = 200; // rows of a table that are shown

/** Figures with their captions; `of` names their experiment. */
export function Figures({ figures, of }) {
  return html`<div class="figures">${figures.map((figure) => html`<${Figure} key=${figure.slug} figure=${figure} of=${of} />`)}</div>`;
}

export default function Experiment({ name, budget }) {
  const { data, error } = useData(address("api/paper", { name, budget }));
  const back = html`<p class="small"><a href="/studio/papers">All experiments</a></p>`;
  if (error) return html`${back}<h1>${name}</h1><${Notice} kind="bad">${error.message}</${Notice}>`;
  if (!data) return html`${back}<h1>${name}</h1><${Waiting} what="Drawing the figures" />`;
  return html`${back}
    <h1>${data.title}</h1>
    <p class="lead">${data.paper}${data.covers.length > 0 && ` · ${data.covers.join(", ")}`} · budget ${data.budget}${data.data && ` · ${data.data}`}</p>
    <section class="card"><div class="head"><h2>Claim</h2><span><${Counts} verdicts=${data.verdicts} /></span></div>
      <p>${data.lead || data.claim}</p>
      ${data.verdicts.length > 0 ? html`<${Verdicts} verdicts=${data.verdicts} />` : html`<p class="muted">${data.about_verdicts || "No verdict yet."}</p>`}
    </section>
    ${data.problems.length > 0 && html`<${Notice} kind="warn">${data.problems.map((line, at) => html`<p key=${at}>${line}</p>`)}</${Notice}>`}
    <${Figures} figures=${data.figures} of=${{ name, budget }} />
    ${data.tables.map((table, at) => html`<section key=${at} class="card"><h2>${table.title}</h2><${Table} ...${table} />
      ${table.caption && html`<p class="small muted">${table.caption}</p>`}</section>`)}
    ${data.samples.map((sample, at) => html`<section key=${at} class="card"><h2>${sample.title}</h2><pre class="small">${sample.text}</pre>
      ${sample.note && html`<p class="small muted">${sample.note}</p>`}</section>`)}
    <section class="card"><h2>How it was measured</h2>
      <dl class="facts">${data.facts.map(([term, value]) => html`<dt key=${`${term}-term`}>${term}</dt><dd key=${term}>${value}</dd>`)}</dl>
      ${data.notes.length > 0 && html`<h3 class="spaced">Differences from the paper</h3><ul>${data.notes.map((note, at) => html`<li key=${at}>${note}</li>`)}</ul>`}
      <div class="spaced"><${Command} label="Measure again">${data.command}</${Command}></div>
    </section>`;
}

function Verdicts({ verdicts }) {
  return html`<${Scroll} label="Verdicts"><table class="stacked verdicts">
    <thead><tr><th>Holds?</th><th>Claim</th><th>Paper</th><th>Ours</th></tr></thead>
    <tbody>${verdicts.map(
      (verdict, at) => html`<tr key=${at}><td class="wide"><${Answer} holds=${verdict.holds} /></td><td class="wide">${verdict.claim}</td>
        <td data-label="Paper">${verdict.paper}</td><td data-label="Ours">${verdict.ours}</td></tr>`,
    )}</tbody></table></${Scroll}>`;
}

function Figure({ figure, of }) {
  const picture = usePicture(address("api/figure", { ...of, slug: figure.slug, theme: useTheme() }));
  return html`<figure class="card">
    <figcaption><h2>${figure.main_claim ?? figure.title}</h2>${figure.paper && html`<p class="small muted">${figure.paper}</p>`}</figcaption>
    ${picture.error
      ? html`<${Notice} kind="bad">${picture.error.message}</${Notice}>`
      : html`<img src=${picture.url} alt=${figure.description} width=${figure.width} height=${figure.height} />`}
    <p class="small muted">${figure.caption}</p>
    <details><summary>Numbers of this figure</summary><${Table} headers=${figure.headers} rows=${figure.rows} /></details>
  </figure>`;
}

/** The address of a picture that was fetched with the API key. */
function usePicture(path) {
  const [picture, set] = useState({});
  useEffect(() => {
    let made = null;
    const stop = new AbortController();
    request(path, { signal: stop.signal })
      .then((answer) => answer.blob())
      .then((blob) => {
        made = URL.createObjectURL(blob);
        if (!stop.signal.aborted) set({ url: made });
      })
      .catch((error) => stop.signal.aborted || set({ error }));
    return () => {
      stop.abort();
      if (made) URL.revokeObjectURL(made);
    };
  }, [path]);
  return picture;
}

export function Table({ headers, rows }) {
  const cell = (value) => (value === null ? "–" : typeof value === "number" ? number(value) : String(value));
  return html`<${Scroll} label="Table"><table>
    <thead><tr>${headers.map((header, at) => html`<th key=${at} class=${typeof rows[0]?.[at] === "number" ? "number" : ""}>${header}</th>`)}</tr></thead>
    <tbody>${rows.slice(0, MOST_ROWS).map(
      (row, index) => html`<tr key=${index}>${row.map((value, at) => html`<td key=${at} class=${typeof value === "number" ? "number" : ""}>${cell(value)}</td>`)}</tr>`,
    )}</tbody></table>
    ${rows.length > MOST_ROWS && html`<p class="small muted">The first ${MOST_ROWS} of ${rows.length} rows.</p>`}</${Scroll}>`;
}

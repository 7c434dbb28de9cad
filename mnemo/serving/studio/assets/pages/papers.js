// Papers: every experiment with stored results, its verdicts, figures and tables (?experiment=NAME&budget=BUDGET).
import { html, useState } from "../html.js";
import { address } from "../router.js";
import { Badge, Command, Notice, Scroll, useData, Waiting } from "../widgets.js";
import Experiment, { Figures } from "./experiment.js";

const ANSWERS = [
  { holds: true, kind: "good", mark: "✓", words: "hold", one: "holds" },
  { holds: false, kind: "bad", mark: "✗", words: "not at this budget", one: "not at this budget" },
  { holds: null, kind: "plain", mark: "?", words: "open", one: "open" },
];

export default function Papers({ query }) {
  const name = query.get("experiment");
  return name === null ? html`<${Overview} />` : html`<${Experiment} name=${name} budget=${query.get("budget") ?? ""} />`;
}

/** The answer to one claim: a mark and a word, so that it does not depend on colour. */
export function Answer({ holds }) {
  const { kind, mark, one } = ANSWERS.find((each) => each.holds === holds);
  return html`<${Badge} kind=${kind}><span aria-hidden="true">${mark}</span> ${one}</${Badge}>`;
}

export function Counts({ verdicts }) {
  if (!verdicts.length) return html`<${Badge}>no verdict</${Badge}>`;
  return ANSWERS.map(({ holds, kind, mark, words, one }) => {
    const times = verdicts.filter((verdict) => verdict.holds === holds).length;
    return times > 0 && html`<${Badge} key=${words} kind=${kind}><span aria-hidden="true">${mark}</span> ${times} ${times === 1 ? one : words}</${Badge}> `;
  });
}

function Overview() {
  const { data, error } = useData("/studio/api/papers");
  const [wanted, setWanted] = useState("");
  const title = html`<h1>Papers</h1>
    <p class="lead">Claims of the papers about memory, measured again with this code. A claim <b>holds</b>, does${" "}
      <b>not</b> hold <b>at this budget</b> (training here is much shorter than in the paper), or is <b>open</b>: our numbers
      do not decide it.</p>`;
  if (error) return html`${title}<${Notice} kind="bad">${error.message}</${Notice}>`;
  if (!data) return html`${title}<${Waiting} what="Comparing the stored results with the claims" />`;
  if (!data.experiments.length) return html`${title}<${NoResults} data=${data} />`;
  const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
  const found = data.experiments.filter((each) => words.every((word) => JSON.stringify(each).toLowerCase().includes(word)));
  return html`${title}
    <${MainClaims} />
    <${Tiles} experiments=${data.experiments} />
    <div class="fields"><div class="field"><label for="search">Find an experiment</label>
      <input id="search" type="search" value=${wanted} placeholder="enwik8, copy, look-ahead …" size="30"
        onInput=${(event) => setWanted(event.target.value)} /></div>
      <span class="muted small" role="status">${words.length > 0 && `${found.length} of ${data.experiments.length} experiments`}</span></div>
    ${[...Map.groupBy(found, (each) => each.paper)].map(
      ([paper, experiments]) => html`<section key=${paper} aria-label=${paper}><h2>${paper}</h2>
        <div class="cards">${experiments.map((each) => html`<${Card} key=${each.name + each.budget} experiment=${each} />`)}</div></section>`,
    )}`;
}

/** A figure for the main claim of each paper, and the main numbers, as far as they are among the results. */
function MainClaims() {
  const { data, error } = useData("/studio/api/papers/main");
  if (error) return html`<${Notice} kind="bad">${error.message}</${Notice}>`;
  if (!data) return html`<${Waiting} what="Drawing the main claims" />`;
  return html`${data.figures.length > 0 && html`<section aria-label="Main claims"><${Figures} figures=${data.figures} of=${{}} /></section>`}
    ${data.headlines.length > 0 && html`<section class="card"><h2>Main numbers</h2><${Scroll} label="Main numbers"><table class="stacked">
      <thead><tr><th>Claim</th><th>Data</th><th>Paper</th><th>Ours</th><th>Holds?</th></tr></thead>
      <tbody>${data.headlines.map(
        (row, at) => html`<tr key=${at}><td class="wide">${row.claim}</td><td data-label="Data">${row.data}</td><td data-label="Paper">${row.paper}</td>
          <td data-label="Ours">${row.ours}</td><td data-label="Holds?">${row.verdict}</td></tr>`,
      )}</tbody></table></${Scroll}></section>`}`;
}

function Tiles({ experiments }) {
  const verdicts = experiments.flatMap((each) => each.verdicts);
  const times = (holds) => verdicts.filter((verdict) => verdict.holds === holds).length;
  return html`<dl class="tiles">
    <div class="tile"><dt>Experiments</dt><dd>${experiments.length}</dd></div>
    <div class="tile"><dt>Claims</dt><dd>${verdicts.length}</dd></div>
    <div class="tile good"><dt>Hold</dt><dd>${times(true)}</dd></div>
    <div class="tile bad"><dt>Not at this budget</dt><dd>${times(false)}</dd></div>
    <div class="tile"><dt>Open</dt><dd>${times(null)}</dd></div>
  </dl>`;
}

function Card({ experiment }) {
  const { name, budget, title, covers, data, claim, verdicts } = experiment;
  return html`<article class="card experiment">
    <h3><a href=${address("papers", { experiment: name, budget })}>${title}</a></h3>
    <p class="small muted">${[...covers, data, `budget ${budget}`].filter(Boolean).join(" · ")}</p>
    <p class="small">${claim}</p>
    <p class="counts"><${Counts} verdicts=${verdicts} /></p>
  </article>`;
}

function NoResults({ data }) {
  return html`<${Notice}>
    <p><b>There are no results in ${data.folders.join(" or ")}.</b> The project's own results are in its repository, in the folder
      results; start the studio there, or name another folder with --results. To make some here, in minutes on a CPU:</p>
    <${Command}>${data.command}</${Command}>
    <p class="small muted">mnemo reproduce --list shows all experiments.</p>
  </${Notice}>`;
}

// The losses of one text after two memories, which both stay as they are.
import { postJson } from "../api.js";
import { html, useMemo, useState } from "../html.js";
import { Notice, number } from "../widgets.js";
import { API } from "./memory.js";
import { units } from "./scales.js";
import { bits, Legend, quoted, Tokens } from "./text_view.js";

export function Compare({ memories, edges, unit, busy }) {
  const [text, setText] = useState("");
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  const [working, setWorking] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    setWorking(true);
    setError(null);
    try {
      for (const memory of memories) await memory.ensure();
      const answer = await postJson(`${API}/compare`, { sessions: memories.map((memory) => memory.id), text });
      setFound((before) => ({ ...answer, number: (before?.number ?? 0) + 1 }));
    } catch (problem) {
      setError(problem.message);
    }
    setWorking(false);
  };
  return html`<form class="card" onSubmit=${submit} aria-label="Compare both memories on a text">
    <h2>Compare both memories on a text</h2>
    <p class="small muted">The loss of this text is computed after each memory; both memories stay as they are.</p>
    <label class="hidden" for="comparing">Text to compare on</label>
    <textarea id="comparing" class="low" value=${text} onInput=${(event) => setText(event.target.value)} spellcheck="false"
      placeholder="For example a sentence with names that only one of them still remembers"></textarea>
    <div class="buttons"><button type="submit" disabled=${!text || busy || working}>${working ? "Measuring …" : "Measure"}</button></div>
    ${error && html`<${Notice} kind="bad">${error}</${Notice}>`}
    ${found && html`<${Result} key=${found.number} found=${found} edges=${edges} unit=${unit} />`}
  </form>`;
}

function Result({ found, edges, unit }) {
  const shown = useMemo(() => units({ ...found, begin: 0, bits: found.bits[0], without: found.bits[1], written: [], openings: [], gaps: [] }), [found]);
  const [current, setCurrent] = useState(null);
  const [a, b] = found.mean;
  const better = Math.abs(a - b) < 0.0005 ? "Both memories predict it equally well." : `Memory ${a < b ? "A" : "B"} saves ${number(Math.abs(a - b))} bits per ${unit}.`;
  return html`<div class="result">
    <p role="status">After memory A: <b>${number(a)}</b> bits per ${unit}; after memory B: <b>${number(b)}</b>. ${better}</p>
    <${Legend} scale="saved" edges=${edges} what="Loss after B minus loss after A. Green: A predicts better; orange: B does." />
    <${Tokens} label="The text, coloured by the difference" shown=${shown} scale="saved" edges=${edges} short current=${current}
      setCurrent=${setCurrent} />
    <p class="small" aria-live="polite">${current === null ? "" : values(shown[current])}</p>
  </div>`;
}

function values({ text, bits: first, without: second, saved }) {
  return `${quoted(text)}: ${bits(first)} after A, ${bits(second)} after B; A saves ${bits(saved, true)}`;
}

// The text of one memory, coloured token by token, with an overview, a pager and the details of one token.
import { getJson } from "../api.js";
import { html, useEffect, useMemo, useRef, useState } from "../html.js";
import { count } from "../widgets.js";
import { legend, shade, units } from "./scales.js";

const DETAIL_DELAY = 200; // milliseconds on a token before the server is asked about it

const MEANING = {
  surprise: "Surprise: −log₂ of the probability that the model gave to the token. 0 bits: certain; 8 bits: 1 in 256.",
  saved: "Saved by memory: surprise without memory minus surprise with memory. Green: memory helped; orange: it was harmful.",
};

export function Legend({ scale, edges, what = MEANING[scale] }) {
  return html`<div class=${`shades ${scale}`}>
    <ul aria-label="Colours, each with the number of bits at which it begins">${legend(scale, edges).map(([name, words]) => html`<li key=${words} class=${`swatch ${name}`}>${words}</li>`)}<li>bits or more</li></ul>
    <span class="muted">${what}</span>
  </div>`;
}

/** `children`: facts that are shown below the details of a token. */
export function TextView({ memory, scale, edges, children }) {
  const { window, live } = memory;
  const [current, setCurrent] = useState(null);
  const shown = useMemo(() => (window ? units(window) : []), [window]);
  useEffect(() => setCurrent(null), [memory.id, window?.begin]);
  if (!shown.length && !live.length && !memory.busy) return html`<${Empty} memory=${memory} />${children}`;
  const onLastPage = !window || window.end >= window.total;
  return html`<div class="reading">
    <div>
      <${Overview} memory=${memory} scale=${scale} edges=${edges} />
      <${Tokens} label=${`Text of memory ${memory.label}`} shown=${shown} live=${onLastPage ? live : []} scale=${scale} edges=${edges}
        writing=${memory.work?.kind === "write"} current=${current} setCurrent=${setCurrent} />
      <${Pager} memory=${memory} />
    </div>
    <div><${Details} memory=${memory} unit=${current === null ? null : shown[current]} />${children}</div>
  </div>`;
}

function Empty({ memory }) {
  if (memory.info?.tokens) {
    return html`<p class="empty muted">This memory holds ${count.format(memory.info.tokens)} tokens whose text is not shown here.
      Read a text or write: new text is shown.</p>`;
  }
  return html`<p class="empty muted">Nothing has been read yet. Press <b>Read the example</b>, paste a text, or drop a text file.
    The text appears here, coloured token by token.</p>`;
}

/** Coloured tokens; pointing at one, or going there by arrow keys, makes it the current one. `live`: further ones. */
export function Tokens({ label, shown, live = [], scale, edges, writing = false, short = false, current, setCurrent }) {
  const box = useRef(null);
  const spans = useMemo(() => shown.map((unit, at) => Token(unit, at, scale, edges)), [shown, scale, edges]);
  useEffect(() => {
    if (live.length && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [live.length]);
  useEffect(() => mark(box.current, shown, current), [shown, current, spans]);
  const over = (event) => {
    const at = event.target.dataset?.at;
    if (at !== undefined) setCurrent(Number(at));
  };
  const keys = (event) => {
    const next = move(event, current, shown);
    if (next === null) return;
    event.preventDefault();
    setCurrent(next);
    box.current.querySelector(`[data-at="${next}"]`)?.scrollIntoView({ block: "nearest" });
  };
  return html`<div class=${`tokens ${scale}${short ? " short" : ""}`} ref=${box} tabindex="0" role="group"
    aria-label=${`${label}. Arrow keys go from token to token and read its values.`}
    onMouseOver=${over} onClick=${over} onKeyDown=${keys}>
    ${spans}${live.map((token, at) => html`<span key=${`l${at}`} class=${`t written ${liveShade(token, scale, edges)}`}>${token.text}</span>`)}
    ${writing && html`<span class="caret" aria-hidden="true"></span>`}
  </div>`;
}

function liveShade(token, scale, edges) {
  return scale === "surprise" ? shade({ bits: token.bits }, scale, edges) : "";
}

function Token(unit, at, scale, edges) {
  const names = ["t", shade(unit, scale, edges)];
  if (unit.written) names.push("written");
  if (unit.opening) names.push("opening");
  if (unit.text === "\n") names.push("newline");
  const token = html`<span key=${unit.at} class=${names.filter(Boolean).join(" ")} data-at=${at}>${visible(unit.text)}</span>`;
  if (!unit.gap) return token;
  return html`<span key=${`g${unit.at}`} class="gap">${count.format(unit.gap)} tokens that are not shown</span>${token}`;
}

/** Control characters as symbols. */
function visible(text) {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f]/g, (letter) => (letter === "\u007f" ? "␡" : String.fromCharCode(0x2400 + letter.charCodeAt(0))));
}

/** The number of the token that a key leads to, or null for other keys. */
function move(event, current, shown) {
  if (event.ctrlKey || event.metaKey || event.altKey || !shown.length) return null;
  const at = current ?? -1;
  const last = shown.length - 1;
  const within = (place) => Math.max(0, Math.min(last, place));
  switch (event.key) {
    case "ArrowRight": return within(at + 1);
    case "ArrowLeft": return within(at - 1);
    case "ArrowDown": return within(nextLine(shown, at, 1));
    case "ArrowUp": return within(nextLine(shown, at, -1));
    case "Home": return 0;
    case "End": return last;
    default: return null;
  }
}

function nextLine(shown, at, step) {
  for (let place = at + step; place >= 0 && place < shown.length; place += step) {
    if (shown[place].text.includes("\n")) return step > 0 ? place + 1 : place;
  }
  return step > 0 ? shown.length - 1 : 0;
}

/** Outline the current token, and the earlier place of the same tokens. */
function mark(box, shown, current) {
  if (!box) return;
  for (const old of box.querySelectorAll(".current, .source")) old.classList.remove("current", "source");
  if (current === null || !shown[current]) return;
  const unit = shown[current];
  box.querySelector(`[data-at="${current}"]`)?.classList.add("current");
  if (!unit.back) return;
  const end = unit.at - unit.back;
  shown.forEach((other, at) => {
    if (other.at <= end && other.at > end - unit.same) box.querySelector(`[data-at="${at}"]`)?.classList.add("source");
  });
}

function Overview({ memory, scale, edges }) {
  const { overview, window } = memory;
  if (!overview || !window || overview.bits.length < 2 || window.total <= memory.page) return null;
  const values = overview.bits.map((bits, at) => ({ bits, saved: overview.saved[at] }));
  const width = 1000 / values.length;
  const jump = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const token = ((event.clientX - box.left) / box.width) * window.total;
    memory.guarded(() => memory.show(Math.floor(token / memory.page)));
  };
  // The pager does the same for the keyboard.
  return html`<svg class=${`overview ${scale}`} viewBox="0 0 1000 24" preserveAspectRatio="none" aria-hidden="true" onClick=${jump}>
    ${values.map((value, at) => html`<rect key=${at} class=${meanShade(value, scale, edges)} x=${at * width} width=${width + 0.5} y="0" height="24" />`)}
    <rect class="here" x=${(window.begin / window.total) * 1000} width=${Math.max(4, ((window.end - window.begin) / window.total) * 1000)} y="1" height="22" />
  </svg>`;
}

/** Means vary less than single tokens, so that their steps are finer. */
function meanShade(value, scale, edges) {
  const finer = { surprise: edges.surprise.map((edge) => edge / 2), saved: edges.saved.map((edge) => edge / 8) };
  return shade(value, scale, finer) || "none";
}

function Pager({ memory }) {
  const { window, page } = memory;
  if (!window || window.total <= page) return null;
  const number = Math.floor(window.begin / page);
  const last = Math.floor((window.total - 1) / page);
  const to = (place) => () => memory.guarded(() => memory.show(place));
  return html`<nav class="pager" aria-label=${`Pages of the text of memory ${memory.label}`}>
    <button type="button" disabled=${number === 0} onClick=${to(0)} aria-label="First page">⏮</button>
    <button type="button" disabled=${number === 0} onClick=${to(number - 1)}>Back</button>
    <span class="small muted">Tokens ${count.format(window.begin + 1)}–${count.format(window.end)} of ${count.format(window.total)}</span>
    <button type="button" disabled=${number >= last} onClick=${to(number + 1)}>Next</button>
    <button type="button" disabled=${number >= last} onClick=${to(last)} aria-label="Last page">⏭</button>
  </nav>`;
}

function Details({ memory, unit }) {
  const more = useDetails(memory, unit);
  if (!unit) {
    return html`<div class="details muted small">Point at a token of the text, or focus the text with Tab and use the arrow keys, to see its losses and where the help came from.</div>`;
  }
  return html`<div class="details" role="status" aria-live="polite">
    <div class="line"><b class="quoted">${quoted(unit.text)}</b>
      <span class="muted small">${unit.written ? "written" : "read"}, token ${count.format(unit.at + 1)}${unit.tokens > 1 ? ` (${unit.tokens} tokens)` : ""}</span></div>
    <dl class="values">
      <div><dt>With memory</dt><dd>${bits(unit.bits)}</dd></div>
      <div><dt>Without memory</dt><dd>${bits(unit.without)}</dd></div>
      <div><dt>Saved</dt><dd>${bits(unit.saved, true)}</dd></div>
    </dl>
    <div class="small">${repeated(unit, more)}</div>
    <div class="small">${attended(more)}</div>
  </div>`;
}

function repeated(unit, more) {
  if (!unit.back) return "No repetition: the tokens up to here did not occur together before.";
  const where = more?.earlier ? ` (${more.earlier.in_memory ? "in memory" : more.earlier.in_segment ? "in this segment" : "further back than memory reaches"})` : "";
  const text = more?.earlier ? html`: <q>${more.earlier.text}</q>` : "";
  return html`The last ${unit.same} tokens also occurred ${count.format(unit.back)} tokens back${where}${text}`;
}

function attended(more) {
  if (!more) return "…";
  if (!more.attention) return more.why ?? "";
  const { share, distance, text } = more.attention;
  if (!distance) return "Attention: the memory was still empty.";
  return html`Attention: ${(share * 100).toFixed(share < 0.1 ? 1 : 0)} % to memory, most of it ${count.format(distance)} tokens back: <q>${text}</q>`;
}

/** What the server knows about a token besides its window, asked for after a moment. */
function useDetails(memory, unit) {
  const [more, set] = useState(null);
  const at = unit?.at;
  useEffect(() => {
    set(null);
    if (at === undefined || memory.busy) return undefined;
    const stop = new AbortController();
    const timer = setTimeout(() => {
      getJson(`${memory.path}/token?at=${at}`, { signal: stop.signal }).then(set, (error) => {
        if (error.name !== "AbortError") set({ why: error.message });
      });
    }, DETAIL_DELAY);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [at, memory.id, memory.busy]);
  return more;
}

export function quoted(text) {
  if (text === " ") return "space";
  if (text === "\n") return "line end";
  return text.trim() ? `“${visible(text)}”` : JSON.stringify(text);
}

export function bits(value, signed = false) {
  if (value === null || value === undefined) return "–";
  const sign = signed && value > 0 ? "+" : "";
  return `${sign}${value.toFixed(2).replace("-", "−")} bits`;
}

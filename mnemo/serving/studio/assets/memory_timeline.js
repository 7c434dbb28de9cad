// The plan as a picture: a row for every layer, with the part of the text that its slots hold; the right edge is now.
import { html } from "./html.js";
import { count } from "./widgets.js";

/** The part of the text, in token numbers, that the picture shows: all slots, and some of what is forgotten. */
export function extentOf({ layers, tokens, open }) {
  const closed = tokens - open;
  const reach = Math.max(1, ...layers.map(capacity));
  const begin = Math.min(closed - reach, Math.max(0, closed - Math.round(1.25 * reach)));
  return { begin, end: tokens };
}

/** The contents of a plan's slots before any text is read. */
export function emptyContents(plan) {
  const layers = plan.layers.map(({ layer, memory, long, slots }) => ({ layer, mechanism: memory, long, slots, filled: 0, ranges: [], besides: "" }));
  return { layers, tokens: 0, open: 0, memory_tokens: 0, pieces: [], first_piece: 0 };
}

/** Tokens that all slots of a layer can stand for. */
function capacity(layer) {
  const held = layer.ranges.reduce((sum, { begin, end }) => sum + end - begin, 0);
  return held + (layer.slots - layer.filled) * Math.max(1, ...layer.ranges.map(({ rows }) => rows));
}

export function isHeld(layer, token) {
  return layer.ranges.some(({ begin, end }) => begin <= token && token < end);
}

/**
 * contents: {layers, tokens, open, memory_tokens}; at: a token number or null; choose(token) when one is pointed at.
 * children: a label and a slider, drawn below the layers.
 */
export function Timeline({ contents, at, choose, children }) {
  const { begin, end } = extentOf(contents);
  const closed = contents.tokens - contents.open;
  const part = (from, to) => ({ left: `${(100 * (from - begin)) / (end - begin)}%`, width: `${(100 * (to - from)) / (end - begin)}%` });
  const point = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const token = Math.floor(begin + ((event.clientX - box.left) / box.width) * (end - begin));
    if (token >= 0 && token < contents.tokens) choose(token);
  };
  return html`<div class="timeline">
    ${contents.memory_tokens > 0 && html`<div class="layer"><span class="label">Input</span>
      <div class="track"><span class="tokens-note">${count.format(contents.memory_tokens)} memory tokens: a summary of all ${count.format(contents.tokens)} tokens</span></div></div>`}
    ${contents.layers.map(
      (layer) => html`<div class="layer" key=${layer.layer}>
        <span class="label"><b>Layer ${layer.layer}</b> ${layer.mechanism}${layer.long && contents.layers.some((each) => !each.long) ? ", long" : ""}</span>
        <div class="track" role="img" aria-label=${describe(layer)} onPointerMove=${point} onPointerDown=${point}>
          ${layer.slots > 0 && html`<span class="vacant" style=${part(Math.max(begin, closed - capacity(layer)), closed)}></span>`}
          ${layer.ranges.map((range, index) => html`<span key=${index} class=${kind(layer, range)} style=${part(Math.max(begin, range.begin), range.end)}></span>`)}
          ${contents.open > 0 && html`<span class="open" style=${part(closed, contents.tokens)}></span>`}
          ${at !== null && at >= begin && html`<span class=${`at${isHeld(layer, at) ? " held" : ""}`} style=${{ left: part(at + 0.5, at).left }}></span>`}
        </div>
        <span class="filled number">${layer.slots > 0 ? `${count.format(layer.filled)} / ${count.format(layer.slots)}` : layer.besides || "no slots"}</span>
      </div>`,
    )}
    ${children && html`<div class="layer pick">${children}</div>`}
    <div class="layer scale" aria-hidden="true"><span class="label"></span><div class="track">
      ${ticks(begin, end).map((token) => html`<span key=${token} style=${{ left: part(token, token).left }}>${count.format(token)}</span>`)}
    </div><span class="filled"></span></div>
    <${Legend} layers=${contents.layers} />
  </div>`;
}

function kind(layer, range) {
  return range.rows > 1 ? "compressed" : layer.long ? "long" : "short";
}

function describe(layer) {
  const held = layer.ranges.map(({ begin, end, rows }) => `tokens ${begin} to ${end - 1}${rows > 1 ? `, compressed ${rows} to one` : ""}`);
  return `Layer ${layer.layer}, ${layer.mechanism}: ${layer.filled} of ${layer.slots} slots filled${held.length ? `, with ${held.join(" and ")}` : ""}`;
}

/** Round token numbers from 0 on, at most about six. */
function ticks(begin, end) {
  const rough = (end - begin) / 5;
  const power = 10 ** Math.floor(Math.log10(Math.max(1, rough)));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough);
  const found = [];
  for (let token = Math.max(0, Math.ceil(begin / step) * step); token < end - step / 4; token += step) found.push(token);
  return found;
}

function Legend({ layers }) {
  const mixed = layers.some(({ long }) => long) && layers.some(({ long }) => !long);
  const kinds = [
    ["long", mixed ? "long-range memory" : "memory", layers.some(({ long }) => long)],
    ["short", mixed ? "short memory" : "memory", layers.some(({ long }) => !long)],
    ["compressed", "compressed memory", layers.some(({ ranges }) => ranges.some(({ rows }) => rows > 1))],
    ["vacant", "empty slots", true],
    ["open", "open segment, not in memory yet", true],
  ];
  return html`<p class="legend small muted">${kinds
    .filter(([, , shown]) => shown)
    .map(([name, words]) => html`<span key=${name}><i class=${name}></i>${words}</span>`)}</p>`;
}

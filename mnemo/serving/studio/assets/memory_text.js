// The end of the text that was read, coloured by the number of layers that still hold each token.
import { html } from "./html.js";
import { extentOf, isHeld } from "./memory_timeline.js";
import { count } from "./widgets.js";

const AROUND = 40; // tokens before and after the chosen one
const SHOWN = 6000; // most tokens of the text view

/** One token in words: where it is, which layers hold it, and the text around it. */
export function TokenWords({ contents, at }) {
  if (at === null) return null;
  const { layers, tokens, open, pieces, first_piece: first } = contents;
  const holding = layers.filter((layer) => isHeld(layer, at));
  const text = (from, to) => pieces.slice(Math.max(0, from - first), Math.max(0, to - first)).join("");
  return html`<div class="token-words">
    <p><b>Token ${count.format(at + 1)}</b>, ${count.format(tokens - 1 - at)} tokens before the end: ${where(at, tokens - open, holding, layers)}.</p>
    <p class="around"><span class="muted">${text(at - AROUND, at)}</span><mark>${text(at, at + 1) || " "}</mark><span class="muted">${text(at + 1, at + 1 + AROUND)}</span></p>
  </div>`;
}

function where(at, closed, holding, layers) {
  if (at >= closed) return "in the open segment, which every layer sees directly";
  if (!holding.length) return "in no slot any more";
  if (holding.length === layers.length) return "in memory in every layer";
  return `in memory in ${holding.length === 1 ? "layer" : "layers"} ${holding.map((layer) => layer.layer).join(", ")}`;
}

export function HeldText({ contents, at, choose }) {
  const { layers, tokens, open, pieces, first_piece: first } = contents;
  const begin = Math.max(first, extentOf(contents).begin, tokens - SHOWN);
  const levels = [];
  for (let token = begin; token < tokens; token++) {
    const held = layers.filter((layer) => isHeld(layer, token)).length;
    const level = token === at ? "chosen" : token >= tokens - open ? "open" : shade(held, layers.length);
    if (levels.at(-1)?.level !== level) levels.push({ level, from: token });
    levels.at(-1).to = token + 1;
  }
  const point = (event, from, to) => {
    const range = document.caretPositionFromPoint?.(event.clientX, event.clientY) ?? document.caretRangeFromPoint?.(event.clientX, event.clientY);
    const offset = range?.offset ?? range?.startOffset ?? 0;
    let token = from;
    for (let letters = 0; token < to - 1; token++) {
      letters += pieces[token - first].length;
      if (letters > offset) break;
    }
    choose(token);
  };
  return html`<div class="held" tabindex="0" role="region" aria-label="The end of the text">
    ${begin > 0 && html`<span class="muted">… </span>`}
    ${levels.map(({ level, from, to }) => html`<span key=${from} class=${`level ${level}`} title=${title(level)}
      onPointerMove=${(event) => point(event, from, to)}>${pieces.slice(from - first, to - first).join("")}</span>`)}
  </div>`;
}

/** "none", "l1" ... "l4": the share of layers that hold a token, in quarters. */
function shade(held, layers) {
  return held === 0 ? "none" : `l${Math.ceil((4 * held) / layers)}`;
}

function title(level) {
  return { none: "in no memory any more", open: "open segment", l4: "in memory in all or most layers" }[level] ?? "in memory in some layers";
}

// Small parts that several pages use.
import { getJson } from "./api.js";
import { html, useEffect, useRef, useState } from "./html.js";

/** A message in a box; kind: "info", "good", "warn" or "bad". Errors are read aloud at once. */
export function Notice({ kind = "info", children }) {
  return html`<div class=${`notice ${kind}`} role=${kind === "bad" ? "alert" : undefined}>${children}</div>`;
}

/** Shown while something loads; it appears only after a moment, so that fast answers do not flicker. */
export function Waiting({ what = "Loading" }) {
  return html`<p class="waiting" role="status">${what} …</p>`;
}

/** A part that scrolls sideways if it is too wide, also by keyboard. */
export function Scroll({ label, children }) {
  return html`<div class="scroll" tabindex="0" role="group" aria-label=${label}>${children}</div>`;
}

/** A short word on a coloured ground. */
export function Badge({ kind = "plain", children }) {
  return html`<span class=${`badge ${kind}`}>${children}</span>`;
}

/** A command line with a button that copies it. */
export function Command({ children, label }) {
  const [copied, setCopied] = useState(false);
  const text = useRef(null);
  const copy = async () => {
    await copyText(children, text.current);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return html`<div class="command">
    ${label && html`<span class="label">${label}</span>`}
    <code ref=${text} tabindex="0">${children}</code>
    <button type="button" onClick=${copy} aria-label=${`Copy: ${children}`}>${copied ? "Copied" : "Copy"}</button>
  </div>`;
}

async function copyText(words, element) {
  try {
    await navigator.clipboard.writeText(words);
  } catch {
    // Without permission for the clipboard the text is selected, ready for Ctrl-C.
    getSelection().selectAllChildren(element);
  }
}

/** Load JSON: {data, error, loading}. Loads again when the path changes; the last data stay until the new are there. */
export function useData(path) {
  const [state, set] = useState({ loading: true });
  useEffect(() => {
    if (path === null) {
      set({ loading: false });
      return undefined;
    }
    const stop = new AbortController();
    set((before) => ({ data: before.data, loading: true }));
    getJson(path, { signal: stop.signal }).then(
      (data) => set({ data, loading: false }),
      (error) => error.name === "AbortError" || set({ error, loading: false }),
    );
    return () => stop.abort();
  }, [path]);
  return state;
}

export const count = new Intl.NumberFormat("en-US");

/** A number of at most four digits: 1.234, 12.34, 1,234. */
export function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  return size >= 1000 ? count.format(Math.round(value)) : value.toPrecision(4).replace(/\.?0+$/, "");
}

/** 12.3 M, 4.5 k: for weights and tokens. */
export function amount(value) {
  if (!Number.isFinite(value)) return "–";
  return new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 }).format(value);
}

export function bytes(value) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  const at = Math.min(units.length - 1, Math.floor(Math.log10(Math.max(1, value)) / 3));
  return `${(value / 1000 ** at).toFixed(at && value / 1000 ** at < 100 ? 1 : 0)} ${units[at]}`;
}

export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

// Colours of tokens: by surprise (one hue, seven steps) or by what memory saved (two hues, four steps each).

export const SCALES = { surprise: "Surprise", saved: "Saved by memory" };

export function level(value, edges) {
  return edges.filter((edge) => value >= edge).length;
}

/** The class of a token, or "" where its value is not known. */
export function shade(unit, scale, edges) {
  if (scale === "surprise") return unit.bits === null ? "" : `s${level(unit.bits, edges.surprise)}`;
  if (unit.saved === null) return "";
  const step = level(Math.abs(unit.saved), edges.saved);
  return step ? `${unit.saved > 0 ? "p" : "n"}${step}` : "";
}

/** [class, bits at which it begins] for every step of a scale, from little to much. */
export function legend(scale, edges) {
  if (scale === "surprise") return [0, ...edges.surprise].map((from, at) => [`s${at}`, String(from)]);
  return [
    ...edges.saved.map((from, at) => [`n${at + 1}`, `−${from}`]).reverse(),
    ["p0", "0"],
    ...edges.saved.map((from, at) => [`p${at + 1}`, `+${from}`]),
  ];
}

/**
 * What is shown as one piece: a token, or several that make one character together.
 * Values of several tokens are sums.
 */
export function units(window) {
  const found = [];
  let first = 0;
  const written = spans(window.written);
  const openings = new Set(window.openings);
  const gaps = new Map(window.gaps);
  let gap = 0;
  let opening = false;
  for (let at = 0; at < window.texts.length; at += 1) {
    opening ||= openings.has(at);
    gap ||= gaps.get(at) ?? 0;
    if (!window.texts[at] && at + 1 < window.texts.length) continue;
    const bits = sum(window.bits, first, at);
    const without = sum(window.without, first, at);
    found.push({
      at: window.begin + at,
      tokens: at - first + 1,
      text: window.texts[at],
      bits,
      without,
      saved: bits === null || without === null ? null : without - bits,
      written: written(at),
      opening,
      gap,
      back: window.earlier?.[at] ?? 0,
      same: window.same?.[at] ?? 0,
    });
    first = at + 1;
    opening = false;
    gap = 0;
  }
  return found;
}

function sum(values, first, last) {
  let total = 0;
  for (let at = first; at <= last; at += 1) {
    if (values[at] === null) return null;
    total += values[at];
  }
  return total;
}

function spans(ranges) {
  let at = 0;
  return (index) => {
    while (at < ranges.length && index >= ranges[at][1]) at += 1;
    return at < ranges.length && index >= ranges[at][0];
  };
}

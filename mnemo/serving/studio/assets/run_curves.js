// Learning curves of several runs: one chart for each corpus and unit, since others cannot be compared.
import { LineChart } from "./chart.js";
import { html } from "./html.js";
import { number } from "./widgets.js";

const SETTLED = 0.06; // share of a curve's first points that may lie outside of the picture
const FEW = 20; // points of a curve that is drawn whole

/** curves: events of the server, in the order of their colours; names: all chosen runs. */
export function RunCurves({ curves, names, height = 320 }) {
  const drawn = curves.filter((curve) => curve.train.length || curve.valid.length);
  if (!drawn.length) return html`<p class="muted">${names.length ? "Nothing is logged yet: the first loss appears after a few steps." : "Tick a run below to see its curves."}</p>`;
  const groups = Map.groupBy(drawn, (curve) => `${curve.corpus}, ${curve.unit_words}`);
  return [...groups].map(([title, group]) => {
    const series = group.flatMap((curve) => lines(curve, `c${names.indexOf(curve.name) % 8}`, group.length > 1));
    return html`<div key=${title}>
      ${groups.size > 1 && html`<h3>${title}</h3>`}
      <${LineChart} label=${`Learning curves of ${group.map((curve) => curve.name).join(", ")}: ${ends(group)}`}
        series=${series} xLabel="step" yLabel=${group[0].unit_words} yLog=${group[0].logarithmic} yMax=${settled(series)} height=${height} />
    </div>`;
  });
}

function lines(curve, color, several) {
  const name = several ? `${curve.name}, ` : "";
  const both = curve.train.length && curve.valid.length;
  return [
    { label: `${name}training`, color: several || !both ? color : "c7", points: curve.train, faint: Boolean(both), dots: curve.train.length < 3 },
    { label: `${name}validation`, color, points: curve.valid, dots: curve.valid.length < 60 },
  ].filter((line) => line.points.length);
}

/** The largest value after the first steep fall of every curve. */
function settled(series) {
  const late = series.flatMap(({ points }) => points.slice(points.length <= FEW ? 0 : Math.ceil(SETTLED * points.length)));
  return 1.05 * Math.max(...late.map(([, value]) => value));
}

/** The last losses in words, for screen readers. */
function ends(group) {
  const words = group.map((curve) => {
    const [step, value] = (curve.valid.length ? curve.valid : curve.train).at(-1);
    return `${curve.name} ${number(value)} ${curve.unit} at step ${step}`;
  });
  return words.join("; ");
}

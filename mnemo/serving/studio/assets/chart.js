// Line charts by uPlot that follow the theme, the width of the page, and new points; arrow keys move the cursor.
import uPlot from "uplot";
import { html, useEffect, useRef } from "./html.js";
import { useTheme } from "./theme_switch.js";
import { number } from "./widgets.js";

/** Series of [x, y] points as uPlot's columns: all x in order, and a y or null for each. */
function columns(series) {
  const xs = [...new Set(series.flatMap(({ points }) => points.map(([x]) => x)))].sort((a, b) => a - b);
  const at = new Map(xs.map((x, index) => [x, index]));
  const ys = series.map(({ points }) => {
    const column = new Array(xs.length).fill(null);
    for (const [x, y] of points) column[at.get(x)] = y;
    return column;
  });
  return [xs, ...ys];
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function axis(label, values) {
  const line = { stroke: color("grid"), width: 1 };
  const font = `12px ${color("font")}`;
  return { label, labelFont: font, font, labelSize: 20, stroke: color("muted"), grid: line, ticks: line, values };
}

const plain = (_, splits) => splits.map((value) => (value === null ? null : number(value)));

const WHOLE = Array.from({ length: 10 }, (_, power) => [1, 2, 5].map((factor) => factor * 10 ** power)).flat(); // steps and slots

/** The range of the y axis; a first steep fall, above yMax, may lie outside of the picture. */
function yRange(yMax) {
  return (_, low, high) => (low === null ? [0, 1] : uPlot.rangeNum(low, Math.min(high, Math.max(yMax(), low)), 0.1, true));
}

function options({ series, xLabel, yLabel, xLog, yLog, yMax, height }, width) {
  return {
    width,
    height,
    scales: { x: { time: false, distr: xLog ? 3 : 1, log: 2 }, y: yLog ? { distr: 3 } : { range: yRange(yMax) } },
    axes: [{ ...axis(xLabel, plain), size: 32, incrs: xLog ? undefined : WHOLE }, { ...axis(yLabel, plain), size: 58 }],
    series: [
      { label: xLabel, value: (_, value) => number(value) },
      ...series.map(({ label, color: name, faint, dashed, dots }) => ({
        label,
        stroke: color(name) + (faint ? "80" : ""),
        width: faint ? 1.25 : 2,
        dash: dashed ? [5, 4] : undefined,
        points: { show: Boolean(dots), size: 6, fill: color(name) },
        spanGaps: true,
        value: (_, value) => number(value),
      })),
    ],
    cursor: { drag: { x: true, y: false } },
  };
}

/**
 * yMax: values above it may be cut off.
 * series: [{label, color: "c0", points: [[x, y], ...], faint, dashed, dots}]; label: what the chart shows, in words.
 * New points of the same series are added without drawing everything again.
 */
export function LineChart({ label, height = 300, yMax = Infinity, ...chart }) {
  const box = useRef(null);
  const plot = useRef(null);
  const most = useRef(yMax);
  most.current = yMax; // grows or falls with new points, without a new plot
  const theme = useTheme();
  const shape = JSON.stringify([chart.series.map(({ points, ...rest }) => rest), chart.xLabel, chart.yLabel, theme]);
  useEffect(() => {
    const made = new uPlot(options({ ...chart, height, yMax: () => most.current }, box.current.clientWidth), columns(chart.series), box.current);
    plot.current = made;
    const resized = new ResizeObserver(() => made.setSize({ width: box.current?.clientWidth || 300, height }));
    resized.observe(box.current);
    return () => {
      resized.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape, height]);
  useEffect(() => showNewest(plot.current, columns(chart.series)), [chart.series, shape]);
  const points = Math.max(0, ...chart.series.map((each) => each.points.length));
  return html`<div class="plot" ref=${box} role="group" tabindex="0" aria-label=${label} data-points=${points}
    onKeyDown=${(event) => moveCursor(plot.current, event)}></div>`;
}

/** Replace the points; without a cursor over the chart, the legend shows the last point. */
function showNewest(plot, data) {
  plot.setData(data);
  // uPlot empties the legend when it draws, which it does in a microtask.
  const unused = plot.cursor.idx === null || plot.cursor.idx === undefined;
  if (unused) queueMicrotask(() => plot.setLegend({ idxs: data.map(lastValue) }));
}

function lastValue(column) {
  return column.findLastIndex((value) => value !== null);
}

function moveCursor(plot, event) {
  const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
  if (!plot || !step || !plot.data[0].length) return;
  event.preventDefault();
  const last = plot.data[0].length - 1;
  const index = Math.min(last, Math.max(0, (plot.cursor.idx ?? (step > 0 ? -1 : last + 1)) + step));
  plot.setCursor({ left: plot.valToPos(plot.data[0][index], "x"), top: plot.bbox.height / 2 / devicePixelRatio });
}

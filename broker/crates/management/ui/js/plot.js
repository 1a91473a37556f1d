// Charts: lines over time with axes. The legend shows the latest values, or those at the pointer.
import { html, useEffect, useRef, useState } from './dom.js';
import * as format from './format.js';
import { byteCeiling, ceiling, countCeiling, gapOf, levels, line, nearest, pieces, rates, timeTicks } from './samples.js';
import { shared } from './session.js';

/** Height of a chart in pixels, and the space for the labels of its axes. */
const HEIGHT = 120;
const BELOW = 16;
const ABOVE = 6;
/** Width in pixels before it is measured. */
const INITIAL_WIDTH = 300;
/** Minimum distance of two labels of the time axis in pixels. */
const TICK_DISTANCE = 90;

/** Selectable time ranges in seconds: [range, distance of the samples, label]. The node keeps samples of a day at most. */
const RANGES = [
  [60, 5, 'the last minute'],
  [300, 5, 'the last 5 minutes'],
  [600, 5, 'the last 10 minutes'],
  [3600, 60, 'the last hour'],
  [28_800, 600, 'the last 8 hours'],
  [86_400, 1800, 'the last day'],
];

/** The selected time range of all charts, in seconds. */
const range = shared(300);

/** The time range of the charts of a page, and the query parameters that request its samples. */
export function useRange() {
  const age = range.use();
  const [, step] = RANGES.find(([seconds]) => seconds === age);
  const parameters = (kind) => ({ [`${kind}_age`]: age, [`${kind}_incr`]: step });
  return {
    age,
    step,
    lengths: parameters('lengths'),
    messages: parameters('msg_rates'),
    data: parameters('data_rates'),
    node: parameters('node_stats'),
  };
}

/** Selects the time range of all charts. */
export function RangeChoice() {
  const age = range.use();
  return html`<p class="range"><label>Charts show <select value=${age} onChange=${(event) => range.set(Number(event.currentTarget.value))}>
    ${RANGES.map(([seconds, , label]) => html`<option key=${seconds} value=${seconds}>${label}</option>`)}</select></label></p>`;
}

/** The width of an element in pixels. */
function useWidth() {
  const element = useRef(null);
  const [width, set] = useState(INITIAL_WIDTH);
  useEffect(() => {
    if (!element.current || typeof ResizeObserver === 'undefined') return undefined;
    const observer = new ResizeObserver(([entry]) => entry.contentRect.width > 0 && set(Math.round(entry.contentRect.width)));
    observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  return [element, width];
}

const timeLabel = (at, age) => new Date(at).toLocaleTimeString('en-GB', age <= 300 ? {} : { hour: '2-digit', minute: '2-digit' });

/** `of`: [{label, points, now}]; `show` formats a value as text; `top` finds a round number for the top of the value axis. */
export function Plot({ title, of, show, top: roundUp = ceiling }) {
  const { age, step } = useRange();
  const [element, width] = useWidth();
  const [pointed, setPointed] = useState(null);
  const gap = gapOf(step);
  const all = of.flatMap((series) => series.points);
  // The node's clock, not the browser's, decides which samples are in the range.
  const newest = all.length > 0 ? Math.max(...all.map((point) => point.at)) : Date.now();
  const to = Math.abs(Date.now() - newest) <= gap ? Math.max(newest, Date.now()) : newest;
  const from = to - age * 1000;
  const visible = of.map((series) => ({ ...series, points: series.points.filter((point) => point.at >= from) }));
  const top = roundUp(Math.max(0, ...visible.flatMap((series) => series.points.map((point) => point.value)), ...of.map((series) => series.now ?? 0)));
  const box = { from, to, top, width, height: HEIGHT };
  const x = (at) => ((at - from) / (to - from)) * width;
  const y = (value) => HEIGHT - (Math.min(value, top) / top) * HEIGHT;
  const last = (series) => series.now ?? series.points.at(-1)?.value;
  const at = pointed === null ? null : nearest(visible.flatMap((series) => series.points), from + pointed * (to - from), gap)?.at;
  const valueOf = (series) => (pointed === null ? last(series) : series.points.find((point) => point.at === at)?.value);
  const point = (event) => {
    const { left, width: shown } = event.currentTarget.getBoundingClientRect();
    setPointed(Math.min(1, Math.max(0, (event.clientX - left) / shown)));
  };
  const description = of.map((series) => `${series.label} ${show(last(series))}`).join(', ');
  const ticks = timeTicks({ from, to }, Math.max(1, Math.floor(width / TICK_DISTANCE)), new Date(to).getTimezoneOffset());
  const when = pointed === null ? '' : at == null ? 'no samples at this time' : new Date(at).toLocaleTimeString('en-GB');
  return html`<figure class="plot" ref=${element}>
    <figcaption>${title} <span class="faint">${when || (all.length === 0 ? 'no samples yet' : '')}</span></figcaption>
    <svg viewBox=${`0 ${-ABOVE} ${width} ${HEIGHT + ABOVE + BELOW}`} role="img" aria-label=${`${title}: ${description}`}
      onPointerMove=${point} onPointerDown=${point} onPointerLeave=${() => setPointed(null)}>
      ${[0, 0.5, 1].map((part) => html`<line key=${part} class="base" x1="0" x2=${width} y1=${HEIGHT * (1 - part)} y2=${HEIGHT * (1 - part)} />`)}
      ${[0.5, 1].map((part) => html`<text key=${part} class="label" x="2" y=${HEIGHT * (1 - part) + 11}>${show(top * part)}</text>`)}
      ${ticks.map((tick) => html`<line key=${tick} class="base" x1=${x(tick)} x2=${x(tick)} y1=${HEIGHT} y2=${HEIGHT + 3} />`)}
      ${ticks.map((tick) => {
        const anchor = x(tick) < 24 ? 'start' : x(tick) > width - 24 ? 'end' : 'middle';
        return html`<text key=${tick} class="label" text-anchor=${anchor} x=${x(tick)} y=${HEIGHT + 14}>${timeLabel(tick, age)}</text>`;
      })}
      ${visible.map((series, index) =>
        pieces(series.points, gap).map((piece) =>
          piece.length > 1
            ? html`<polyline key=${`${series.label} ${piece[0].at}`} class=${`line l${index}`} points=${line(piece, box)} />`
            : html`<circle key=${`${series.label} ${piece[0].at}`} class=${`mark l${index}`} cx=${x(piece[0].at)} cy=${y(piece[0].value)} r="1.5" />`,
        ),
      )}
      ${at != null && html`<line class="cursor" x1=${x(at)} x2=${x(at)} y1="0" y2=${HEIGHT} />`}
      ${
        at != null &&
        visible.map((series, index) => {
          const value = valueOf(series);
          return value !== undefined && html`<circle key=${series.label} class=${`mark l${index}`} cx=${x(at)} cy=${y(value)} r="3" />`;
        })
      }
    </svg>
    <ul class="legend">${visible.map((series, index) => html`<li key=${series.label}><span class=${`dot l${index}`}></span>${series.label} <b>${show(valueOf(series))}</b></li>`)}</ul>
  </figure>`;
}

/** Rates of an API object's counters. `names` are [key, label]. */
export function Rates({ title, stats, names, show = format.rate, top }) {
  const { step } = useRange();
  const of = names.map(([key, label]) => {
    const details = stats?.[`${key}_details`];
    return { label, points: rates(details?.samples, gapOf(step)), now: details?.rate };
  });
  return html`<${Plot} title=${title} of=${of} show=${show} top=${top} />`;
}

/** Values that can decrease. */
export function Levels({ title, stats, names, show = format.count, top = countCeiling }) {
  const of = names.map(([key, label]) => ({ label, points: levels(stats?.[`${key}_details`]?.samples), now: stats?.[key] }));
  return html`<${Plot} title=${title} of=${of} show=${show} top=${top} />`;
}

/** Bytes that can decrease. */
export const Bytes = (given) => html`<${Levels} ...${given} show=${format.bytes} top=${byteCeiling} />`;

export const DEPTHS = [
  ['messages_ready', 'ready'],
  ['messages_unacknowledged', 'unacknowledged'],
  ['messages', 'all'],
];
export const TRAFFIC = [
  ['publish', 'published'],
  ['confirm', 'confirmed'],
  ['deliver_get', 'delivered'],
  ['redeliver', 'redelivered'],
  ['ack', 'acknowledged'],
];

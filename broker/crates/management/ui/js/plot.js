// Small plots: lines over time, with their latest values as text.
import { html } from './dom.js';
import * as format from './format.js';
import { ceiling, levels, line, pieces, rates } from './samples.js';

const WIDTH = 300;
const HEIGHT = 64;

/** `of`: [{label, points}]; `show` formats a value as text. */
export function Plot({ title, of, show }) {
  const all = of.flatMap((series) => series.points);
  const values = [...all.map((point) => point.value), ...of.map((series) => series.now ?? 0)];
  const top = ceiling(Math.max(0, ...values));
  const times = all.map((point) => point.at);
  const box = { from: Math.min(...times), to: Math.max(...times), top, width: WIDTH, height: HEIGHT };
  const last = (series) => series.now ?? series.points.at(-1)?.value;
  const description = of.map((series) => `${series.label} ${show(last(series))}`).join(', ');
  return html`<figure class="plot">
    <figcaption>${title}<span class="faint">${all.length > 0 ? ` up to ${show(top)}` : ' no samples yet'}</span></figcaption>
    <svg viewBox=${`0 -2 ${WIDTH} ${HEIGHT + 4}`} preserveAspectRatio="none" role="img" aria-label=${`${title}: ${description}`}>
      <line class="base" x1="0" x2=${WIDTH} y1=${HEIGHT} y2=${HEIGHT} />
      <line class="base" x1="0" x2=${WIDTH} y1="0" y2="0" />
      ${of.map((series, at) => pieces(series.points).map((piece) => html`<polyline key=${`${series.label} ${piece[0].at}`} class=${`line l${at}`} points=${line(piece, box)} />`))}
    </svg>
    <ul class="legend">${of.map((series, at) => html`<li key=${series.label}><span class=${`dot l${at}`}></span>${series.label} <b>${show(last(series))}</b></li>`)}</ul>
  </figure>`;
}

/** Rates of an API object's counters. `names` are [key, label]. */
export function Rates({ title, stats, names, show = format.rate }) {
  const of = names.map(([key, label]) => {
    const details = stats?.[`${key}_details`];
    return { label, points: rates(details?.samples), now: details?.rate };
  });
  return html`<${Plot} title=${title} of=${of} show=${show} />`;
}

/** Values that can decrease. */
export function Levels({ title, stats, names, show = format.count }) {
  const of = names.map(([key, label]) => ({ label, points: levels(stats?.[`${key}_details`]?.samples), now: stats?.[key] }));
  return html`<${Plot} title=${title} of=${of} show=${show} />`;
}

/** Query parameters that request samples of five minutes. */
export const LENGTHS = { lengths_age: 300, lengths_incr: 5 };
export const MESSAGES = { msg_rates_age: 300, msg_rates_incr: 5 };
export const DATA = { data_rates_age: 300, data_rates_incr: 5 };

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

// Converts the API's samples to plotted lines.

/** Sorts the API's samples, which are newest first, by time. */
const inOrder = (samples) => [...(samples ?? [])].sort((a, b) => a.timestamp - b.timestamp);

/** Maximum distance of two samples in milliseconds if a sample is expected every five seconds. */
const SHORT_GAP = 15_000;

/** The distance of two samples, in milliseconds, from which there is a gap between them. `step` is the expected distance in seconds. */
export const gapOf = (step) => Math.max(SHORT_GAP, step * 2500);

/** Changes of a counter per second: one point less than samples. There is no point for a change across a gap: when it happened is unknown. */
export function rates(samples, gap = SHORT_GAP) {
  const points = inOrder(samples);
  const changes = [];
  for (let at = 1; at < points.length; at += 1) {
    const elapsed = points[at].timestamp - points[at - 1].timestamp;
    // A counter that decreased was restarted.
    const increase = Math.max(0, points[at].sample - points[at - 1].sample);
    if (elapsed > 0 && elapsed <= gap) changes.push({ at: points[at].timestamp, value: (increase * 1000) / elapsed });
  }
  return changes;
}

/** Splits points at gaps. */
export function pieces(points, gap = SHORT_GAP) {
  const all = [];
  for (const point of points) {
    const last = all.at(-1)?.at(-1);
    if (last !== undefined && point.at - last.at <= gap) all.at(-1).push(point);
    else all.push([point]);
  }
  return all;
}

/** Values that can decrease. */
export const levels = (samples) => inOrder(samples).map((point) => ({ at: point.timestamp, value: point.sample }));

/** The smallest of 1, 2, 5, 10, 20, ... that is not less than `value`. */
export function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  const step = [1, 2, 5, 10].find((n) => n * power >= value * (1 - 1e-9));
  return step * power;
}

/** Like `ceiling` for whole numbers: half of it is a whole number, too. */
export function countCeiling(value) {
  if (!(value > 2)) return 2;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 10, 20].find((n) => n * power >= value && n * power > 1) * power;
}

/** Like `ceiling` for bytes: a multiple of a power of 1,024. */
export function byteCeiling(value) {
  if (!(value > 0)) return 1;
  const unit = 1024 ** Math.floor(Math.log2(value) / 10);
  return ceiling(value / unit) * unit;
}

/** Coordinates of points in a box, in the format of a polyline's `points`. */
export function line(points, { from, to, top, width, height }) {
  const x = (at) => (to > from ? ((at - from) / (to - from)) * width : width);
  const y = (value) => height - (Math.min(value, top) / top) * height;
  return points.map((point) => `${x(point.at).toFixed(1)},${y(point.value).toFixed(1)}`).join(' ');
}

/** Distances of the labels of a time axis, in milliseconds. */
const TIME_STEPS = [10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600].map((seconds) => seconds * 1000);

/**
 * Times for the labels of a time axis, at most `most`, at full minutes or hours of the time zone. `offset`: minutes that the time zone is
 * behind UTC, as from `getTimezoneOffset`.
 */
export function timeTicks({ from, to }, most, offset = 0) {
  const step = TIME_STEPS.find((size) => (to - from) / size <= most) ?? TIME_STEPS.at(-1);
  const shift = offset * 60_000;
  const ticks = [];
  for (let at = Math.ceil((from - shift) / step) * step + shift; at <= to; at += step) ticks.push(at);
  return ticks;
}

/** The point of a line that is closest to a time, or undefined if none is within `gap`. */
export function nearest(points, at, gap) {
  let best;
  for (const point of points) {
    if (best === undefined || Math.abs(point.at - at) < Math.abs(best.at - at)) best = point;
  }
  return best !== undefined && Math.abs(best.at - at) <= gap ? best : undefined;
}

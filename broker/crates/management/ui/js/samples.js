// Converts the API's samples to plotted lines.

/** Sorts the API's samples, which are newest first, by time. */
const inOrder = (samples) => [...(samples ?? [])].sort((a, b) => a.timestamp - b.timestamp);

/** Changes of a counter per second: one point less than samples. */
export function rates(samples) {
  const points = inOrder(samples);
  const changes = [];
  for (let at = 1; at < points.length; at += 1) {
    const seconds = (points[at].timestamp - points[at - 1].timestamp) / 1000;
    // A counter that decreased was restarted.
    const increase = Math.max(0, points[at].sample - points[at - 1].sample);
    if (seconds > 0) changes.push({ at: points[at].timestamp, value: increase / seconds });
  }
  return changes;
}

/** Maximum distance of two samples in milliseconds; a larger distance is a gap in the line. */
const GAP = 15_000;

/** Splits points at gaps. */
export function pieces(points) {
  const all = [];
  for (const point of points) {
    const last = all.at(-1)?.at(-1);
    if (last !== undefined && point.at - last.at <= GAP) all.at(-1).push(point);
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

/** Coordinates of points in a box, in the format of a polyline's `points`. */
export function line(points, { from, to, top, width, height }) {
  const x = (at) => (to > from ? ((at - from) / (to - from)) * width : width);
  const y = (value) => height - (Math.min(value, top) / top) * height;
  return points.map((point) => `${x(point.at).toFixed(1)},${y(point.value).toFixed(1)}`).join(' ');
}

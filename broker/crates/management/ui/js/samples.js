// From the API's samples to lines of a plot.

/** The API's samples, the newest first, as points in the order of time. */
const inOrder = (samples) => [...(samples ?? [])].sort((a, b) => a.timestamp - b.timestamp);

/** What is counted up, as changes per second: one point less. */
export function rates(samples) {
  const points = inOrder(samples);
  const changes = [];
  for (let at = 1; at < points.length; at += 1) {
    const seconds = (points[at].timestamp - points[at - 1].timestamp) / 1000;
    // A count that went down began anew.
    const more = Math.max(0, points[at].sample - points[at - 1].sample);
    if (seconds > 0) changes.push({ at: points[at].timestamp, value: more / seconds });
  }
  return changes;
}

/** Milliseconds between two samples above which nothing is known of the time between them. */
const GAP = 15_000;

/** Parts of a line without a gap inside. */
export function pieces(points) {
  const all = [];
  for (const point of points) {
    const last = all.at(-1)?.at(-1);
    if (last !== undefined && point.at - last.at <= GAP) all.at(-1).push(point);
    else all.push([point]);
  }
  return all;
}

/** What goes up and down. */
export const levels = (samples) => inOrder(samples).map((point) => ({ at: point.timestamp, value: point.sample }));

/** The least of 1, 2, 5, 10, 20, ... that is not below. */
export function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  const step = [1, 2, 5, 10].find((n) => n * power >= value * (1 - 1e-9));
  return step * power;
}

/** Coordinates of a line's points in a box, as `points` of a polyline has them. */
export function line(points, { from, to, top, width, height }) {
  const x = (at) => (to > from ? ((at - from) / (to - from)) * width : width);
  const y = (value) => height - (Math.min(value, top) / top) * height;
  return points.map((point) => `${x(point.at).toFixed(1)},${y(point.value).toFixed(1)}`).join(' ');
}

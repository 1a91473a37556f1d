// Formats numbers and values for display. Every function returns text.

const grouped = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat('en', { maximumFractionDigits: 1 });

const isNumber = (value) => typeof value === 'number' && Number.isFinite(value);

/** 12,345; an en dash for an unknown value. */
export const count = (value) => (isNumber(value) ? grouped.format(value) : '–');

/** 12.3/s */
export function rate(value) {
  if (!isNumber(value)) return '–';
  return `${value < 100 ? short.format(value) : grouped.format(value)}/s`;
}

/** 1.5 MiB */
export function bytes(value) {
  if (!isNumber(value)) return '–';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let unit = 0;
  let left = value;
  while (Math.abs(left) >= 1024 && unit < units.length - 1) {
    left /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? grouped.format(left) : short.format(left)} ${units[unit]}`;
}

/** Formats milliseconds as 3 d 4 h: the two largest units. */
export function duration(ms) {
  if (!isNumber(ms) || ms < 0) return '–';
  const units = [
    ['d', 86_400_000],
    ['h', 3_600_000],
    ['min', 60_000],
    ['s', 1000],
  ];
  const parts = [];
  let left = ms;
  for (const [name, size] of units) {
    const whole = Math.floor(left / size);
    left -= whole * size;
    if (whole > 0 || parts.length > 0) parts.push(`${whole} ${name}`);
    if (parts.length === 2) break;
  }
  return parts.join(' ') || '0 s';
}

/** Formats the age of a message in seconds. Nothing without a message. */
export const age = (seconds) => (isNumber(seconds) ? duration(seconds * 1000) : '');

/** A time in milliseconds since 1970, in the user's time zone. */
export function time(ms) {
  return isNumber(ms) ? new Date(ms).toLocaleString() : '–';
}

/** An argument, header or property value on one line. */
export function value(raw) {
  if (raw === undefined || raw === null) return '–';
  return typeof raw === 'string' ? raw : JSON.stringify(raw);
}

/** The share of the whole, from 0 to 1, or null if unknown. */
export function share(part, whole) {
  return isNumber(part) && isNumber(whole) && whole > 0 ? Math.min(1, Math.max(0, part / whole)) : null;
}

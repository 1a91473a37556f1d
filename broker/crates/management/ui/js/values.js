// What people enter, as the API wants it.

export class Mistake extends Error {}

/** Types that an entry of arguments, headers or a definition can have. */
export const TYPES = ['string', 'number', 'boolean', 'JSON'];

function parsed({ key, value, type }) {
  switch (type) {
    case 'number': {
      const number = Number(value);
      if (value.trim() === '' || !Number.isFinite(number)) throw new Mistake(`${key}: "${value}" is no number.`);
      return number;
    }
    case 'boolean':
      if (value !== 'true' && value !== 'false') throw new Mistake(`${key}: "${value}" is neither true nor false.`);
      return value === 'true';
    case 'JSON':
      try {
        return JSON.parse(value);
      } catch {
        throw new Mistake(`${key}: "${value}" is no JSON.`);
      }
    default:
      return value;
  }
}

/** Rows of key, value and type as an object; rows without a key do not count. */
export function objectOf(rows) {
  const entries = [];
  for (const row of rows) {
    const key = row.key.trim();
    if (key === '') {
      if (row.value.trim() !== '') throw new Mistake(`"${row.value}" has no key.`);
      continue;
    }
    if (entries.some(([known]) => known === key)) throw new Mistake(`${key} is there twice.`);
    entries.push([key, parsed({ ...row, key })]);
  }
  // Also a key that is named __proto__.
  return Object.fromEntries(entries);
}

/** The rows of an object. */
export function rowsOf(object) {
  return Object.entries(object ?? {}).map(([key, value]) => {
    if (typeof value === 'string') return { key, value, type: 'string' };
    if (typeof value === 'number' || typeof value === 'boolean') return { key, value: String(value), type: typeof value };
    return { key, value: JSON.stringify(value), type: 'JSON' };
  });
}

/** Words with commas or spaces between, each once. */
export const words = (text) => [...new Set(text.split(/[\s,]+/).filter((word) => word !== ''))];

/** What a header of HTTP may hold. */
export const headerText = (text) => text.replace(/[^\x20-\x7e]/g, '?').slice(0, 200);

// Conversion of user input to API values.

export class InputError extends Error {}

/** Types of the values of arguments, headers and policy definitions. */
export const TYPES = ['string', 'number', 'boolean', 'JSON'];

function parseValue({ key, value, type }) {
  switch (type) {
    case 'number': {
      const number = Number(value);
      if (value.trim() === '' || !Number.isFinite(number)) throw new InputError(`${key}: "${value}" is not a number.`);
      return number;
    }
    case 'boolean':
      if (value !== 'true' && value !== 'false') throw new InputError(`${key}: "${value}" is neither true nor false.`);
      return value === 'true';
    case 'JSON':
      try {
        return JSON.parse(value);
      } catch {
        throw new InputError(`${key}: "${value}" is not valid JSON.`);
      }
    default:
      return value;
  }
}

/** Converts rows of key, value and type to an object. Empty rows are ignored. */
export function objectOf(rows) {
  const entries = [];
  for (const row of rows) {
    const key = row.key.trim();
    if (key === '') {
      if (row.value.trim() !== '') throw new InputError(`"${row.value}" has no key.`);
      continue;
    }
    if (entries.some(([known]) => known === key)) throw new InputError(`${key} appears twice.`);
    entries.push([key, parseValue({ ...row, key })]);
  }
  // Unlike assignment, this also handles the key __proto__.
  return Object.fromEntries(entries);
}

/** Converts an object to rows. */
export function rowsOf(object) {
  return Object.entries(object ?? {}).map(([key, value]) => {
    if (typeof value === 'string') return { key, value, type: 'string' };
    if (typeof value === 'number' || typeof value === 'boolean') return { key, value: String(value), type: typeof value };
    return { key, value: JSON.stringify(value), type: 'JSON' };
  });
}

/** Splits text at commas and spaces and removes duplicates. */
export const words = (text) => [...new Set(text.split(/[\s,]+/).filter((word) => word !== ''))];

/** Limits text to characters that an HTTP header may contain. */
export const headerText = (text) => text.replace(/[^\x20-\x7e]/g, '?').slice(0, 200);

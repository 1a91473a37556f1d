// Addresses within the page: the fragment behind `#`, with RabbitMQ's names.

/** Parses `#/queues/%2F/a%20b?x=1` as ['queues', '/', 'a b']; null if it is invalid. */
export function parse(hash) {
  const text = hash.replace(/^#\/?/, '').replace(/\?.*$/, '').replace(/\/$/, '');
  if (text === '') return [];
  try {
    return text.split('/').map(decodeURIComponent);
  } catch {
    return null;
  }
}

/** The parameters behind `?` in a fragment. */
export const queryOfHash = (hash) => new URLSearchParams(/\?(.*)$/.exec(hash)?.[1] ?? '');

/** Replaces parameters in a fragment; those with the value '' are removed. */
export function withHashQuery(hash, values) {
  const query = queryOfHash(hash);
  for (const [key, value] of Object.entries(values)) {
    if (value === '') query.delete(key);
    else query.set(key, value);
  }
  const text = query.toString();
  return hash.replace(/\?.*$/, '') + (text === '' ? '' : `?${text}`);
}

/** The fragment that the page itself has set last, or null. */
let replaced = null;

/** Replaces the fragment of the address, without a new page. */
export function replaceHash(hash) {
  if (hash === window.location.hash) return;
  replaced = hash;
  window.history.replaceState(null, '', hash);
}

/** Returns true if a change of the fragment leads to another page. Some browsers report changes by the page itself, too. */
export function isNewPage(hash) {
  if (hash === replaced) return false;
  replaced = null;
  return true;
}

/** Builds the fragment of an address. */
export const to = (...elements) => `#/${elements.map(encodeURIComponent).join('/')}`;

/**
 * Finds the first match in `table`: rows of pattern and value, where `{}` in a pattern matches any element. RabbitMQ's administration
 * pages are also available below `admin`.
 */
export function find(table, elements) {
  if (elements === null) return null;
  const place = elements[0] === 'admin' && elements.length > 1 ? elements.slice(1) : elements;
  for (const [pattern, value] of table) {
    const expected = pattern === '' ? [] : pattern.split('/');
    if (expected.length !== place.length) continue;
    if (expected.every((element, at) => element === '{}' || element === place[at])) {
      return { value, given: place.filter((_, at) => expected[at] === '{}') };
    }
  }
  return null;
}
